/* Orthogonal factors of one m × n matrix of doubles: by reflections, and by rotations.

   A reflection is I - tau · v · vᵀ with v = (0, …, 0, 1, rest), the rest kept below the diagonal as LAPACK keeps it. */

static inline void ig_qr(const double *a, double *r, double *tau, int64_t m, int64_t n)
{
    memcpy(r, a, (size_t)(m * n) * sizeof *r);
    for (int64_t k = 0; k < ig_min(m, n); ++k) {
        double rest = 0, scale = 0;
        for (int64_t i = k + 1; i < m; ++i) {
            const double size = __builtin_fabs(r[i * n + k]);
            if (size > scale) scale = size;
        }
        for (int64_t i = k + 1; scale > 0 && i < m; ++i) rest += (r[i * n + k] / scale) * (r[i * n + k] / scale);
        tau[k] = 0;
        if (rest == 0) continue; /* already a column of zeros below */
        const double first = r[k * n + k], along = first / scale;
        const double beta = -__builtin_copysign(scale * __builtin_sqrt(along * along + rest), first);
        tau[k] = (beta - first) / beta;
        for (int64_t i = k + 1; i < m; ++i) r[i * n + k] /= first - beta;
        r[k * n + k] = beta;
        for (int64_t j = k + 1; j < n; ++j) {
            double dot = r[k * n + j];
            for (int64_t i = k + 1; i < m; ++i) dot += r[i * n + k] * r[i * n + j];
            r[k * n + j] -= tau[k] * dot;
            for (int64_t i = k + 1; i < m; ++i) r[i * n + j] -= tau[k] * dot * r[i * n + k];
        }
    }
}

/* x = Q · c, or Qᵀ · c, for Q = H0 · H1 · … of `count` reflections below the diagonal of v (m × n); c is m × wide. */
static inline void ig_reflect(
    const double *v, const double *tau, const double *c, double *x, int64_t m, int64_t n, int64_t count, int64_t wide, int transposed)
{
    memcpy(x, c, (size_t)(m * wide) * sizeof *x);
    for (int64_t step = 0; step < count; ++step) {
        const int64_t k = transposed ? step : count - 1 - step;
        for (int64_t j = 0; j < wide; ++j) {
            double dot = x[k * wide + j];
            for (int64_t i = k + 1; i < m; ++i) dot += v[i * n + k] * x[i * wide + j];
            x[k * wide + j] -= tau[k] * dot;
            for (int64_t i = k + 1; i < m; ++i) x[i * wide + j] -= tau[k] * dot * v[i * n + k];
        }
    }
}

/* A column that is orthogonal to the `done` before it and of length 1: of all axes, what is left of the one that they
   cover least. u is m × wide. */
static inline void ig_complete(double *u, int64_t m, int64_t wide, int64_t done)
{
    int64_t axis = 0;
    double least = INF_F64;
    for (int64_t i = 0; i < m; ++i) {
        double covered = 0;
        for (int64_t j = 0; j < done; ++j) covered += u[i * wide + j] * u[i * wide + j];
        if (covered < least) least = covered, axis = i;
    }
    for (int64_t i = 0; i < m; ++i) u[i * wide + done] = i == axis;
    for (int again = 0; again < 2; ++again)
        for (int64_t j = 0; j < done; ++j) {
            double dot = 0;
            for (int64_t i = 0; i < m; ++i) dot += u[i * wide + j] * u[i * wide + done];
            for (int64_t i = 0; i < m; ++i) u[i * wide + done] -= dot * u[i * wide + j];
        }
    double length = 0;
    for (int64_t i = 0; i < m; ++i) length += u[i * wide + done] * u[i * wide + done];
    for (int64_t i = 0; i < m; ++i) u[i * wide + done] /= __builtin_sqrt(length);
}

/* A = U · diag(s) · Vᵀ of an m × n matrix with m >= n, by rotations of pairs of columns until all are orthogonal.
   u is m × wide with wide >= n, further columns completing a basis; v is n × n; work holds m·n + n·n + 2·n doubles. */
static inline void ig_svd(const double *a, double *u, double *s, double *v, double *work, int64_t m, int64_t n, int64_t wide)
{
    double *const b = work, *const w = work + m * n, *const length = w + n * n;
    int64_t *const order = (int64_t *)(length + n);
    memcpy(b, a, (size_t)(m * n) * sizeof *b);
    for (int64_t i = 0; i < n * n; ++i) w[i] = i / n == i % n;
    for (int sweep = 0, turned = 1; turned && sweep < 60; ++sweep) {
        turned = 0;
        for (int64_t p = 0; p < n; ++p)
            for (int64_t q = p + 1; q < n; ++q) {
                double pp = 0, qq = 0, pq = 0;
                for (int64_t i = 0; i < m; ++i) {
                    const double x = b[i * n + p], y = b[i * n + q];
                    pp += x * x, qq += y * y, pq += x * y;
                }
                if (!(__builtin_fabs(pq) > 1e-15 * __builtin_sqrt(pp * qq)) || pp * qq == 0) continue;
                turned = 1;
                const double zeta = (qq - pp) / (2 * pq);
                const double t = __builtin_copysign(1, zeta) / (__builtin_fabs(zeta) + __builtin_sqrt(1 + zeta * zeta));
                const double cosine = 1 / __builtin_sqrt(1 + t * t), sine = cosine * t;
                for (int64_t i = 0; i < m + n; ++i) {
                    double *const row = i < m ? b + i * n : w + (i - m) * n;
                    const double x = row[p], y = row[q];
                    row[p] = cosine * x - sine * y;
                    row[q] = sine * x + cosine * y;
                }
            }
    }
    for (int64_t j = 0; j < n; ++j) {
        double total = 0;
        for (int64_t i = 0; i < m; ++i) total += b[i * n + j] * b[i * n + j];
        length[j] = __builtin_sqrt(total);
        int64_t at = j; /* into its place, longest first */
        for (; at > 0 && length[order[at - 1]] < length[j]; --at) order[at] = order[at - 1];
        order[at] = j;
    }
    const double least = n ? length[order[0]] * 1e-15 * (double)m : 0;
    for (int64_t k = 0; k < wide; ++k) {
        const int64_t j = k < n ? order[k] : 0;
        if (k < n) {
            s[k] = length[j];
            for (int64_t i = 0; i < n; ++i) v[i * n + k] = w[i * n + j];
        }
        if (k < n && length[j] > least)
            for (int64_t i = 0; i < m; ++i) u[i * wide + k] = b[i * n + j] / length[j];
        else
            ig_complete(u, m, wide, k);
    }
}
