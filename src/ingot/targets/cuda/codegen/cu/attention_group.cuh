/* Attention by groups of four warps on Hopper's tensor cores, 64 queries to a group: its weights are read from registers,
 * queries, keys and values from shared memory. Elsewhere single warps do the same.
 *
 * Queries are never read from registers: ptxas (13.0) takes fragments that many turns of a loop read for dead after the
 * first, without a warning, and the second tile of keys is then multiplied with weights. Weights are made anew for each
 * tile.
 *
 * A tile has lines of 128 bytes, 64 elements, whose pieces of 16 bytes are swizzled by the number of the line; wider rows
 * are several tiles, one behind another. Along a line run the terms of products of keys, and the columns of those of
 * values, which the hardware transposes. Fragments are those of mma with 16 rows to each warp. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(IG_EMULATED)

#ifndef IG_EMULATED
#define IG_FLOATS_8(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7])
/* d (64×64) += a · b: 16 terms along the lines of both tiles. */
#define IG_LINE_PRODUCT(name, types) \
    static inline void name(float *d, uint64_t a, uint64_t b) \
    { \
        asm volatile( \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " " \
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
            "%32, %33, 1, 1, 1, 0, 0;" \
            : IG_FLOATS_8(d), IG_FLOATS_8((d) + 8), IG_FLOATS_8((d) + 16), IG_FLOATS_8((d) + 24) \
            : "l"(a), "l"(b) : "memory"); \
    }
IG_LINE_PRODUCT(ig_group_bf16, "bf16.bf16")
IG_LINE_PRODUCT(ig_group_f16, "f16.f16")
/* The same with 16 terms of `a` in registers, and those of `b` on 16 lines. */
#define IG_GROUP_PRODUCT(name, types) \
    static inline void name(float *d, const uint32_t *a, uint64_t b) \
    { \
        asm volatile( \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " " \
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
            "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
            : IG_FLOATS_8(d), IG_FLOATS_8((d) + 8), IG_FLOATS_8((d) + 16), IG_FLOATS_8((d) + 24) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory"); \
    }
IG_GROUP_PRODUCT(ig_group_bf16_transposed, "bf16.bf16")
IG_GROUP_PRODUCT(ig_group_f16_transposed, "f16.f16")

/* A tile as the instruction takes it: eight swizzled lines are 1024 bytes. */
static inline uint64_t ig_describe_lines(const void *tile)
{
    return (uint64_t)(ig_shared_address(tile) & 0x3ffff) >> 4 | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
static inline uint64_t ig_move_lines(uint64_t tile, int bytes) { return tile + (uint64_t)(bytes >> 4); }
static inline void ig_begin_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static inline void ig_end_group()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
static inline void ig_show_lines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#else

static inline uint64_t ig_describe_lines(const void *tile) { return (uint64_t)((const char *)tile - ig_shared()); }
static inline uint64_t ig_move_lines(uint64_t tile, int bytes) { return tile + (uint64_t)bytes; }
static inline void ig_begin_group() {}
static inline void ig_end_group() {}
static inline void ig_show_lines() {}
template <class Read> static float ig_line_element(uint64_t at, Read read)
{
    at ^= (at >> 7 & 7) << 4;
    uint16_t bits;
    std::memcpy(&bits, ig_shared() + at, 2);
    return read(bits);
}
template <class Read> static void ig_emulate_lines(float *d, uint64_t a, uint64_t b, Read read)
{
    for (int i = 0; i < 32; ++i) {
        const int row = ig_warp() % 4 * 16 + ig_lane() / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + ig_lane() % 4 * 2 + i % 2;
        for (int term = 0; term < 16; ++term)
            d[i] += ig_line_element(a + (uint64_t)(row * 128 + term * 2), read) * ig_line_element(b + (uint64_t)(column * 128 + term * 2), read);
    }
}
template <class Read> static void ig_emulate_group(float *d, const uint32_t *a, uint64_t b, Read read)
{
    float own[2][16];
    for (int term = 0; term < 16; ++term)
        for (int half = 0; half < 2; ++half) {
            const uint32_t pair = ig_shuffle(a[term / 8 * 2 + half], ig_lane() / 4 * 4 + term % 8 / 2);
            own[half][term] = read((uint16_t)(pair >> 16 * (term % 2)));
        }
    for (int i = 0; i < 32; ++i) {
        const int column = i / 4 * 8 + ig_lane() % 4 * 2 + i % 2;
        for (int term = 0; term < 16; ++term) d[i] += own[i % 4 / 2][term] * ig_line_element(b + (uint64_t)(term * 128 + column * 2), read);
    }
}
static inline void ig_group_bf16(float *d, uint64_t a, uint64_t b) { ig_emulate_lines(d, a, b, ig_brain_value); }
static inline void ig_group_f16(float *d, uint64_t a, uint64_t b) { ig_emulate_lines(d, a, b, ig_half_value); }
static inline void ig_group_bf16_transposed(float *d, const uint32_t *a, uint64_t b) { ig_emulate_group(d, a, b, ig_brain_value); }
static inline void ig_group_f16_transposed(float *d, const uint32_t *a, uint64_t b) { ig_emulate_group(d, a, b, ig_half_value); }
#endif

template <int THREADS, int ROWS, int WIDE, class I>
static inline void ig_load_lines(uint16_t *to, const ig_matrix16<I> &from, I first, I last)
{
    constexpr int pieces = WIDE / 8, total = ROWS * pieces;
    static_assert(total % THREADS == 0 && THREADS % pieces == 0, "each thread keeps its column");
    const int thread = (int)threadIdx.x, piece = thread % pieces;
    IG_UNROLL
    for (int n = 0; n < total / THREADS; ++n) {
        const int row = thread / pieces + n * (THREADS / pieces);
        const bool valid = first + row < last;
        uint16_t *const line = to + piece / 8 * ROWS * 64 + row * 64;
        ig_cp_async16(line + ((piece % 8 ^ (row & 7)) << 3), from.at + (valid ? (first + row) * from.rows + piece * 8 : 0), valid);
    }
}

/* 16 queries to each of WARPS warps. ELSEWHERE keys make a tile where there is no such instruction. */
template <bool BRAIN, int WARPS, int DEPTH, int VALUES, int ELSEWHERE> struct ig_group_shape {
    static constexpr int warps = WARPS, tiles = 1, keys = 64, depth = DEPTH, values = VALUES, rows = WARPS * 16, threads = WARPS * 32;
    static constexpr int together = 64, q_size = rows * DEPTH, k_size = keys * DEPTH, v_size = keys * VALUES;
    static_assert(DEPTH % 64 == 0 && VALUES % 64 == 0 && WARPS % 4 == 0, "whole lines and groups");

    const uint16_t *own; /* the group's rows */

    template <class I> static inline void load_q(uint16_t *to, const ig_matrix16<I> &q, I first, I last)
    {
        ig_load_lines<threads, rows, DEPTH>(to, q, first, last);
    }
    template <class I> static inline void load_k(uint16_t *to, const ig_matrix16<I> &k, I first, I last)
    {
        ig_load_lines<threads, keys, DEPTH>(to, k, first, last);
    }
    template <class I> static inline void load_v(uint16_t *to, const ig_matrix16<I> &v, I first, I last)
    {
        ig_load_lines<threads, keys, VALUES>(to, v, first, last);
    }
    static inline void show_copies() { ig_show_lines(); }
    inline void keep(const uint16_t *tile) { own = tile + ig_warp() / 4 * 64 * 64; }
    inline void multiply(float (*scores)[8][4], const uint16_t *k) const
    {
        ig_begin_group();
        IG_UNROLL
        for (int d = 0; d < DEPTH / 16; ++d) {
            const uint64_t terms = ig_move_lines(ig_describe_lines(k), d / 4 * keys * 128 + d % 4 * 32);
            const uint64_t mine = ig_move_lines(ig_describe_lines(own), d / 4 * rows * 128 + d % 4 * 32);
            if (BRAIN) ig_group_bf16(&scores[0][0][0], mine, terms);
            else ig_group_f16(&scores[0][0][0], mine, terms);
        }
        ig_end_group();
    }
    inline void mix(float (*sums)[VALUES / 8][4], const float (*weights)[8][4], const uint16_t *v) const
    {
        uint32_t a[4][4];
        IG_UNROLL
        for (int n = 0; n < 4; ++n) ig_pack_fragment<BRAIN>(a[n], weights[0] + 2 * n);
        ig_begin_group();
        IG_UNROLL
        for (int n = 0; n < 4; ++n)
            IG_UNROLL
            for (int part = 0; part < VALUES / 64; ++part) {
                const uint64_t terms = ig_move_lines(ig_describe_lines(v), part * keys * 128 + n * 16 * 128);
                if (BRAIN) ig_group_bf16_transposed(&sums[0][part * 8][0], a[n], terms);
                else ig_group_f16_transposed(&sums[0][part * 8][0], a[n], terms);
            }
        ig_end_group();
    }
};

#else
template <bool BRAIN, int WARPS, int DEPTH, int VALUES, int ELSEWHERE>
using ig_group_shape = ig_attention_shape<BRAIN, WARPS, 1, ELSEWHERE, DEPTH, VALUES, true, IG_PIECES, IG_PIECES, IG_PIECES>;
#endif
