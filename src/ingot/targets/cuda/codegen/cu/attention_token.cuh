/* Attention of a few queries that share their keys, as a model that decodes has them: PARTS blocks, which are a cluster,
 * have a part of the keys each, and combine their sums through each other's shared memory. On GPUs without clusters,
 * the first block has all keys.
 *
 * A warp has 256 / DEPTH keys at a time, a lane 8 columns of one; what ROUNDS such times read is on its way at once. ONCE:
 * these are all keys. The functions of a step are those of attention.cuh; cell(i, column, sum) takes one sum.
 *
 * In a kernel whose blocks wait for each other anyway, parts are for blocks that are not a cluster: they leave their sums in
 * memory, and each block that needs the result combines them for itself. */
#if defined(IG_HOPPER) && !defined(IG_EMULATED)
static inline float ig_read_block(ig_place place)
{
    float found;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(found) : "r"(place) : "memory");
    return found;
}
#elif defined(IG_HOPPER)
static inline float ig_read_block(ig_place place)
{
    float found;
    std::memcpy(&found, place, sizeof found);
    return found;
}
#endif

#define IG_LN_2 0.693147181f /* exponents of 2, as exponents of e */

template <bool BRAIN> static inline float ig_low_half(uint32_t two) { return BRAIN ? ig_bf16_to_f32((uint16_t)two) : ig_f16_to_f32((uint16_t)two); }
template <bool BRAIN> static inline float ig_high_half(uint32_t two)
{
    if (!BRAIN) return ig_f16_to_f32((uint16_t)(two >> 16));
    union { uint32_t bits; float value; } made = {two & 0xffff0000u};
    return made.value;
}

/* PARTS parts of the keys, each for a block of WARPS warps. */
template <bool BRAIN, int DEPTH, int QUERIES, int WARPS, int PARTS, int ROUNDS, bool ONCE> struct ig_token_parts {
    static constexpr bool brain = BRAIN, once = ONCE;
    static constexpr int depth = DEPTH, queries = QUERIES, warps = WARPS, parts = PARTS, rounds = ROUNDS, threads = WARPS * 32;
    static constexpr int across = DEPTH / 8, at_once = 32 / across, line = DEPTH + 2; /* sums, their top and total */
};
#ifdef IG_HOPPER
template <bool BRAIN, int DEPTH, int QUERIES, int WARPS, int PARTS, int ROUNDS, bool ONCE>
using ig_token_shape = ig_token_parts<BRAIN, DEPTH, QUERIES, WARPS, PARTS, ROUNDS, ONCE>;
#else
template <bool BRAIN, int DEPTH, int QUERIES, int WARPS, int PARTS, int ROUNDS, bool ONCE>
using ig_token_shape = ig_token_parts<BRAIN, DEPTH, QUERIES, WARPS, 1, ROUNDS, false>;
#endif

/* Part `part` of the keys. keep(query, place, value) takes what the block has of it, each value by one thread: DEPTH sums
 * in units of weights to their own top, then this top, an exponent of 2, and their total. `own` is shared memory for
 * WARPS · QUERIES lines, and `meet` waits for the threads that share the work. */
template <class S, int FLAGS, class I, class Score, class Mask, class Meet, class Keep>
static inline void ig_attend_part(
    const ig_matrix16<I> &q, const ig_matrix16<I> &k, const ig_matrix16<I> &v, I keys, int part, float scale, float factor,
    const Score &score, const Mask &mask, float *own, const Meet &meet, const Keep &keep)
{
    constexpr int DEPTH = S::depth, QUERIES = S::queries, WARPS = S::warps, PARTS = S::parts, ROUNDS = S::rounds, ACROSS = S::across;
    constexpr int AT_ONCE = S::at_once, LINE = S::line, THREADS = S::threads;
    constexpr bool BRAIN = S::brain;
    using four = ig_vector<uint32_t, 4>;
    const int column = ig_lane() % ACROSS * 8, place = (part * WARPS + ig_warp()) * AT_ONCE * ROUNDS + ig_lane() / ACROSS;
    float tops[QUERIES], totals[QUERIES], sums[QUERIES][8];
    /* What the warp has of a query, to shared memory. */
    auto leave = [&](int g) {
        IG_UNROLL
        for (int by = ACROSS; by < 32; by *= 2) {
            totals[g] += ig_shuffle_xor(totals[g], by);
            IG_UNROLL
            for (int e = 0; e < 8; ++e) sums[g][e] += ig_shuffle_xor(sums[g][e], by);
        }
        if (ig_lane() < ACROSS) {
            float *const to = own + (ig_warp() * QUERIES + g) * LINE;
            IG_UNROLL
            for (int e = 0; e < 8; ++e) to[column + e] = sums[g][e];
            if (ig_lane() == 0) to[DEPTH] = tops[g], to[DEPTH + 1] = totals[g];
        }
    };
    IG_UNROLL
    for (int g = 0; g < QUERIES; ++g) {
        tops[g] = -INF_F32, totals[g] = 0;
        IG_UNROLL
        for (int e = 0; e < 8; ++e) sums[g][e] = 0;
    }
    for (I first = (I)place; S::once || first - ig_lane() / ACROSS < keys; first += (I)PARTS * WARPS * AT_ONCE * ROUNDS) {
        four ks[ROUNDS], vs[ROUNDS];
        /* Past the last key there is nothing to read: it stands for them. */
        auto key = [&](int r) { return first + r * AT_ONCE < keys ? first + r * AT_ONCE : keys - 1; };
        IG_UNROLL
        for (int r = 0; r < ROUNDS; ++r) ks[r] = ig_load_vector<uint32_t, 4>((const uint32_t *)(k.at + key(r) * k.rows + column));
        IG_UNROLL
        for (int r = 0; r < ROUNDS; ++r) vs[r] = ig_load_vector<uint32_t, 4>((const uint32_t *)(v.at + key(r) * v.rows + column));
        IG_UNROLL
        for (int g = 0; g < QUERIES; ++g) {
            const four query = ig_load_vector<uint32_t, 4>((const uint32_t *)(q.at + g * q.rows + column));
            float scores[ROUNDS], top = tops[g];
            IG_UNROLL
            for (int r = 0; r < ROUNDS; ++r) {
                float sum = 0;
                IG_UNROLL
                for (int n = 0; n < 4; ++n) {
                    sum = __builtin_fmaf(ig_low_half<BRAIN>(query.at[n]), ig_low_half<BRAIN>(ks[r].at[n]), sum);
                    sum = __builtin_fmaf(ig_high_half<BRAIN>(query.at[n]), ig_high_half<BRAIN>(ks[r].at[n]), sum);
                }
                IG_UNROLL
                for (int by = 1; by < ACROSS; by *= 2) sum += ig_shuffle_xor(sum, by);
                if constexpr ((FLAGS & IG_SCORE) != 0) sum = score((I)g, key(r), sum * scale);
                bool shown = first + r * AT_ONCE < keys;
                if constexpr ((FLAGS & IG_MASK) != 0) shown = shown && mask((I)g, key(r));
                scores[r] = shown ? sum * factor : -INF_F32;
                top = ig_max_nan(top, scores[r]);
            }
            IG_UNROLL
            for (int by = ACROSS; by < 32; by *= 2) top = ig_max_nan(top, ig_shuffle_xor(top, by));
            const float from = top == -INF_F32 ? 0.0f : top;
            if constexpr (!S::once) {
                const float shrink = ig_exp2_fast(tops[g] - from);
                totals[g] *= shrink;
                IG_UNROLL
                for (int e = 0; e < 8; ++e) sums[g][e] *= shrink;
            }
            tops[g] = top;
            IG_UNROLL
            for (int r = 0; r < ROUNDS; ++r) {
                const float w = ig_exp2_fast(scores[r] - from);
                totals[g] += w;
                IG_UNROLL
                for (int n = 0; n < 4; ++n) {
                    sums[g][2 * n] = __builtin_fmaf(w, ig_low_half<BRAIN>(vs[r].at[n]), sums[g][2 * n]);
                    sums[g][2 * n + 1] = __builtin_fmaf(w, ig_high_half<BRAIN>(vs[r].at[n]), sums[g][2 * n + 1]);
                }
            }
            if constexpr (S::once) leave(g);
        }
        if (S::once) break;
    }
    if constexpr (!S::once) {
        IG_UNROLL
        for (int g = 0; g < QUERIES; ++g) leave(g);
    }
    meet();
    for (int n = (int)threadIdx.x; n < QUERIES * LINE; n += THREADS) {
        const int g = n / LINE, c = n % LINE;
        const float *const parts = own + g * LINE;
        float top = parts[DEPTH], sum = 0;
        IG_UNROLL
        for (int w = 1; w < WARPS; ++w) top = ig_max_nan(top, parts[w * QUERIES * LINE + DEPTH]);
        const float from = top == -INF_F32 ? 0.0f : top;
        IG_UNROLL
        for (int w = 0; w < WARPS; ++w) {
            const float *const one = parts + w * QUERIES * LINE;
            sum = __builtin_fmaf(ig_exp2_fast(one[DEPTH] - from), one[c], sum);
        }
        keep(g, c, c == DEPTH ? top : sum);
    }
}

/* All parts of the keys, by a cluster of as many blocks. */
template <class S, int FLAGS, class I, class Score, class Mask, class Row, class Cell>
static inline void ig_attend_token(
    const ig_matrix16<I> &q, const ig_matrix16<I> &k, const ig_matrix16<I> &v, I keys, int part, float scale, float factor,
    const Score &score, const Mask &mask, const Row &row, const Cell &cell)
{
    constexpr int DEPTH = S::depth, QUERIES = S::queries, PARTS = S::parts, LINE = S::line, THREADS = S::threads;
    float *const own = (float *)ig_shared(), *const whole = own + S::warps * QUERIES * LINE;
    ig_attend_part<S, FLAGS>(q, k, v, keys, part, scale, factor, score, mask, own, [] { __syncthreads(); },
                             [&](int g, int c, float value) { whole[g * LINE + c] = value; });
    constexpr float unit = IG_LN_2;
#ifdef IG_HOPPER
    ig_arrive_at_cluster();
    ig_wait_for_cluster();
    for (int n = part * THREADS + (int)threadIdx.x; n < QUERIES * DEPTH; n += PARTS * THREADS) {
        const int g = n / DEPTH, c = n % DEPTH;
        const ig_place at = ig_place_of(whole + g * LINE);
        float each[PARTS], top = -INF_F32, total = 0, sum = 0;
        IG_UNROLL
        for (int one = 0; one < PARTS; ++one) {
            each[one] = ig_read_block(ig_place_in(at + DEPTH * 4, (unsigned)one));
            top = ig_max_nan(top, each[one]);
        }
        const float from = top == -INF_F32 ? 0.0f : top;
        IG_UNROLL
        for (int one = 0; one < PARTS; ++one) {
            const float w = ig_exp2_fast(each[one] - from);
            total = __builtin_fmaf(w, ig_read_block(ig_place_in(at + (DEPTH + 1) * 4, (unsigned)one)), total);
            sum = __builtin_fmaf(w, ig_read_block(ig_place_in(at + c * 4, (unsigned)one)), sum);
        }
        cell((I)g, (I)c, sum * row((I)g, top * unit, total, c == 0));
    }
    /* Nobody ends while others read its memory. */
    ig_arrive_at_cluster();
    ig_wait_for_cluster();
#else
    __syncthreads();
    for (int n = (int)threadIdx.x; n < QUERIES * DEPTH; n += THREADS) {
        const int g = n / DEPTH, c = n % DEPTH;
        cell((I)g, (I)c, whole[g * LINE + c] * row((I)g, whole[g * LINE + DEPTH] * unit, whole[g * LINE + DEPTH + 1], c == 0));
    }
#endif
}

/* Where blocks that are not a cluster leave their parts: sums by point, part and query, and tops and totals by point, query
 * and part. Another block reads them behind a barrier of the grid. */
template <class S> struct ig_kept_parts {
    float *sums, *numbers;

    inline void keep(int point, int part, int g, int c, float value) const
    {
        constexpr int PARTS = S::parts, QUERIES = S::queries, DEPTH = S::depth;
        if (c < DEPTH) sums[((point * PARTS + part) * QUERIES + g) * DEPTH + c] = value;
        else numbers[((point * QUERIES + g) * PARTS + part) * 2 + c - DEPTH] = value;
    }
    /* Sums of N columns of a query, combined; `top` is an exponent of e. All that it reads is on its way at once. */
    template <int N> inline void combine(int point, int g, int c, float *found, float &top, float &total) const
    {
        constexpr int PARTS = S::parts, QUERIES = S::queries, DEPTH = S::depth;
        ig_vector<float, 2> own[PARTS];
        ig_vector<float, N> each[PARTS];
        IG_UNROLL
        for (int p = 0; p < PARTS; ++p) own[p] = ig_load_vector<float, 2>(numbers + ((point * QUERIES + g) * PARTS + p) * 2);
        IG_UNROLL
        for (int p = 0; p < PARTS; ++p) each[p] = ig_load_vector<float, N>(sums + ((point * PARTS + p) * QUERIES + g) * DEPTH + c);
        top = own[0].at[0], total = 0;
        IG_UNROLL
        for (int p = 1; p < PARTS; ++p) top = ig_max_nan(top, own[p].at[0]);
        const float from = top == -INF_F32 ? 0.0f : top;
        IG_UNROLL
        for (int e = 0; e < N; ++e) found[e] = 0;
        IG_UNROLL
        for (int p = 0; p < PARTS; ++p) {
            const float w = ig_exp2_fast(own[p].at[0] - from);
            total = __builtin_fmaf(w, own[p].at[1], total);
            IG_UNROLL
            for (int e = 0; e < N; ++e) found[e] = __builtin_fmaf(w, each[p].at[e], found[e]);
        }
        top *= IG_LN_2;
    }
};
