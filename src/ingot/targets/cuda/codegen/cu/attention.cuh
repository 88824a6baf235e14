/* softmax(score(scale · q · k) where mask) · v for 16-bit elements: a warp has TILES times 16 queries, keys and values
 * come in tiles of KEYS, two of which lie in shared memory: one that is worked on, one that is being copied.
 *
 * The functions that a step gives:
 *   score(i, j, value) and mask(i, j)      its bodies; with IG_FREE_SCORE a score's places are sums of two numbers, of
 *                                          which the first is one for all scores of a thread in a tile
 *   kind(block of queries, block of keys)  0, 1, 2: what the table of blocks says
 *   row(i, top, total, leads) -> share     once for each query: the largest score, and the sum of weights to it; what
 *                                          sums are multiplied with. One lane of four leads.
 *   cells(i, column, a, b)                 two sums of a row, of which the second may lie past the last column
 */
template <bool BRAIN, int WARPS, int TILES, int KEYS, int DEPTH, int VALUES, bool KEPT, int Q_MODE, int K_MODE, int V_MODE, int IDLE = 0>
struct ig_attention_shape {
    static constexpr bool brain = BRAIN, kept = KEPT;
    static constexpr int warps = WARPS, tiles = TILES, keys = KEYS, depth = DEPTH, values = VALUES;
    static constexpr int rows = WARPS * TILES * 16, threads = (WARPS + IDLE) * 32; /* idle warps copy only */
    static constexpr int together = TILES * 16; /* rows that are skipped together */
    static constexpr int q_size = rows * ig_pitch(DEPTH), k_size = KEYS * ig_pitch(DEPTH), v_size = KEYS * ig_pitch(VALUES);

    uint32_t fragments[TILES][KEPT ? ig_padded(DEPTH) / 16 : 1][4]; /* of the own rows */
    const uint16_t *own;

    template <class I> static inline void load_q(uint16_t *to, const ig_matrix16<I> &q, I first, I last)
    {
        ig_load_tile<threads, rows, DEPTH, Q_MODE>(to, q, first, last);
    }
    template <class I> static inline void load_k(uint16_t *to, const ig_matrix16<I> &k, I first, I last)
    {
        ig_load_tile<threads, KEYS, DEPTH, K_MODE>(to, k, first, last);
    }
    template <class I> static inline void load_v(uint16_t *to, const ig_matrix16<I> &v, I first, I last)
    {
        ig_load_tile<threads, KEYS, VALUES, V_MODE>(to, v, first, last);
    }
    static inline void show_copies() {}
    inline void keep(const uint16_t *tile)
    {
        own = tile + ig_warp() * TILES * 16 * ig_pitch(DEPTH) + ig_own_offset(ig_pitch(DEPTH));
        ig_keep_fragments<TILES, DEPTH, KEPT>(fragments, own);
    }
    inline void multiply(float (*scores)[KEYS / 8][4], const uint16_t *k) const
    {
        ig_multiply_rows<BRAIN, TILES, KEYS, DEPTH, KEPT>(scores, fragments, own, k + ig_other_offset(ig_pitch(DEPTH)));
    }
    inline void mix(float (*sums)[ig_padded(VALUES) / 8][4], const float (*weights)[KEYS / 8][4], const uint16_t *v) const
    {
        ig_mix_rows<BRAIN, TILES, KEYS, VALUES>(sums, weights, v + ig_mixed_offset(ig_pitch(VALUES)));
    }
};

/* The first tile from `at` on of which any row of the block [first, first + ROWS) sees a key. */
template <int FLAGS, int ROWS, int KEYS, class I, class Kind>
static inline I ig_next_tile(I at, I end, I first, I queries, const Kind &kind)
{
    if constexpr ((FLAGS & IG_BLOCKS) != 0) {
        for (; at < end; at += KEYS) {
            int any = 0;
            for (I row = first; row < first + ROWS && row < queries; row += IG_BLOCK)
                any |= kind(row / IG_BLOCK, at / IG_BLOCK);
            if (any) break;
        }
    }
    return at;
}

/* Weights of a tile's scores, in place; what was summed up before is scaled to the new maximum. `factor` is what scores
 * are multiplied with to become exponents of 2. */
template <int TILES, int KEYS, int WIDE>
static inline void ig_soften(float (*scores)[KEYS / 8][4], float (*top)[2], float (*total)[2], float (*sums)[WIDE / 8][4], float factor)
{
    IG_UNROLL
    for (int m = 0; m < TILES; ++m) {
        float scale[2];
        IG_UNROLL
        for (int half = 0; half < 2; ++half) {
            float best = top[m][half];
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                best = ig_max_nan(best, ig_max_nan(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            best = ig_max_nan(best, ig_shuffle_xor(best, 1));
            best = ig_max_nan(best, ig_shuffle_xor(best, 2));
            /* While every score is -inf there is nothing to scale, and -inf - -inf would be nan. */
            const float from = best == -INF_F32 ? 0.0f : best * factor;
            scale[half] = ig_exp2_fast(top[m][half] * factor - from);
            top[m][half] = best;
            float added = 0;
            IG_UNROLL
            for (int n = 0; n < KEYS / 8; ++n)
                IG_UNROLL
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    scores[m][n][e] = ig_exp2_fast(__builtin_fmaf(scores[m][n][e], factor, -from));
                    added += scores[m][n][e];
                }
            total[m][half] = total[m][half] * scale[half] + added;
        }
        if (ig_ballot((scale[0] != 1) | (scale[1] != 1))) {
            IG_UNROLL
            for (int n = 0; n < WIDE / 8; ++n)
                IG_UNROLL
                for (int e = 0; e < 4; ++e) sums[m][n][e] *= scale[e / 2];
        }
    }
}

/* Queries first … of a block, keys begin … end. Scores are the products times `scale`; where there is no body, and
 * the scale is positive, it is a part of `factor` instead, and `unit` turns a maximum of products to one of scores. */
template <class S, int FLAGS, class I, class Score, class Mask, class Kind, class Row, class Cells>
static inline void ig_attend(
    const ig_matrix16<I> &q, const ig_matrix16<I> &k, const ig_matrix16<I> &v, I queries, I first, I begin, I end, float scale,
    float factor, float unit, const Score &score, const Mask &mask, const Kind &kind, const Row &row, const Cells &cells)
{
    constexpr int wide = ig_padded(S::values);
    uint16_t *const own = (uint16_t *)ig_shared(), *const stages = own + S::q_size;
    const int warp_row = ig_warp() * S::tiles * 16, group_row = warp_row / S::together * S::together;
    auto load = [&](int stage, I at) {
        uint16_t *const to = stages + stage * (S::k_size + S::v_size);
        S::load_k(to, k, at, end);
        S::load_v(to + S::k_size, v, at, end);
        ig_cp_async_commit();
    };
    float sums[S::tiles][wide / 8][4] = {}, top[S::tiles][2], total[S::tiles][2] = {};
    IG_UNROLL
    for (int m = 0; m < S::tiles; ++m) top[m][0] = top[m][1] = -INF_F32;
    const I own_row = first + warp_row + ig_lane() / 4;
    /* Past the last query there is nothing to read: it stands for them. */
    auto query = [&](int m, int half) { return own_row + m * 16 + half * 8 < queries ? own_row + m * 16 + half * 8 : queries - 1; };
    const bool works = S::threads == S::warps * 32 || ig_warp() < S::warps;
    I at = ig_next_tile<FLAGS, S::rows, S::keys>(begin, end, first, queries, kind);
    if (at < end) {
        S::load_q(own, q, first, queries);
        load(0, at);
        ig_cp_async_wait<0>();
        S::show_copies();
        __syncthreads();
        S engine;
        if (works) engine.keep(own);
        for (int stage = 0;; stage ^= 1) {
            ig_cp_async_wait<0>();
            S::show_copies();
            __syncthreads(); /* the tile has come, and the one before it is no longer read */
            const I next = ig_next_tile<FLAGS, S::rows, S::keys>(at + S::keys, end, first, queries, kind);
            if (next < end) load(stage ^ 1, next);
            int shown = 1;
            if constexpr ((FLAGS & IG_BLOCKS) != 0)
                shown = works && first + group_row < queries ? kind((first + group_row) / IG_BLOCK, at / IG_BLOCK) : 0;
            if ((FLAGS & IG_CAUSAL) && at >= first + group_row + S::together) shown = 0;
            if (shown && works) {
                const uint16_t *const k_tile = stages + stage * (S::k_size + S::v_size), *const v_tile = k_tile + S::k_size;
                float scores[S::tiles][S::keys / 8][4] = {};
                engine.multiply(scores, k_tile);
                const I column = at + ig_lane() % 4 * 2;
                if constexpr ((FLAGS & IG_SCORE) != 0) {
                    IG_UNROLL
                    for (int n = 0; n < S::keys / 8; ++n)
                        IG_UNROLL
                        for (int e = 0; e < 4; ++e) {
                            const I j = column + n * 8 + e % 2;
                            IG_UNROLL
                            for (int m = 0; m < S::tiles; ++m)
                                if constexpr ((FLAGS & IG_FREE_SCORE) != 0)
                                    scores[m][n][e] = score(own_row, m * 16 + e / 2 * 8, column, n * 8 + e % 2, scores[m][n][e] * scale);
                                else scores[m][n][e] = score(query(m, e / 2), j < end ? j : end - 1, scores[m][n][e] * scale);
                        }
                }
                if constexpr ((FLAGS & IG_MASK) != 0) {
                    if (!(FLAGS & IG_BLOCKS) || shown == 1) {
                        IG_UNROLL
                        for (int n = 0; n < S::keys / 8; ++n)
                            IG_UNROLL
                            for (int e = 0; e < 4; ++e) {
                                const I j = column + n * 8 + e % 2;
                                IG_UNROLL
                                for (int m = 0; m < S::tiles; ++m)
                                    if (!((FLAGS & IG_FREE_MASK) ? mask(own_row + m * 16 + e / 2 * 8, j) : mask(query(m, e / 2), j < end ? j : end - 1)))
                                        scores[m][n][e] = -INF_F32;
                            }
                    }
                }
                if (at + S::keys > end || ((FLAGS & IG_CAUSAL) && at + S::keys > first + warp_row + 1)) {
                    IG_UNROLL
                    for (int n = 0; n < S::keys / 8; ++n)
                        IG_UNROLL
                        for (int e = 0; e < 4; ++e) {
                            const I j = column + n * 8 + e % 2;
                            IG_UNROLL
                            for (int m = 0; m < S::tiles; ++m)
                                if (j >= end || ((FLAGS & IG_CAUSAL) && j > own_row + m * 16 + e / 2 * 8)) scores[m][n][e] = -INF_F32;
                        }
                }
                ig_soften<S::tiles, S::keys, wide>(scores, top, total, sums, factor);
                engine.mix(sums, scores, v_tile);
            }
            if (next >= end) break;
            at = next;
        }
    }
    ig_start_next();
    if (!works) return;
    IG_UNROLL
    for (int m = 0; m < S::tiles; ++m)
        IG_UNROLL
        for (int half = 0; half < 2; ++half) {
            float whole = total[m][half];
            whole += ig_shuffle_xor(whole, 1);
            whole += ig_shuffle_xor(whole, 2);
            const I i = first + ig_warp() * S::tiles * 16 + ig_lane() / 4 + m * 16 + half * 8;
            if (i < queries) {
                const float share = row(i, top[m][half] * unit, whole, ig_lane() % 4 == 0);
                IG_UNROLL
                for (int n = 0; n < wide / 8; ++n) {
                    const int column = n * 8 + ig_lane() % 4 * 2;
                    if (column < S::values) cells(i, (I)column, sums[m][n][2 * half] * share, sums[m][n][2 * half + 1] * share);
                }
            }
        }
}
