/* Attention with a group of four warps that copies, by maps of tensors, and GROUPS that multiply, 64 queries each, on
 * Hopper's tensor cores. Queries, keys and values lie in shared memory in lines of 128 bytes, swizzled; wider rows are
 * several tiles, one behind another. Barriers signal when a tile of keys or of values has come, and when it was read.
 *
 * OVERLAPS: the next tile's scores are multiplied while weights of this one are computed. TURNS: groups take turns at
 * the tensor cores, so that one computes weights while another multiplies. MORE and FEWER are the registers of threads
 * that multiply and of those that copy. Functions of a step are those of attention.cuh; besides them
 *   copy_q(to, column, row, barrier)   copies a box of 64 columns of the queries' rows; so do copy_k and copy_v.
 */
#ifdef IG_HOPPER

#ifndef IG_EMULATED
#define IG_NUMBERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define IG_NUMBERS_64 IG_NUMBERS_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define IG_SUMS_8(c, d, n) c((d)[n]), c((d)[n + 1]), c((d)[n + 2]), c((d)[n + 3]), c((d)[n + 4]), c((d)[n + 5]), c((d)[n + 6]), c((d)[n + 7])
#define IG_SUMS_32(c, d, n) IG_SUMS_8(c, d, n), IG_SUMS_8(c, d, n + 8), IG_SUMS_8(c, d, n + 16), IG_SUMS_8(c, d, n + 24)
#define IG_SUMS_64(c, d, n) IG_SUMS_32(c, d, n), IG_SUMS_32(c, d, n + 32)
/* d = a · b, or d += a · b: 16 terms along the lines of both tiles. */
#define IG_BULK_PRODUCT(name, columns, types, numbers, a_and_b, adds, ...) \
    static inline void name(float (&d)[columns / 2], uint64_t a, uint64_t b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" numbers "}, " a_and_b ", " adds ", 1, 1, 0, 0;" \
                     : __VA_ARGS__ : "l"(a), "l"(b) : "memory"); \
    }
/* d += a · b: 16 terms of `a` in registers, those of `b` on 16 lines. */
#define IG_BULK_MIX(name, columns, types, numbers, a_and_b, ...) \
    static inline void name(float (&d)[columns / 2], const uint32_t *a, uint64_t b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" numbers "}, " a_and_b ", 1, 1, 1, 1;" \
                     : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory"); \
    }
#define IG_BULK_PRODUCTS(end, types) \
    IG_BULK_PRODUCT(ig_bulk_begin_##end, 64, types, IG_NUMBERS_32, "%32, %33", "0", IG_SUMS_32("=f", d, 0)) \
    IG_BULK_PRODUCT(ig_bulk_begin_##end, 128, types, IG_NUMBERS_64, "%64, %65", "0", IG_SUMS_64("=f", d, 0)) \
    IG_BULK_PRODUCT(ig_bulk_add_##end, 64, types, IG_NUMBERS_32, "%32, %33", "1", IG_SUMS_32("+f", d, 0)) \
    IG_BULK_PRODUCT(ig_bulk_add_##end, 128, types, IG_NUMBERS_64, "%64, %65", "1", IG_SUMS_64("+f", d, 0)) \
    IG_BULK_MIX(ig_bulk_mix_##end, 64, types, IG_NUMBERS_32, "{%32, %33, %34, %35}, %36", IG_SUMS_32("+f", d, 0)) \
    IG_BULK_MIX(ig_bulk_mix_##end, 128, types, IG_NUMBERS_64, "{%64, %65, %66, %67}, %68", IG_SUMS_64("+f", d, 0))
IG_BULK_PRODUCTS(bf16, "bf16.bf16")
IG_BULK_PRODUCTS(f16, "f16.f16")

/* A tile as the instruction takes it: eight swizzled lines are 1024 bytes; bytes from 64 columns to the next where it
   is transposed. */
static inline uint64_t ig_describe_bulk(ig_place tile, unsigned leading)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
static inline void ig_bulk_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static inline void ig_bulk_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static inline void ig_bulk_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
/* What products use stays in its registers here. */
template <int N> static inline void ig_pin(float (&d)[N])
{
    IG_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> static inline void ig_pin(uint32_t (&d)[N])
{
    IG_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
/* What totals were computed from is computed before what follows: ptxas moves a wait for products ahead of all that does
   not depend on them, and nothing would overlap. Totals are never negative: nothing is stored. */
static inline void ig_stay_before(const float (&total)[2])
{
    asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0; }" ::"f"(total[0] + total[1]),
                 "r"(ig_shared_address(ig_shared())) : "memory");
}
/* A barrier of some of the block's threads, of which some only arrive. */
static inline void ig_sync_turn(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
static inline void ig_arrive_turn(int number, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

#else

static inline uint64_t ig_describe_bulk(ig_place tile, unsigned leading)
{
    const uint64_t at = (uint64_t)(tile - ig_shared());
    if (at % 1024) ig_stop("a tile does not begin at a multiple of 1024 bytes");
    return at >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32;
}
static inline void ig_bulk_fence() {}
static inline void ig_bulk_commit() {}
template <int N> static inline void ig_bulk_wait() {}
template <class T> static inline void ig_pin(T &) {}
static inline void ig_stay_before(const float (&)[2]) {}
static int ig_turn_arrivals[16];
static unsigned ig_turn_phases[16];
static inline void ig_arrive_turn(int number, int threads)
{
    if (++ig_turn_arrivals[number] == threads) ig_turn_arrivals[number] = 0, ++ig_turn_phases[number];
}
static inline void ig_sync_turn(int number, int threads)
{
    const unsigned phase = ig_turn_phases[number];
    ig_arrive_turn(number, threads);
    ig_wait_until([](const ig_fiber &fiber) { return *(const unsigned *)fiber.where != fiber.phase; }, &ig_turn_phases[number], phase);
}
template <class Read> static float ig_bulk_element(uint64_t at, Read read)
{
    at ^= (at >> 7 & 7) << 4;
    uint16_t bits;
    std::memcpy(&bits, ig_shared() + at, 2);
    return read(bits);
}
template <int SUMS, class Read> static void ig_emulate_bulk(float (&d)[SUMS], uint64_t a, uint64_t b, bool adds, Read read)
{
    for (int i = 0; i < SUMS; ++i) {
        const int row = ig_warp() % 4 * 16 + ig_lane() / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + ig_lane() % 4 * 2 + i % 2;
        float sum = 0;
        for (int term = 0; term < 16; ++term)
            sum += ig_bulk_element(((a & 0x3fff) << 4) + (uint64_t)(row * 128 + term * 2), read) *
                   ig_bulk_element(((b & 0x3fff) << 4) + (uint64_t)(column * 128 + term * 2), read);
        d[i] = (adds ? d[i] : 0) + sum;
    }
}
template <int SUMS, class Read> static void ig_emulate_bulk_mix(float (&d)[SUMS], const uint32_t *a, uint64_t b, Read read)
{
    float own[2][16];
    for (int term = 0; term < 16; ++term)
        for (int half = 0; half < 2; ++half) {
            const uint32_t pair = ig_shuffle(a[term / 8 * 2 + half], ig_lane() / 4 * 4 + term % 8 / 2);
            own[half][term] = read((uint16_t)(pair >> 16 * (term % 2)));
        }
    for (int i = 0; i < SUMS; ++i) {
        const int column = i / 4 * 8 + ig_lane() % 4 * 2 + i % 2;
        const uint64_t at = ((b & 0x3fff) << 4) + (uint64_t)(column / 64) * ((b >> 16 & 0x3fff) << 4) + (uint64_t)(column % 64 * 2);
        for (int term = 0; term < 16; ++term) d[i] += own[i % 4 / 2][term] * ig_bulk_element(at + (uint64_t)(term * 128), read);
    }
}
#define IG_BULK_PRODUCTS(end, read) \
    template <int N> static inline void ig_bulk_begin_##end(float (&d)[N], uint64_t a, uint64_t b) { ig_emulate_bulk(d, a, b, false, read); } \
    template <int N> static inline void ig_bulk_add_##end(float (&d)[N], uint64_t a, uint64_t b) { ig_emulate_bulk(d, a, b, true, read); } \
    template <int N> static inline void ig_bulk_mix_##end(float (&d)[N], const uint32_t *a, uint64_t b) { ig_emulate_bulk_mix(d, a, b, read); }
IG_BULK_PRODUCTS(bf16, ig_brain_value)
IG_BULK_PRODUCTS(f16, ig_half_value)
#endif

template <bool BRAIN, int GROUPS, int KEYS, int DEPTH, int STAGES, bool OVERLAPS, bool TURNS, int MORE, int FEWER> struct ig_bulk_shape {
    static constexpr bool brain = BRAIN, overlaps = OVERLAPS, turns = TURNS;
    static constexpr int groups = GROUPS, keys = KEYS, depth = DEPTH, stages = STAGES, more = MORE, fewer = FEWER, rows = GROUPS * 64;
    static constexpr int q_bytes = rows * DEPTH * 2, tile_bytes = KEYS * DEPTH * 2;
    static_assert(DEPTH % 64 == 0, "whole lines");

    /* Scores of a tile. */
    static inline void multiply(float (&s)[KEYS / 2], ig_place q, ig_place k)
    {
        const uint64_t a = ig_describe_bulk(q, 16), b = ig_describe_bulk(k, 16);
        IG_UNROLL
        for (int d = 0; d < DEPTH / 16; ++d) {
            const uint64_t own = a + (d / 4 * rows * 128 + d % 4 * 32) / 16, other = b + (d / 4 * KEYS * 128 + d % 4 * 32) / 16;
            if (BRAIN && d == 0) ig_bulk_begin_bf16(s, own, other);
            else if (BRAIN) ig_bulk_add_bf16(s, own, other);
            else if (d == 0) ig_bulk_begin_f16(s, own, other);
            else ig_bulk_add_f16(s, own, other);
        }
    }
    /* Sums of values by weights, which are fragments of 16 keys, four registers each. */
    static inline void mix(float (&o)[DEPTH / 2], uint32_t (&w)[KEYS / 4], ig_place v)
    {
        const uint64_t b = ig_describe_bulk(v, KEYS * 128);
        IG_UNROLL
        for (int n = 0; n < KEYS / 16; ++n) {
            if (BRAIN) ig_bulk_mix_bf16(o, w + 4 * n, b + n * 16 * 128 / 16);
            else ig_bulk_mix_f16(o, w + 4 * n, b + n * 16 * 128 / 16);
        }
    }
    static inline void pack(uint32_t (&w)[KEYS / 4], const float (&s)[KEYS / 2])
    {
        IG_UNROLL
        for (int i = 0; i < KEYS / 4; ++i) w[i] = ig_pack16<BRAIN>(s[2 * i], s[2 * i + 1]);
    }
};

/* The largest scores and totals of a thread's two rows. */
template <class S, int FLAGS, class I> struct ig_bulk_softmax {
    float top[2], total[2], scale, factor;
    I own, queries, end; /* own: the row of the first half */

    /* Scores to weights; what earlier sums are to be multiplied with. */
    template <class Score, class Mask>
    inline void soften(float (&s)[S::keys / 2], float (&shrink)[2], I at, const Score &score, const Mask &mask)
    {
        constexpr int KEYS = S::keys;
        const I column = at + ig_lane() % 4 * 2;
        auto query = [&](int half) { return own + half * 8 < queries ? own + half * 8 : queries - 1; };
        if constexpr ((FLAGS & IG_SCORE) != 0) {
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                IG_UNROLL
                for (int e = 0; e < 4; ++e) {
                    const I j = column + n * 8 + e % 2;
                    if constexpr ((FLAGS & IG_FREE_SCORE) != 0) s[4 * n + e] = score(own, e / 2 * 8, column, n * 8 + e % 2, s[4 * n + e] * scale);
                    else s[4 * n + e] = score(query(e / 2), j < end ? j : end - 1, s[4 * n + e] * scale);
                }
        }
        if constexpr ((FLAGS & IG_MASK) != 0) {
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                IG_UNROLL
                for (int e = 0; e < 4; ++e) {
                    const I j = column + n * 8 + e % 2;
                    if (!((FLAGS & IG_FREE_MASK) ? mask(own + e / 2 * 8, j) : mask(query(e / 2), j < end ? j : end - 1))) s[4 * n + e] = -INF_F32;
                }
        }
        if (at + KEYS > end || ((FLAGS & IG_CAUSAL) && at + KEYS > own - ig_lane() / 4 + 1)) {
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                IG_UNROLL
                for (int e = 0; e < 4; ++e) {
                    const I j = column + n * 8 + e % 2;
                    if (j >= end || ((FLAGS & IG_CAUSAL) && j > own + e / 2 * 8)) s[4 * n + e] = -INF_F32;
                }
        }
        IG_UNROLL
        for (int half = 0; half < 2; ++half) {
            float best[2] = {top[half], -INF_F32};
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                best[n & 1] = ig_max_nan(best[n & 1], ig_max_nan(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
            float most = ig_max_nan(best[0], best[1]);
            most = ig_max_nan(most, ig_shuffle_xor(most, 1));
            most = ig_max_nan(most, ig_shuffle_xor(most, 2));
            /* While every score is -inf there is nothing to scale, and -inf - -inf would be nan. */
            const float from = most == -INF_F32 ? 0.0f : most * factor;
            shrink[half] = ig_exp2_fast(__builtin_fmaf(top[half], factor, -from));
            top[half] = most;
            float added[2] = {0, 0};
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                IG_UNROLL
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    s[4 * n + e] = ig_exp2_fast(__builtin_fmaf(s[4 * n + e], factor, -from));
                    added[e & 1] += s[4 * n + e];
                }
            total[half] = __builtin_fmaf(total[half], shrink[half], added[0] + added[1]);
        }
    }
};

/* Queries first … of a block, keys 0 … end, of which there is one at least. Scales as for ig_attend. */
template <class S, int FLAGS, class I, class CopyQ, class CopyK, class CopyV, class Score, class Mask, class Row, class Cells>
static inline void ig_attend_bulk(
    const CopyQ &copy_q, const CopyK &copy_k, const CopyV &copy_v, I queries, I first, I end, float scale, float factor, float unit,
    const Score &score, const Mask &mask, const Row &row, const Cells &cells)
{
    constexpr int GROUPS = S::groups, KEYS = S::keys, DEPTH = S::depth, STAGES = S::stages, TILE = S::tile_bytes;
    const ig_place q_at = ig_place_of(ig_shared()), k_at = q_at + S::q_bytes, v_at = k_at + STAGES * TILE;
    /* Barriers: the queries have come; keys have, values have; keys were read, values were. */
    const ig_place q_full = v_at + STAGES * TILE, k_full = q_full + 8, v_full = k_full + 8 * STAGES;
    const ig_place k_free = v_full + 8 * STAGES, v_free = k_free + 8 * STAGES;
    const int tiles = (int)((end + KEYS - 1) / KEYS), group = (int)threadIdx.x / 128;
    if (threadIdx.x == 0) {
        ig_set_up_barrier(q_full, 1);
        for (int s = 0; s < STAGES; ++s) {
            ig_set_up_barrier(k_full + 8 * s, 1), ig_set_up_barrier(v_full + 8 * s, 1);
            ig_set_up_barrier(k_free + 8 * s, GROUPS * 4), ig_set_up_barrier(v_free + 8 * s, GROUPS * 4);
        }
        ig_show_barriers();
    }
    ig_start_next();
    __syncthreads();
    ig_wait_for_previous();
    if (group == GROUPS) {
        ig_leave_registers<S::fewer>();
        if (threadIdx.x == GROUPS * 128) {
            ig_arrive_expecting(q_full, S::q_bytes);
            IG_UNROLL
            for (int c = 0; c < DEPTH / 64; ++c) copy_q(q_at + c * S::rows * 128, c * 64, (int)first, q_full);
            for (int t = 0; t < tiles; ++t) {
                const int s = t % STAGES;
                const unsigned phase = (unsigned)(t / STAGES & 1) ^ 1;
                ig_wait_at_barrier(k_free + 8 * s, phase);
                ig_arrive_expecting(k_full + 8 * s, TILE);
                IG_UNROLL
                for (int c = 0; c < DEPTH / 64; ++c) copy_k(k_at + s * TILE + c * KEYS * 128, c * 64, t * KEYS, k_full + 8 * s);
                ig_wait_at_barrier(v_free + 8 * s, phase);
                ig_arrive_expecting(v_full + 8 * s, TILE);
                IG_UNROLL
                for (int c = 0; c < DEPTH / 64; ++c) copy_v(v_at + s * TILE + c * KEYS * 128, c * 64, t * KEYS, v_full + 8 * s);
            }
        }
    } else {
        ig_take_registers<S::more>();
        const ig_place own = q_at + group * 64 * 128;
        ig_bulk_softmax<S, FLAGS, I> soft;
        soft.top[0] = soft.top[1] = -INF_F32;
        soft.total[0] = soft.total[1] = 0;
        soft.scale = scale, soft.factor = factor, soft.queries = queries, soft.end = end;
        soft.own = first + ig_warp() * 16 + ig_lane() / 4;
        float o[DEPTH / 2];
        IG_UNROLL
        for (int i = 0; i < DEPTH / 2; ++i) o[i] = 0;
        uint32_t w[KEYS / 4];
        float shrink[2];
        auto free_one = [&](ig_place barrier) {
            if (ig_lane() == 0) ig_arrive(barrier);
        };
        auto my_turn = [&] {
            if (S::turns) ig_sync_turn(1 + group, 256);
        };
        auto next_turn = [&] {
            if (S::turns) ig_arrive_turn(1 + (group + 1) % GROUPS, 256);
        };
        auto rescale = [&] {
            IG_UNROLL
            for (int i = 0; i < DEPTH / 2; ++i) o[i] *= shrink[i % 4 / 2];
        };
        if (S::turns && group == GROUPS - 1) ig_arrive_turn(1, 256);
        ig_wait_at_barrier(q_full, 0);
        if constexpr (S::overlaps) {
            {
                float s[KEYS / 2];
                ig_wait_at_barrier(k_full, 0);
                my_turn();
                ig_bulk_fence();
                S::multiply(s, own, k_at);
                ig_bulk_commit();
                next_turn();
                ig_bulk_wait<0>();
                ig_pin(s);
                free_one(k_free);
                soft.soften(s, shrink, (I)0, score, mask);
                S::pack(w, s);
            }
            _Pragma("unroll 1") for (int t = 1; t < tiles; ++t)
            {
                const int now = t % STAGES, before = (t - 1) % STAGES;
                float s[KEYS / 2];
                ig_wait_at_barrier(k_full + 8 * now, (unsigned)(t / STAGES & 1));
                my_turn();
                ig_pin(o), ig_pin(w);
                ig_bulk_fence();
                S::multiply(s, own, k_at + now * TILE);
                ig_bulk_commit();
                ig_wait_at_barrier(v_full + 8 * before, (unsigned)((t - 1) / STAGES & 1));
                ig_bulk_fence();
                S::mix(o, w, v_at + before * TILE);
                ig_bulk_commit();
                next_turn();
                ig_bulk_wait<1>();
                ig_pin(s);
                free_one(k_free + 8 * now);
                soft.soften(s, shrink, (I)t * KEYS, score, mask);
                ig_stay_before(soft.total);
                ig_bulk_wait<0>();
                ig_pin(o), ig_pin(w);
                free_one(v_free + 8 * before);
                rescale();
                S::pack(w, s);
            }
            const int last = (tiles - 1) % STAGES;
            ig_wait_at_barrier(v_full + 8 * last, (unsigned)((tiles - 1) / STAGES & 1));
            ig_pin(o), ig_pin(w);
            ig_bulk_fence();
            S::mix(o, w, v_at + last * TILE);
            ig_bulk_commit();
            ig_bulk_wait<0>();
            ig_pin(o);
        } else {
            _Pragma("unroll 1") for (int t = 0; t < tiles; ++t)
            {
                const int now = t % STAGES;
                const unsigned phase = (unsigned)(t / STAGES & 1);
                float s[KEYS / 2];
                ig_wait_at_barrier(k_full + 8 * now, phase);
                my_turn();
                ig_bulk_fence();
                S::multiply(s, own, k_at + now * TILE);
                ig_bulk_commit();
                ig_bulk_wait<0>();
                ig_pin(s);
                next_turn();
                free_one(k_free + 8 * now);
                soft.soften(s, shrink, (I)t * KEYS, score, mask);
                rescale();
                S::pack(w, s);
                ig_wait_at_barrier(v_full + 8 * now, phase);
                ig_pin(o), ig_pin(w);
                ig_bulk_fence();
                S::mix(o, w, v_at + now * TILE);
                ig_bulk_commit();
                ig_bulk_wait<0>();
                ig_pin(o);
                free_one(v_free + 8 * now);
            }
        }
        if (S::turns && group == 0) ig_sync_turn(1, 256); /* the last group's last turn */
        IG_UNROLL
        for (int half = 0; half < 2; ++half) {
            float whole = soft.total[half];
            whole += ig_shuffle_xor(whole, 1);
            whole += ig_shuffle_xor(whole, 2);
            const I i = soft.own + half * 8;
            if (i < queries) {
                const float share = row(i, soft.top[half] * unit, whole, ig_lane() % 4 == 0);
                IG_UNROLL
                for (int n = 0; n < DEPTH / 8; ++n)
                    cells(i, (I)(n * 8 + ig_lane() % 4 * 2), o[4 * n + 2 * half] * share, o[4 * n + 2 * half + 1] * share);
            }
        }
    }
}
#endif
