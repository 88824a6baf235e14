/* Scans of a dense line by all threads of a block: each chunk of `THREADS` elements by warps, behind what came before. */
struct ig_step_sum {
    template <class W> W operator()(W a, W b) const { return (W)(a + b); }
};

/* log(exp(a) + exp(b)), as the sequential scan has it. */
#define IG_STEP_LOGSUMEXP                                                                                             \
    struct ig_step_logsumexp {                                                                                        \
        double operator()(double a, double b) const                                                                   \
        {                                                                                                             \
            const double high = a > b ? a : b, low = a > b ? b : a;                                                   \
            if (a != a || b != b) return NAN_F64;                                                                     \
            if (high != low || high - high == 0) return high + ig_log1p_f64(ig_exp_f64(low - high));                  \
            return a;                                                                                                 \
        }                                                                                                             \
    };

template <int THREADS, class T, class W, class Step>
static inline void ig_scan_line(const T *x, T *y, int64_t n, W start, Step step)
{
    __shared__ W warps[THREADS / 32];
    W carried = start;
    for (int64_t first = 0; first < n; first += THREADS) {
        const int64_t i = first + (int64_t)threadIdx.x;
        W value = i < n ? (W)x[i] : start;
        for (int by = 1; by < 32; by *= 2) {
            const W before = ig_shuffle_up(value, by);
            if (ig_lane() >= by) value = step(before, value);
        }
        if (ig_lane() == 31) warps[ig_warp()] = value;
        __syncthreads();
        W ahead = carried;
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w == ig_warp()) ahead = carried;
            carried = step(carried, warps[w]);
        }
        if (i < n) y[i] = (T)step(ahead, value);
        __syncthreads();
    }
}
