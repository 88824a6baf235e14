/* Scans along a line whose elements lie `step` apart. A sum and a product of floats are carried in double. */

#define IG_SCAN(kind, sign, start, name, type, wide)                                                                  \
    static void ig_scan_##kind##_##name(const type *x, type *y, int64_t n, int64_t step)                              \
    {                                                                                                                 \
        wide total = start;                                                                                           \
        for (int64_t i = 0; i < n; ++i) {                                                                             \
            total = (wide)(total sign x[i * step]);                                                                   \
            y[i * step] = (type)total;                                                                                \
        }                                                                                                             \
    }

/* The largest (or smallest) so far, and the last place where it was met. A nan stays. */
#define IG_SCAN_PLACES(kind, beats, name, type)                                                                       \
    static void ig_scan_##kind##_##name(const type *x, type *y, int64_t *place, int64_t n, int64_t step)              \
    {                                                                                                                 \
        type best = n ? x[0] : 0;                                                                                     \
        int64_t where = 0;                                                                                            \
        for (int64_t i = 0; i < n; ++i) {                                                                             \
            const type v = x[i * step];                                                                               \
            if (v != v || (best == best && v beats best)) best = v, where = i;                                        \
            y[i * step] = best;                                                                                       \
            place[i * step] = where;                                                                                  \
        }                                                                                                             \
    }

/* log(exp(x0) + exp(x1) + …): the larger one plus log1p of what the smaller one adds to it. */
#define IG_SCAN_LOGSUMEXP(name, type)                                                                                 \
    static void ig_scan_logsumexp_##name(const type *x, type *y, int64_t n, int64_t step)                             \
    {                                                                                                                 \
        double total = -INF_F64;                                                                                      \
        for (int64_t i = 0; i < n; ++i) {                                                                             \
            const double v = x[i * step], high = total > v ? total : v, low = total > v ? v : total;                  \
            if (v != v || total != total) total = NAN_F64;                                                            \
            else if (high != low || high - high == 0) total = high + ig_log1p_f64(ig_exp_f64(low - high));            \
            y[i * step] = (type)total;                                                                                \
        }                                                                                                             \
    }
