/* Attention's gradient in float32, in tiles: 16 by 16 threads, each has ROWS / 16 own rows by OTHERS / 16 of the other
 * side's of the products, and the same own rows by every 16th column of the sums. Elements come by functions of a row
 * and a column; the rest is as in attention_backward.cuh. */
template <int ROWS, int OTHERS, int DEPTH, int VALUES, bool SECOND> struct ig_gradient_simt_shape {
    static constexpr bool has_second = SECOND;
    static constexpr int rows = ROWS, others = OTHERS, depth = DEPTH, values = VALUES;
    static constexpr int high = ROWS / 16, wide = OTHERS / 16;
    static constexpr int depth_pitch = ((DEPTH + 3) / 4 | 1) * 4, values_pitch = ((VALUES + 3) / 4 | 1) * 4, weight_pitch = OTHERS + 4;
    static constexpr int depth_columns = (DEPTH + 15) / 16, values_columns = SECOND ? (VALUES + 15) / 16 : 1;
    float first[high][depth_columns] = {}, second[high][values_columns] = {};

    static inline float *x_tile() { return (float *)ig_shared(); }
    static inline float *y_tile() { return x_tile() + ROWS * depth_pitch; }
    static inline float *u_tile() { return y_tile() + ROWS * values_pitch; }
    static inline float *w_tile() { return u_tile() + OTHERS * depth_pitch; }
    static inline float *gradients() { return w_tile() + OTHERS * values_pitch; }
    static inline float *weights() { return gradients() + ROWS * weight_pitch; }
};

/* Rows of WIDE elements, zeros from the row `last` on and behind the last column. */
template <int ROWS, int WIDE, int PITCH, class I, class Load>
static inline void ig_load_elements(float *to, const Load &load, I first, I last)
{
    for (int n = (int)threadIdx.x; n < ROWS * PITCH; n += 256) {
        const int row = n / PITCH, column = n % PITCH;
        to[n] = first + row < last && column < WIDE ? load(first + row, (I)column) : 0;
    }
}

template <int HIGH, int WIDE, int TERMS, int PITCH>
static inline void ig_multiply_tiles(float (*sums)[WIDE], const float *own, const float *other)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    for (int d = 0; d < (TERMS + 3) / 4 * 4; d += 4) {
        ig_float4 a[HIGH];
        IG_UNROLL
        for (int m = 0; m < HIGH; ++m) a[m] = *(const ig_float4 *)(own + (y + m * 16) * PITCH + d);
        IG_UNROLL
        for (int n = 0; n < WIDE; ++n) {
            const ig_float4 b = *(const ig_float4 *)(other + (x + n * 16) * PITCH + d);
            IG_UNROLL
            for (int m = 0; m < HIGH; ++m) {
                float sum = __builtin_fmaf(a[m].x, b.x, sums[m][n]);
                sum = __builtin_fmaf(a[m].y, b.y, sum);
                sum = __builtin_fmaf(a[m].z, b.z, sum);
                sums[m][n] = __builtin_fmaf(a[m].w, b.w, sum);
            }
        }
    }
}

/* sums += weights · rows; a thread has every 16th column. Columns past the last are never stored. */
template <int HIGH, int ROWS, int COLUMNS, int PITCH, int WEIGHT_PITCH>
static inline void ig_mix_tiles(float (*sums)[COLUMNS], const float *weights, const float *rows, int count)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    for (int n = 0; n < ROWS; ++n) {
        IG_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            const int column = x + c * 16;
            const float element = column < count ? rows[n * PITCH + column] : 0;
            IG_UNROLL
            for (int m = 0; m < HIGH; ++m)
                sums[m][c] = __builtin_fmaf(weights[(y + m * 16) * WEIGHT_PITCH + n], element, sums[m][c]);
        }
    }
}

template <class S, class I, class X, class Y> static inline void ig_load_own_elements(const X &x, const Y &y, I first, I rows)
{
    ig_load_elements<S::rows, S::depth, S::depth_pitch>(S::x_tile(), x, first, rows);
    ig_load_elements<S::rows, S::values, S::values_pitch>(S::y_tile(), y, first, rows);
}

template <class S, class I, class Pair>
static inline void ig_evaluate_elements(
    float (*products)[S::wide], float (*slopes)[S::wide], I first, I rows, I at, I others, float scale, const Pair &pair)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    IG_UNROLL
    for (int m = 0; m < S::high; ++m)
        IG_UNROLL
        for (int n = 0; n < S::wide; ++n) {
            const I row = first + y + m * 16, column = at + x + n * 16;
            float gradient = 0, weight = 0;
            if (row < rows && column < others) pair(row, column, products[m][n] * scale, slopes[m][n], gradient, weight);
            S::gradients()[(y + m * 16) * S::weight_pitch + x + n * 16] = gradient;
            S::weights()[(y + m * 16) * S::weight_pitch + x + n * 16] = weight;
        }
}

template <class S, int FLAGS, class I, class U, class W, class Pair, class Masked, class Kind>
static inline void ig_differentiate_simt(
    S &sums, const U &u, const W &w, I rows, I first, I others, float scale, const Pair &pair, const Masked &masked, const Kind &kind)
{
    for (I at = 0; at < others; at += S::others) {
        int shown = 1;
        if constexpr ((FLAGS & IG_BLOCKS) != 0) shown = kind(first / IG_BLOCK, at / IG_BLOCK);
        if (!shown) continue;
        __syncthreads();
        ig_load_elements<S::others, S::depth, S::depth_pitch>(S::u_tile(), u, at, others);
        ig_load_elements<S::others, S::values, S::values_pitch>(S::w_tile(), w, at, others);
        __syncthreads();
        float products[S::high][S::wide] = {}, slopes[S::high][S::wide] = {};
        ig_multiply_tiles<S::high, S::wide, S::depth, S::depth_pitch>(products, S::x_tile(), S::u_tile());
        ig_multiply_tiles<S::high, S::wide, S::values, S::values_pitch>(slopes, S::y_tile(), S::w_tile());
        bool whole = true;
        if constexpr ((FLAGS & IG_MASK) != 0) {
            if (shown == 1) {
                ig_evaluate_elements<S>(products, slopes, first, rows, at, others, scale, masked);
                whole = false;
            }
        }
        if (whole) ig_evaluate_elements<S>(products, slopes, first, rows, at, others, scale, pair);
        ig_syncwarp(); /* an own row's weights are those of half a warp */
        ig_mix_tiles<S::high, S::others, S::depth_columns, S::depth_pitch, S::weight_pitch>(sums.first, S::gradients(), S::u_tile(), S::depth);
        if constexpr (S::has_second)
            ig_mix_tiles<S::high, S::others, S::values_columns, S::values_pitch, S::weight_pitch>(sums.second, S::weights(), S::w_tile(), S::values);
    }
}

/* A thread's sums: cell(row, column, sum). */
template <int HIGH, int COLUMNS, class I, class Cell>
static inline void ig_store_elements(const float (*sums)[COLUMNS], I first, I rows, int width, const Cell &cell)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    IG_UNROLL
    for (int m = 0; m < HIGH; ++m)
        IG_UNROLL
        for (int c = 0; c < COLUMNS; ++c)
            if (first + y + m * 16 < rows && x + c * 16 < width) cell(first + y + m * 16, (I)(x + c * 16), sums[m][c]);
}
