/* Attention's gradient, by rows of one side: queries (dq), or keys (dk, dv). A block has rows of its own, x of DEPTH and
 * y of VALUES elements, and goes along the rows of the other side, u and w: a pair has the product x · u and the slope
 * y · w. From these the step's body gives the product's gradient and the pair's weight, and the sums are
 *   first += gradient · u        second += weight · w
 *
 *   pair(own, other, product, slope, gradient, weight)   the body; masked(…) the same where the mask hides some pairs
 *   kind(block of own rows, block of others)             0, 1, 2: what the table of blocks says
 */
template <bool BRAIN, int WARPS, int OTHERS, int DEPTH, int VALUES, bool FIRST, bool SECOND, int X_MODE, int Y_MODE, int U_MODE, int W_MODE>
struct ig_gradient_shape {
    static constexpr bool brain = BRAIN, has_first = FIRST, has_second = SECOND;
    static constexpr int others = OTHERS, depth = DEPTH, values = VALUES, rows = WARPS * 16, threads = WARPS * 32;
    static constexpr int x_mode = X_MODE, y_mode = Y_MODE, u_mode = U_MODE, w_mode = W_MODE;
    static constexpr int x_size = rows * ig_pitch(DEPTH), y_size = rows * ig_pitch(VALUES);
    static constexpr int u_size = OTHERS * ig_pitch(DEPTH), w_size = OTHERS * ig_pitch(VALUES);
    static constexpr int first_wide = FIRST ? ig_padded(DEPTH) : 8, second_wide = SECOND ? ig_padded(VALUES) : 8;
    float first[1][first_wide / 8][4] = {}, second[1][second_wide / 8][4] = {};
};

/* A block's own rows, to shared memory. */
template <class S, class I> static inline void ig_load_own(const ig_matrix16<I> &x, const ig_matrix16<I> &y, I first, I rows)
{
    uint16_t *const to = (uint16_t *)ig_shared();
    ig_load_tile<S::threads, S::rows, S::depth, S::x_mode>(to, x, first, rows);
    ig_load_tile<S::threads, S::rows, S::values, S::y_mode>(to + S::x_size, y, first, rows);
    ig_cp_async_commit();
}

template <class S, class I, class Pair>
static inline void ig_evaluate_pairs(
    float (*products)[4], float (*slopes)[4], const I *own, I column, I others, float scale, const Pair &pair)
{
    IG_UNROLL
    for (int n = 0; n < S::others / 8; ++n)
        IG_UNROLL
        for (int e = 0; e < 4; ++e) {
            const I place = column + n * 8 + e % 2;
            const bool counts = place < others;
            float gradient = 0, weight = 0;
            pair(own[e / 2], counts ? place : others - 1, products[n][e] * scale, slopes[n][e], gradient, weight);
            products[n][e] = counts ? gradient : 0;
            slopes[n][e] = counts ? weight : 0;
        }
}

/* Adds what all of the other side's rows give, at one point of the batch, to the block's sums. */
template <class S, int FLAGS, class I, class Pair, class Masked, class Kind>
static inline void ig_differentiate(
    S &sums, const ig_matrix16<I> &u, const ig_matrix16<I> &w, I rows, I first, I others, float scale, const Pair &pair,
    const Masked &masked, const Kind &kind)
{
    uint16_t *const own_x = (uint16_t *)ig_shared(), *const own_y = own_x + S::x_size, *const stages = own_y + S::y_size;
    const int warp_row = ig_warp() * 16;
    auto load = [&](int stage, I at) {
        uint16_t *const to = stages + stage * (S::u_size + S::w_size);
        ig_load_tile<S::threads, S::others, S::depth, S::u_mode>(to, u, at, others);
        ig_load_tile<S::threads, S::others, S::values, S::w_mode>(to + S::u_size, w, at, others);
        ig_cp_async_commit();
    };
    I own[2];
    IG_UNROLL
    for (int half = 0; half < 2; ++half) {
        const I row = first + warp_row + half * 8 + ig_lane() / 4;
        own[half] = row < rows ? row : rows - 1;
    }
    I at = ig_next_tile<FLAGS, S::rows, S::others>((I)0, others, first, rows, kind);
    __syncthreads(); /* tiles of the point before are no longer read */
    if (at < others) load(0, at);
    for (int stage = 0; at < others; stage ^= 1) {
        ig_cp_async_wait<0>();
        __syncthreads();
        const I next = ig_next_tile<FLAGS, S::rows, S::others>(at + S::others, others, first, rows, kind);
        if (next < others) load(stage ^ 1, next);
        int shown = 1;
        if constexpr ((FLAGS & IG_BLOCKS) != 0)
            shown = first + warp_row < rows ? kind((first + warp_row) / IG_BLOCK, at / IG_BLOCK) : 0;
        if (shown) {
            const uint16_t *const u_tile = stages + stage * (S::u_size + S::w_size), *const w_tile = u_tile + S::u_size;
            float products[1][S::others / 8][4] = {}, slopes[1][S::others / 8][4] = {};
            ig_multiply_rows<S::brain, 1, S::others, S::depth, false>(
                products, (const uint32_t(*)[1][4])0, own_x + warp_row * ig_pitch(S::depth) + ig_own_offset(ig_pitch(S::depth)),
                u_tile + ig_other_offset(ig_pitch(S::depth)));
            ig_multiply_rows<S::brain, 1, S::others, S::values, false>(
                slopes, (const uint32_t(*)[1][4])0, own_y + warp_row * ig_pitch(S::values) + ig_own_offset(ig_pitch(S::values)),
                w_tile + ig_other_offset(ig_pitch(S::values)));
            const I column = at + ig_lane() % 4 * 2;
            bool whole = true;
            if constexpr ((FLAGS & IG_MASK) != 0) {
                if (shown == 1) {
                    ig_evaluate_pairs<S>(products[0], slopes[0], own, column, others, scale, masked);
                    whole = false;
                }
            }
            if (whole) ig_evaluate_pairs<S>(products[0], slopes[0], own, column, others, scale, pair);
            if constexpr (S::has_first)
                ig_mix_rows<S::brain, 1, S::others, S::depth>(sums.first, products, u_tile + ig_mixed_offset(ig_pitch(S::depth)));
            if constexpr (S::has_second)
                ig_mix_rows<S::brain, 1, S::others, S::values>(sums.second, slopes, w_tile + ig_mixed_offset(ig_pitch(S::values)));
        }
        at = next;
    }
    ig_cp_async_wait<0>(); /* the own rows, where no tile of the others was looked at */
}

/* A warp's sums: cells(row, column, a, b) for two columns at a time. */
template <int WIDE, class I, class Cells>
static inline void ig_store_sums(const float (*sums)[4], I first, I rows, const Cells &cells)
{
    IG_UNROLL
    for (int half = 0; half < 2; ++half) {
        const I row = first + ig_warp() * 16 + half * 8 + ig_lane() / 4;
        if (row >= rows) continue;
        IG_UNROLL
        for (int n = 0; n < ig_padded(WIDE) / 8; ++n) {
            const int column = n * 8 + ig_lane() % 4 * 2;
            if (column < WIDE) cells(row, (I)column, sums[n][2 * half], sums[n][2 * half + 1]);
        }
    }
}
