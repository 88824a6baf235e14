/* Products of matrices by tiles: what gemm.py and convolution.py write kernels of.
 *
 *   ig_matrix_tile, ig_window_tile    copy a tile of an operand to shared memory, by cp.async where it is aligned
 *   ig_tensor_sums, ig_simt_sums      multiply two such tiles, on tensor cores or by plain multiply-adds
 *   ig_warpgroup_sums                 the same by groups of four warps (wgmma.cuh)
 *   ig_run_pipeline                   copies ahead while it multiplies
 *   ig_finish_tile                    the sums, through shared memory, as runs of neighbouring columns
 *
 * A tile has ROWS rows (of the left operand, or columns of the right one) by TERMS terms of the sums. In shared memory
 * its lines lie along the terms, or, where the operand does ("across"), along the rows. Pieces of 16 bytes of a line are
 * swizzled by the number of the line, so that eight lines' pieces at one place lie in different banks.
 */

/* `vectors.cuh`, with the type of the elements as the pointer has it. */
template <int N, class T> static inline ig_vector<T, N> ig_load(const T *from) { return ig_load_vector<T, N>(from); }
template <int N, class T> static inline void ig_store(T *to, const ig_vector<T, N> &value) { ig_store_vector<T, N>(to, value); }

/* Floats, two at a time, as halves. */
template <int N> static inline void ig_store_bf16(uint16_t *to, const ig_vector<float, N> &value)
{
    ig_vector<uint32_t, N / 2> pairs;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pairs.at[i] = ig_pack_bf16(value.at[2 * i], value.at[2 * i + 1]);
    ig_store_vector<uint32_t, N / 2>((uint32_t *)to, pairs);
}
template <int N> static inline void ig_store_f16(uint16_t *to, const ig_vector<float, N> &value)
{
    ig_vector<uint32_t, N / 2> pairs;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pairs.at[i] = ig_pack_f16(value.at[2 * i], value.at[2 * i + 1]);
    ig_store_vector<uint32_t, N / 2>((uint32_t *)to, pairs);
}

/* sum + a · b, rounded once where the types are floats. */
static inline float ig_multiply_add(float a, float b, float sum) { return __builtin_fmaf(a, b, sum); }
static inline double ig_multiply_add(double a, double b, double sum) { return __builtin_fma(a, b, sum); }
template <class T> static inline T ig_multiply_add(T a, T b, T sum) { return (T)(sum + a * b); }

/* Tiles one after another in blocks of 8 rows of tiles: those that run at the same time share rows and columns. */
static inline void ig_place_tile(unsigned tile, unsigned down, unsigned across, unsigned *row, unsigned *column)
{
    const unsigned block = 8 * across, first = tile / block * 8, high = down - first < 8 ? down - first : 8;
    *row = first + tile % block % high;
    *column = tile % block / high;
}

template <int LINE> static inline int ig_swizzle(int line, int byte)
{
    constexpr int pieces = LINE / 16;
    static_assert(pieces > 0, "a line is whole pieces");
    const int turn = pieces >= 8 ? line & 7 : line / (8 / pieces) & (pieces - 1);
    return line * LINE + (((byte >> 4) ^ turn) << 4 | (byte & 15));
}

/* Where it is not valid, zeros; nothing is read then. */
template <int BYTES> static inline void ig_copy_piece(char *to, const void *from, bool valid)
{
    if constexpr (BYTES == 16) ig_cp_async16(to, from, valid);
    else if constexpr (BYTES == 8) ig_cp_async8(to, from, valid);
    else if constexpr (BYTES == 4) ig_cp_async4(to, from, valid);
    else if constexpr (BYTES == 2) *(uint16_t *)to = valid ? *(const uint16_t *)from : (uint16_t)0;
    else *(uint8_t *)to = valid ? *(const uint8_t *)from : (uint8_t)0;
}

/* A matrix: element (row, term) is at from + row · row_step + term · term_step; `rows` of the tile's rows are there.
   Copies take EACH neighbours along the lines. */
template <class T_, int ROWS_, int TERMS_, int EACH, bool ACROSS_, int THREADS> struct ig_matrix_tile {
    using T = T_;
    static constexpr int ROWS = ROWS_, TERMS = TERMS_, BYTES = ROWS * TERMS * (int)sizeof(T);
    static constexpr bool ACROSS = ACROSS_;
    static constexpr int LINES = ACROSS ? TERMS : ROWS, LENGTH = ACROSS ? ROWS : TERMS, LINE = LENGTH * (int)sizeof(T);
    static constexpr int EVERY = LENGTH / EACH, COPIES = LINES * EVERY, TIMES = (COPIES + THREADS - 1) / THREADS;
    const T *from;
    int64_t row_step, term_step;
    int rows;

    inline void copy(char *to, int64_t first, int64_t last) const
    {
#pragma unroll(TIMES > 16 ? 8 : TIMES) /* more would need more registers than there are */
        for (int i = 0; i < TIMES; ++i) {
            const int at = i * THREADS + (int)threadIdx.x;
            if (COPIES % THREADS != 0 && at >= COPIES) break;
            const int line = at / EVERY, place = at % EVERY * EACH;
            const int row = ACROSS ? place : line, term = ACROSS ? line : place;
            const bool valid = row < rows && first + term < last;
            const T *const source = from + (row * row_step + (first + term) * term_step);
            ig_copy_piece<EACH * (int)sizeof(T)>(to + ig_swizzle<LINE>(line, place * (int)sizeof(T)), source, valid);
        }
    }
};

/* How the rows of a convolution read its image: row (n, p…) and term (tap…, c) is the element
   n · image + Σ (p · stride + tap · dilation - padding) · step + c · channel, where that is inside `size`. */
struct ig_window {
    int64_t image, step[3], channel;
    int channels, size[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
};

/* Rows [top, top + rows) of a convolution. WHOLE: all terms of a tile are of one tap. */
template <class T_, class Index, int ROWS_, int TERMS_, int EACH, bool WHOLE, int THREADS> struct ig_window_tile {
    using T = T_;
    static constexpr int ROWS = ROWS_, TERMS = TERMS_, BYTES = ROWS * TERMS * (int)sizeof(T), LINE = TERMS * (int)sizeof(T);
    static constexpr bool ACROSS = false;
    static constexpr int EVERY = TERMS / EACH, COPIES = ROWS * EVERY, COUNT = (COPIES + THREADS - 1) / THREADS;
    const T *from;
    ig_window w;
    int64_t base[COUNT];
    int place[COUNT][3];

    inline ig_window_tile(const T *from_, const ig_window &w_, Index top, int rows) : from(from_), w(w_)
    {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int row = (i * THREADS + (int)threadIdx.x) / EVERY;
            Index rest = top + row;
            base[i] = 0;
#pragma unroll
            for (int d = 2; d >= 0; --d) {
                place[i][d] = (int)(rest % w.out[d]) * w.stride[d] - w.padding[d];
                rest /= w.out[d];
                base[i] += place[i][d] * w.step[d];
            }
            base[i] += (int64_t)rest * w.image;
            if (row >= rows) place[i][0] = -(1 << 30);
        }
    }

    inline void copy(char *to, int64_t first, int64_t last) const
    {
        const int begin = (int)first, end = (int)last;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = i * THREADS + (int)threadIdx.x;
            if (COPIES % THREADS != 0 && at >= COPIES) break;
            const int line = at / EVERY, within = at % EVERY * EACH;
            const int tap = (WHOLE ? begin : begin + within) / w.channels, c = begin + within - tap * w.channels;
            const int taps[3] = {tap / (w.kernel[1] * w.kernel[2]), tap / w.kernel[2] % w.kernel[1], tap % w.kernel[2]};
            bool valid = begin + within < end;
            int64_t offset = base[i] + c * w.channel;
#pragma unroll
            for (int d = 0; d < 3; ++d) {
                const int moved = taps[d] * w.dilation[d];
                valid = valid && (unsigned)(place[i][d] + moved) < (unsigned)w.size[d];
                offset += moved * w.step[d];
            }
            ig_copy_piece<EACH * (int)sizeof(T)>(to + ig_swizzle<LINE>(line, within * (int)sizeof(T)), from + offset, valid);
        }
    }
};

/* Copies tiles ahead of the one that is multiplied, and of those whose products may still be under way (Sums::LAG).
   Sums that are computed while the threads go on begin before the next copies, others after them.
   WEIGHTS are operands (1: a, 2: b) that no kernel of the call writes: their first tiles are copied before the kernel
   before this one has ended. */
template <int STAGES, int WEIGHTS, class Sums, class A, class B>
static inline void ig_run_pipeline(Sums &sums, const A &a, const B &b, int64_t first, int64_t last)
{
    constexpr int TERMS = A::TERMS, STAGE = A::BYTES + B::BYTES, AHEAD = STAGES - 1 - Sums::LAG;
    static_assert(A::TERMS == B::TERMS && AHEAD > 0, "tiles of as many terms, and one ahead");
    char *const shared = ig_shared();
    const int steps = (int)((last - first + TERMS - 1) / TERMS);
#pragma unroll 1
    for (int s = 0; s < AHEAD; ++s)
        if (s < steps) {
            if (WEIGHTS & 1) a.copy(shared + s * STAGE, first + s * TERMS, last);
            if (WEIGHTS & 2) b.copy(shared + s * STAGE + A::BYTES, first + s * TERMS, last);
        }
    ig_wait_for_previous();
#pragma unroll 1
    for (int s = 0; s < AHEAD; ++s) {
        if (s < steps) {
            if (!(WEIGHTS & 1)) a.copy(shared + s * STAGE, first + s * TERMS, last);
            if (!(WEIGHTS & 2)) b.copy(shared + s * STAGE + A::BYTES, first + s * TERMS, last);
        }
        ig_cp_async_commit();
    }
    int slot = 0, next = AHEAD;
    for (int step = 0; step < steps; ++step) {
        ig_cp_async_wait<AHEAD - 1>();
        Sums::show_copies();
        __syncthreads();
        const char *const now = shared + slot * STAGE;
        sums.begin(now, now + A::BYTES);
        if (step + AHEAD < steps) {
            const int64_t at = first + (int64_t)(step + AHEAD) * TERMS;
            a.copy(shared + next * STAGE, at, last);
            b.copy(shared + next * STAGE + A::BYTES, at, last);
        }
        ig_cp_async_commit();
        sums.end(now, now + A::BYTES);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    sums.finish();
    ig_cp_async_wait<0>();
    __syncthreads();
}

/* `round`: what becomes of a register of a fragment before it is multiplied. */
struct ig_multiply_exactly {
    static inline uint32_t round(uint32_t bits) { return bits; }
};
struct ig_multiply_bf16 : ig_multiply_exactly {
    using Sum = float;
    static inline void add(float *d, const uint32_t *a, const uint32_t *b) { ig_mma_bf16(d, a, b); }
};
struct ig_multiply_f16 : ig_multiply_exactly {
    using Sum = float;
    static inline void add(float *d, const uint32_t *a, const uint32_t *b) { ig_mma_f16(d, a, b); }
};
struct ig_multiply_tf32 {
    using Sum = float;
    static inline uint32_t round(uint32_t bits) { return ig_round_tf32(bits); }
    static inline void add(float *d, const uint32_t *a, const uint32_t *b) { ig_mma_tf32(d, a, b); }
};
struct ig_multiply_s8 : ig_multiply_exactly {
    using Sum = int;
    static inline void add(int *d, const uint32_t *a, const uint32_t *b) { ig_mma_s8(d, a, b); }
};

/* DOWN × ALONG warps; each has its part of the tile in fragments of 16×8. An instruction takes 32 bytes of terms,
   whatever their type. Only 16-bit elements may lie across. */
template <class Multiply, class A, class B, int DOWN, int ALONG> struct ig_tensor_sums {
    using Sum = typename Multiply::Sum;
    static constexpr int HIGH = A::ROWS / DOWN, WIDE = B::ROWS / ALONG, M = HIGH / 16, N = WIDE / 8;
    static constexpr int DEPTH = A::TERMS * (int)sizeof(typename A::T) / 32;
    static_assert(HIGH % 16 == 0 && WIDE % 16 == 0, "whole fragments");
    static constexpr int LAG = 0;
    Sum sums[M][N][4];

    inline ig_tensor_sums()
    {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
    static inline void show_copies() {}
    inline void begin(const char *, const char *) {}
    inline void finish() {}
    static inline void load_a(uint32_t (&to)[M][4], const char *tile, int depth)
    {
        const int lane = ig_lane(), top = ig_warp() / ALONG * HIGH;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            if constexpr (A::ACROSS) {
                const int term = depth * 16 + lane / 16 * 8 + lane % 8, row = top + m * 16 + lane / 8 % 2 * 8;
                ig_ldmatrix4_transposed(to[m], tile + ig_swizzle<A::LINE>(term, row * 2));
            } else {
                ig_ldmatrix4(to[m], tile + ig_swizzle<A::LINE>(top + m * 16 + lane % 16, depth * 32 + lane / 16 * 16));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) to[m][i] = Multiply::round(to[m][i]);
        }
    }
    static inline void load_b(uint32_t (&to)[N][2], const char *tile, int depth)
    {
        const int lane = ig_lane(), left = ig_warp() % ALONG * WIDE;
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t pair[4];
            if constexpr (B::ACROSS) {
                const int term = depth * 16 + lane / 8 % 2 * 8 + lane % 8, column = left + n * 8 + lane / 16 * 8;
                ig_ldmatrix4_transposed(pair, tile + ig_swizzle<B::LINE>(term, column * 2));
            } else {
                const int column = left + n * 8 + lane / 16 * 8 + lane % 8;
                ig_ldmatrix4(pair, tile + ig_swizzle<B::LINE>(column, depth * 32 + lane / 8 % 2 * 16));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) to[n + i / 2][i % 2] = Multiply::round(pair[i]);
        }
    }
    inline void end(const char *a, const char *b)
    {
        /* Fragments of the next terms are loaded while these are multiplied, where registers are left for them. */
        constexpr int AHEAD = M * N < 32 ? 1 : 0;
        uint32_t left[1 + AHEAD][M][4], right[1 + AHEAD][N][2];
        if (AHEAD) {
            load_a(left[0], a, 0);
            load_b(right[0], b, 0);
        }
#pragma unroll
        for (int depth = 0; depth < DEPTH; ++depth) {
            const int now = AHEAD ? depth & 1 : 0, next = AHEAD ? now ^ 1 : 0;
            if (depth + AHEAD < DEPTH) {
                load_a(left[next], a, depth + AHEAD);
                load_b(right[next], b, depth + AHEAD);
            }
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < N; ++n) Multiply::add(sums[m][n], left[now][m], right[now][n]);
        }
    }
    /* Into rows of COLUMNS + 8 sums. */
    inline void spread(Sum *tile) const
    {
        const int lane = ig_lane();
        const int top = ig_warp() / ALONG * HIGH + lane / 4, first = ig_warp() % ALONG * WIDE + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    ig_vector<Sum, 2> pair = {{sums[m][n][half * 2], sums[m][n][half * 2 + 1]}};
                    ig_store<2>(tile + (top + m * 16 + half * 8) * (B::ROWS + 8) + first + n * 8, pair);
                }
    }
};

/* Each of (rows / DOWN) × (columns / ALONG) threads has DOWN × ALONG sums, of rows and columns that lie apart: what
   the threads of a warp read at a time are neighbours. */
template <class Sum_, class A, class B, int DOWN, int ALONG, class WidenA, class WidenB> struct ig_simt_sums {
    using Sum = Sum_;
    static constexpr int HIGH = A::ROWS / DOWN, WIDE = B::ROWS / ALONG;
    static constexpr int EACH = 16 / (int)(sizeof(typename A::T) > sizeof(typename B::T) ? sizeof(typename A::T) : sizeof(typename B::T));
    static_assert(!A::ACROSS && !B::ACROSS, "lines lie along the terms");
    static constexpr int LAG = 0;
    Sum sums[DOWN][ALONG];
    WidenA widen_a;
    WidenB widen_b;
    int row, column;

    static inline void show_copies() {}
    inline void begin(const char *, const char *) {}
    inline void finish() {}
    inline ig_simt_sums(WidenA widen_a_, WidenB widen_b_) : widen_a(widen_a_), widen_b(widen_b_)
    {
        /* A warp takes 4 × 8 threads, or what the tile has. */
        constexpr int across = WIDE < 8 ? WIDE : 8, down = 32 / across;
        const int warps = WIDE / across, lane = ig_lane();
        row = ig_warp() / warps * down + lane / across;
        column = ig_warp() % warps * across + lane % across;
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ALONG; ++j) sums[i][j] = 0;
    }
    inline void end(const char *a, const char *b)
    {
        using TA = typename A::T;
        using TB = typename B::T;
#pragma unroll(2)
        for (int term = 0; term < A::TERMS; term += EACH) {
            Sum left[DOWN][EACH];
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                const auto found = ig_load<EACH>((const TA *)(a + ig_swizzle<A::LINE>(row + i * HIGH, term * (int)sizeof(TA))));
#pragma unroll
                for (int e = 0; e < EACH; ++e) left[i][e] = (Sum)widen_a(found.at[e]);
            }
#pragma unroll
            for (int j = 0; j < ALONG; ++j) {
                const auto found = ig_load<EACH>((const TB *)(b + ig_swizzle<B::LINE>(column + j * WIDE, term * (int)sizeof(TB))));
#pragma unroll
                for (int e = 0; e < EACH; ++e) {
                    const Sum right = (Sum)widen_b(found.at[e]);
#pragma unroll
                    for (int i = 0; i < DOWN; ++i) sums[i][j] = ig_multiply_add(left[i][e], right, sums[i][j]);
                }
            }
        }
    }
    inline void spread(Sum *tile) const
    {
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ALONG; ++j) tile[(row + i * HIGH) * (B::ROWS + 8) + column + j * WIDE] = sums[i][j];
    }
};

/* Each run of EACH neighbouring columns of a tile of sums: finish(row, column, sums, fetch(row, column)). Neighbouring
   threads take neighbouring runs of a row, or, with DOWN, of a column. What a few runs read is under way at a time. */
template <int ROWS, int COLUMNS, int EACH, int THREADS, bool DOWN, class Sum, class Fetch, class Finish>
static inline void ig_finish_tile(const Sum *tile, int rows, int columns, Fetch fetch, Finish finish)
{
    constexpr int RUNS = COLUMNS / EACH, BATCH = 4;
#pragma unroll 1
    for (int first = (int)threadIdx.x; first < ROWS * RUNS; first += BATCH * THREADS) {
        decltype(fetch(0, 0)) given[BATCH];
        int row[BATCH], column[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int at = first + i * THREADS;
            row[i] = DOWN ? at % ROWS : at / RUNS, column[i] = (DOWN ? at / ROWS : at % RUNS) * EACH;
            if (row[i] < rows && column[i] < columns) given[i] = fetch(row[i], column[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (row[i] < rows && column[i] < columns) {
                const ig_vector<Sum, EACH> sums = ig_load<EACH>(tile + row[i] * (COLUMNS + 8) + column[i]);
                finish(row[i], column[i], sums.at, given[i]);
            }
    }
}
