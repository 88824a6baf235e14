/* Products in which one side, x, has a few rows, and the other, the lines, are weights, which go through shared memory.
 *
 * A block has neighbouring lines, 8 of them at a time; where lines are in pairs, 4, and 4 that lie HALF lines further, in
 * each group of 2 · HALF lines (HALF is 0 where they are not, and all numbers of lines are of the first ones). One warp,
 * the last, copies: it asks for TERMS terms of all 8, a copy for each line, into one of SLOTS slots of a ring; 8 others
 * multiply what has come by all rows of x, which lie in shared memory, and give the slot back. Weights are written by no
 * kernel: the first slots are asked for before the kernel before this one has ended. On GPUs without such copies, warps
 * read the lines.
 *
 * Several products may share a ring, one after another: while blocks wait for each other between two of them, the ring is
 * filled with what comes next. No more than FLIGHT slots are on their way at a time: that is enough to keep memory busy,
 * and what other warps read and write meanwhile would wait behind more of them. While blocks wait for each other and read
 * the next rows, and while the kernel before this one runs, fewer are. A product has a number of blocks; where the grid has
 * fewer, a block takes several of them in turn. A kernel may do all of this for each of several layers: the ring is filled
 * with the next layer's weights while this one's are used.
 *
 * Sums are those of tensor cores, x being the left operand, of 16 rows of which ROWS are there. Lane 4 g + t has 8
 * neighbouring terms of line g and of row g, from 8 t on, and takes them for those of two products: what matters is that
 * both sides' terms are in the same order.
 *
 * Shared memory: the slots and their barriers (the ring's BYTES), the rows of x, and the sums of each warp.
 */
enum { IG_STREAM_LINES = 8, IG_STREAM_WARPS = 8, IG_STREAM_THREADS = 32 * IG_STREAM_WARPS };

/* What a kernel that loops over layers takes for their buffers: a row of addresses for each. */
template <int LAYERS, int BUFFERS> struct ig_layer_table {
    uint64_t at[LAYERS][BUFFERS];
};

/* The bytes from one line to the next: 8 lines of a warp's pieces lie in different banks. */
template <int TERMS> static inline constexpr int ig_stream_pitch() { return TERMS * 2 + 64; }

/* The line of a pair's first one, by the pair's number. */
template <int HALF> static inline int ig_find_line(int pair)
{
    constexpr int EACH = HALF > 0 ? HALF : 1;
    return pair / EACH * 2 * EACH + pair % EACH;
}

/* The slots. Each thread knows which one is filled, or used, next, and the parity of its phase. */
template <int SLOTS, int TERMS, int FLIGHT> struct ig_stream_ring {
    static constexpr int PITCH = ig_stream_pitch<TERMS>(), SLOT = IG_STREAM_LINES * PITCH, LENGTH = TERMS;
#ifdef IG_HOPPER
    static constexpr int BYTES = (SLOTS * (SLOT + 16) + 16 + 127) / 128 * 128;
#else
    static constexpr int BYTES = 0;
#endif
    int at, asked; /* asked: how many slots were asked for so far, as far as that matters */
    unsigned phase;

    inline ig_stream_ring() : at(0), asked(0), phase(0) {}
    inline void advance()
    {
        if (++at == SLOTS) at = 0, phase ^= 1;
    }
#ifdef IG_HOPPER
    inline char *slot() const { return ig_shared() + at * SLOT; }
    static inline ig_place full_at(int slot) { return ig_place_of(ig_shared() + SLOTS * SLOT + 8 * slot); }
    inline ig_place full() const { return full_at(at); }
    inline ig_place empty() const { return full_at(SLOTS + at); }
    /* How many slots may be on their way. */
    static inline int *flight() { return (int *)(ig_shared() + SLOTS * (SLOT + 16)); }
    /* Waits until the slot may be filled, and few enough are on their way. By the warp that copies. */
    inline void wait_for_room()
    {
        ig_wait_at_barrier(empty(), phase ^ 1);
        const int most = ig_read_word(flight());
        if (asked >= most) ig_wait_at_barrier(full_at(at < most ? at + SLOTS - most : at - most), at < most ? phase ^ 1 : phase);
        if (asked < FLIGHT) ++asked;
    }
#endif
    /* The warp that copies may have that many slots on their way from now on. By one thread of the others. */
    inline void allow(int most)
    {
#ifdef IG_HOPPER
        if (threadIdx.x == 0) ig_write_word(flight(), most);
#endif
    }
    inline void set_up(int most)
    {
#ifdef IG_HOPPER
        if (threadIdx.x == 0) {
            for (at = 0; at < SLOTS; ++at) {
                ig_set_up_barrier(full(), 1);
                ig_set_up_barrier(empty(), IG_STREAM_WARPS / 2);
            }
            at = 0;
            *flight() = most;
            ig_show_barriers();
        }
        __syncthreads();
#endif
    }
};

template <int ROWS, int HALF, int K, class Ring> struct ig_line_stream {
    static constexpr int TERMS = Ring::LENGTH;
    static constexpr bool PAIRS = HALF > 0;
    static constexpr int EACH = PAIRS ? IG_STREAM_LINES / 2 : IG_STREAM_LINES;

    Ring &ring;
    const uint16_t *lines;
    int64_t step; /* elements from line to line */
    int first, count; /* the block's lines */

    inline ig_line_stream(Ring &slots, const uint16_t *all, int64_t line_step) : ring(slots), lines(all), step(line_step), first(0), count(0)
    {
    }
    /* The lines of one of so many blocks that share `all`; behind the last block there are none. */
    inline void take(int block, int blocks, int all)
    {
        first = (int)((int64_t)ig_min(block, blocks) * all / blocks);
        count = (int)((int64_t)ig_min(block + 1, blocks) * all / blocks - first);
    }
    /* Line number `line` of the group that begins at `from`; whether it is there. */
    inline const uint16_t *find(int from, int line) const
    {
        const int number = first + from + line % EACH;
        return lines + (PAIRS ? ig_find_line<HALF>(number) + line / EACH * HALF : number) * step;
    }
    inline bool has(int from, int line) const { return line < IG_STREAM_LINES && from + line % EACH < count; }
    /* Asks for all of the block's lines. By the warp that copies. */
    __forceinline__ void ask()
    {
#ifdef IG_HOPPER
        const int lane = ig_lane();
        for (int group = 0; group < count; group += EACH) {
            const int there = (int)ig_min(EACH, count - group) * (PAIRS ? 2 : 1);
            for (int term = 0; term < K; term += TERMS) {
                const int length = (int)ig_min(TERMS, K - term);
                ring.wait_for_room();
                if (lane == 0) ig_arrive_expecting(ring.full(), (unsigned)(length * there * 2));
                ig_syncwarp();
                if (has(group, lane))
                    ig_copy_once(ig_place_of(ring.slot() + lane * Ring::PITCH), find(group, lane) + term, (unsigned)length * 2, ring.full());
                ring.advance();
            }
        }
#endif
    }
    /* The sums of all lines by the terms of each warp: sums[((number of the line) · ROWS + row) · 8 + warp]. Every other slot
     * is for one half of the warps, so that one reads while the other multiplies. */
    template <void multiply(float *, const uint32_t *, const uint32_t *)> __forceinline__ void use(const char *x, int x_pitch, float *sums)
    {
        typedef ig_vector<uint32_t, 4> piece;
        constexpr int SHARERS = IG_STREAM_WARPS / 2, PIECES = TERMS / 32 / SHARERS, FILLS = (K + TERMS - 1) / TERMS;
        constexpr bool KEEPS = FILLS <= 2 && PIECES <= 8; /* a warp has the same terms of every line: x is read once */
        const int lane = ig_recompute(ig_lane()), warp = ig_recompute(ig_warp());
        const int g = lane >> 2, t = lane & 3, half = warp / SHARERS, place = warp % SHARERS * 32 + t * 8;
        /* Terms of piece number i of those from `begin` on. */
        const auto find_term = [&](int begin, int i) { return begin + i * SHARERS * 32 + place; };
        const auto has_term = [&](int term) { return K % (SHARERS * 32) == 0 || term < K; };
        const auto find_x = [&](int term) {
            piece v = {};
            if (g < ROWS && has_term(term)) v = ig_load_vector<uint32_t, 4>((const uint32_t *)(x + g * x_pitch + term * 2));
            return v;
        };
        const int own = FILLS == 2 ? half * TERMS : 0;
        piece kept[KEEPS ? PIECES : 1];
        if constexpr (KEEPS) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i)
                if (own + i * SHARERS * 32 < K) kept[i] = find_x(find_term(own, i));
        }
        int turn = 0;
        for (int from = 0, first = 0; from < count; from += EACH, first += IG_STREAM_LINES) {
            float d[4][4] = {}; /* so that products need not wait for each other */
            for (int begin = 0; begin < K; begin += TERMS, ++turn) {
                if ((turn & 1) == half) {
#ifdef IG_HOPPER
                    ig_wait_at_barrier(ring.full(), ring.phase);
                    const char *const line = ring.slot() + g * Ring::PITCH - begin * 2;
#else
                    const char *const line = (const char *)find(from, has(from, g) ? g : 0);
#endif
#pragma unroll
                    for (int i = 0; i < PIECES; ++i)
                        if (begin + i * SHARERS * 32 < K) {
                            const int term = find_term(begin, i);
                            piece w = {}, v;
                            if (has_term(term)) w = ig_load_vector<uint32_t, 4>((const uint32_t *)(line + term * 2));
                            if constexpr (KEEPS) v = kept[i];
                            else v = find_x(term);
                            const uint32_t a[4] = {v.at[0], 0, v.at[1], 0}, c[4] = {v.at[2], 0, v.at[3], 0};
                            multiply(d[i % 2 * 2], a, w.at);
                            multiply(d[i % 2 * 2 + 1], c, w.at + 2);
                        }
#ifdef IG_HOPPER
                    ig_syncwarp();
                    if (lane == 0) ig_arrive(ring.empty());
#endif
                }
                ring.advance();
            }
            if (g < ROWS) {
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    sums[((first + 2 * t + n) * ROWS + g) * IG_STREAM_WARPS + warp] = (d[0][n] + d[1][n]) + (d[2][n] + d[3][n]);
            }
        }
    }
    /* The sum of a row of x and a line, of its pair the second one where `other`. */
    static inline float find_sum(const float *sums, int row, int line, bool other)
    {
        const int number = line / EACH * IG_STREAM_LINES + line % EACH + other * EACH;
        const float *const parts = sums + (number * ROWS + row) * IG_STREAM_WARPS;
        const ig_vector<float, 4> a = ig_load_vector<float, 4>(parts), b = ig_load_vector<float, 4>(parts + 4);
        return ((a.at[0] + a.at[1]) + (a.at[2] + a.at[3])) + ((b.at[0] + b.at[1]) + (b.at[2] + b.at[3]));
    }
};

/* Rows of x to shared memory, 16 bytes at a time. */
template <int ROWS> static inline void ig_keep_rows(char *to, int pitch, const uint16_t *x, int64_t step, int terms)
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        for (int v = (int)threadIdx.x; v < terms / 8; v += IG_STREAM_THREADS)
            ig_store_vector<uint16_t, 8>((uint16_t *)(to + r * pitch) + v * 8, ig_load_vector<uint16_t, 8>(x + r * step + v * 8));
}

/* Weights that are used as soon as the kernel before this one has ended. */
static inline void ig_prefetch_elements(const void *from, int64_t bytes)
{
    for (int64_t at = (int64_t)threadIdx.x * 128; at < bytes; at += IG_STREAM_THREADS * 128) ig_prefetch((const char *)from + at);
}
