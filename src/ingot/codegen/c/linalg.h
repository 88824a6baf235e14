/* Small dense linear algebra, one matrix at a time, in double whatever the dtype: rows of n, read and written by name.

   Sizes are those of a layer, not of a supercomputer: no blocking. A pivot of 0 gives what LAPACK gives: the place of
   the first one, counted from 1, in `info`. */

#define IG_CHOLESKY(name, type)                                                                                       \
    static void ig_cholesky_##name(const type *a, type *l, int32_t *info, int64_t n, int upper)                       \
    {                                                                                                                 \
        *info = 0;                                                                                                    \
        for (int64_t i = 0; i < n * n; ++i) l[i] = 0;                                                                 \
        for (int64_t j = 0; j < n; ++j)                                                                               \
            for (int64_t i = j; i < n; ++i) {                                                                         \
                double sum = upper ? a[j * n + i] : a[i * n + j];                                                     \
                for (int64_t k = 0; k < j; ++k)                                                                       \
                    sum -= (double)(upper ? l[k * n + i] : l[i * n + k]) * (upper ? l[k * n + j] : l[j * n + k]);     \
                if (i == j && !(sum > 0)) {                                                                           \
                    *info = (int32_t)(j + 1);                                                                         \
                    return;                                                                                           \
                }                                                                                                     \
                const double below = i == j ? __builtin_sqrt(sum) : sum / l[j * n + j];                               \
                l[upper ? j * n + i : i * n + j] = (type)below;                                                       \
            }                                                                                                         \
    }

/* P · A = L · U of an m × n matrix, in place over a copy in `work`; row i was swapped with row pivots[i], from 1. */
#define IG_LU(name, type)                                                                                             \
    static void ig_lu_##name(                                                                                         \
        const type *a, type *lu, int32_t *pivots, int32_t *info, double *work, int64_t m, int64_t n, int pivoting)    \
    {                                                                                                                 \
        const int64_t steps = ig_min(m, n);                                                                           \
        *info = 0;                                                                                                    \
        for (int64_t i = 0; i < m * n; ++i) work[i] = a[i];                                                           \
        for (int64_t k = 0; k < steps; ++k) {                                                                         \
            int64_t best = k;                                                                                         \
            for (int64_t i = k + 1; pivoting && i < m; ++i)                                                           \
                if (__builtin_fabs(work[i * n + k]) > __builtin_fabs(work[best * n + k])) best = i;                   \
            pivots[k] = (int32_t)(best + 1);                                                                          \
            for (int64_t j = 0; best != k && j < n; ++j) {                                                            \
                const double swap = work[k * n + j];                                                                  \
                work[k * n + j] = work[best * n + j];                                                                 \
                work[best * n + j] = swap;                                                                            \
            }                                                                                                         \
            const double pivot = work[k * n + k];                                                                     \
            if (pivot == 0 && !*info) *info = (int32_t)(k + 1);                                                       \
            for (int64_t i = k + 1; pivot != 0 && i < m; ++i) {                                                       \
                const double factor = work[i * n + k] / pivot;                                                        \
                work[i * n + k] = factor;                                                                             \
                for (int64_t j = k + 1; j < n; ++j) work[i * n + j] -= factor * work[k * n + j];                      \
            }                                                                                                         \
        }                                                                                                             \
        for (int64_t i = 0; i < m * n; ++i) lu[i] = (type)work[i];                                                    \
    }

/* x of A · x = b for `count` right-hand sides, A triangular; b and x are n × count. */
#define IG_TRIANGULAR(name, type)                                                                                     \
    static void ig_triangular_##name(                                                                                 \
        const type *a, const type *b, type *x, double *work, int64_t n, int64_t count, int upper, int unit)           \
    {                                                                                                                 \
        for (int64_t c = 0; c < count; ++c) {                                                                         \
            for (int64_t step = 0; step < n; ++step) {                                                                \
                const int64_t i = upper ? n - 1 - step : step;                                                        \
                double sum = b[i * count + c];                                                                        \
                for (int64_t k = upper ? i + 1 : 0; k < (upper ? n : i); ++k) sum -= a[i * n + k] * work[k];          \
                work[i] = unit ? sum : sum / a[i * n + i];                                                            \
            }                                                                                                         \
            for (int64_t i = 0; i < n; ++i) x[i * count + c] = (type)work[i];                                         \
        }                                                                                                             \
    }

/* Where each row of P · A comes from, given the swaps of an LU; or, inverted, where each row of A goes. */
static inline void ig_permutation(const int32_t *pivots, int64_t *places, int64_t *work, int64_t m, int64_t swaps, int inverse)
{
    for (int64_t i = 0; i < m; ++i) work[i] = i;
    for (int64_t i = 0; i < swaps; ++i) {
        const int64_t other = ig_max(ig_min(pivots[i] - 1, m - 1), 0), swap = work[i];
        work[i] = work[other];
        work[other] = swap;
    }
    for (int64_t i = 0; i < m; ++i) places[inverse ? work[i] : i] = inverse ? i : work[i];
}
