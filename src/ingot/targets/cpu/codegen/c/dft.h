/* Discrete Fourier transforms of many lines at once. A complex number is two real ones, one behind the other.

   A task takes as many lines as 64 bytes hold numbers: they are the lanes of vectors, so that a transform of any length
   is one of scalars, written with vectors. An element of its work memory is the real parts of all lanes, then the
   imaginary ones. A pass of radix r makes r transforms of n numbers out of one of n·r, in Stockham's order: it reads
   one half of the work memory and writes the other, and nothing has to be put in order afterwards.

   A real line of 2·h numbers is a complex one of h, and one more pass over the spectrum. No line is mixed with another:
   a nan stays in its line, and so does the rounding of large numbers.

   Tensors are dense, of (outer, n, inner) numbers; a line is one of outer · inner. `turns` are the n real parts of e^(-2πi·k/n), then the n imaginary ones. */

enum { ig_dft_forward, ig_dft_backward, ig_dft_of_real, ig_dft_to_real };

/* IG_MIX: the first and the second half of two vectors' numbers taken in turns. Repeated for all pairs of rows, once for
   each bit of a lane's number, it turns rows into columns. IG_SPLIT: the other way round. */
#if defined(__clang__) || __GNUC__ >= 12
#define IG_MIX_2(a, b, low, high) \
    low = __builtin_shufflevector(a, b, 0, 2); \
    high = __builtin_shufflevector(a, b, 1, 3);
#define IG_SPLIT_2(a, b, even, odd) \
    even = __builtin_shufflevector(a, b, 0, 2); \
    odd = __builtin_shufflevector(a, b, 1, 3);
#define IG_MIX_4(a, b, low, high) \
    low = __builtin_shufflevector(a, b, 0, 4, 1, 5); \
    high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#define IG_SPLIT_4(a, b, even, odd) \
    even = __builtin_shufflevector(a, b, 0, 2, 4, 6); \
    odd = __builtin_shufflevector(a, b, 1, 3, 5, 7);
#define IG_MIX_8(a, b, low, high) \
    low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); \
    high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#define IG_SPLIT_8(a, b, even, odd) \
    even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); \
    odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#define IG_MIX_16(a, b, low, high) \
    low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); \
    high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#define IG_SPLIT_16(a, b, even, odd) \
    even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30); \
    odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
#define IG_MIX(lanes, a, b, low, high) \
    for (int lane = 0; lane < lanes / 2; ++lane) { \
        low[2 * lane] = a[lane], low[2 * lane + 1] = b[lane]; \
        high[2 * lane] = a[lanes / 2 + lane], high[2 * lane + 1] = b[lanes / 2 + lane]; \
    }
#define IG_SPLIT(lanes, a, b, even, odd) \
    for (int lane = 0; lane < lanes / 2; ++lane) { \
        even[lane] = a[2 * lane], even[lanes / 2 + lane] = b[2 * lane]; \
        odd[lane] = a[2 * lane + 1], odd[lanes / 2 + lane] = b[2 * lane + 1]; \
    }
#define IG_MIX_2(a, b, low, high) IG_MIX(2, a, b, low, high)
#define IG_SPLIT_2(a, b, even, odd) IG_SPLIT(2, a, b, even, odd)
#define IG_MIX_4(a, b, low, high) IG_MIX(4, a, b, low, high)
#define IG_SPLIT_4(a, b, even, odd) IG_SPLIT(4, a, b, even, odd)
#define IG_MIX_8(a, b, low, high) IG_MIX(8, a, b, low, high)
#define IG_SPLIT_8(a, b, even, odd) IG_SPLIT(8, a, b, even, odd)
#define IG_MIX_16(a, b, low, high) IG_MIX(16, a, b, low, high)
#define IG_SPLIT_16(a, b, even, odd) IG_SPLIT(16, a, b, even, odd)
#endif
#if IG_BYTES == 64
#define IG_OF_LANES_f32(name) name##_16
#define IG_OF_LANES_f64(name) name##_8
#elif IG_BYTES == 32
#define IG_OF_LANES_f32(name) name##_8
#define IG_OF_LANES_f64(name) name##_4
#else
#define IG_OF_LANES_f32(name) name##_4
#define IG_OF_LANES_f64(name) name##_2
#endif
#define IG_DFT_PARTS (64 / IG_BYTES) /* vectors of one part of an element */
#define IG_INLINE __attribute__((unused)) static inline __attribute__((always_inline))

#define IG_DFT(kind, real) \
    typedef struct { \
        ig_vector_##kind re, im; \
    } ig_complex_##kind; \
    /* The part of an element that is exchanged is the imaginary one: with the parts of all numbers exchanged, before and \
       after, a transform forward is one backward. */ \
    IG_INLINE ig_complex_##kind ig_c_get_##kind(const ig_vector_##kind *x, int64_t element, int exchanged) \
    { \
        const ig_vector_##kind *at = x + element * 2 * IG_DFT_PARTS; \
        return (ig_complex_##kind){at[exchanged * IG_DFT_PARTS], at[!exchanged * IG_DFT_PARTS]}; \
    } \
    IG_INLINE void ig_c_put_##kind(ig_vector_##kind *y, int64_t element, int exchanged, ig_complex_##kind a) \
    { \
        ig_vector_##kind *at = y + element * 2 * IG_DFT_PARTS; \
        at[exchanged * IG_DFT_PARTS] = a.re, at[!exchanged * IG_DFT_PARTS] = a.im; \
    } \
    IG_INLINE ig_complex_##kind ig_c_add_##kind(ig_complex_##kind a, ig_complex_##kind b) \
    { \
        return (ig_complex_##kind){a.re + b.re, a.im + b.im}; \
    } \
    IG_INLINE ig_complex_##kind ig_c_sub_##kind(ig_complex_##kind a, ig_complex_##kind b) \
    { \
        return (ig_complex_##kind){a.re - b.re, a.im - b.im}; \
    } \
    /* -i·a */ \
    IG_INLINE ig_complex_##kind ig_c_turn_##kind(ig_complex_##kind a) { return (ig_complex_##kind){a.im, -a.re}; } \
    /* (re + i·im)·a */ \
    IG_INLINE ig_complex_##kind ig_c_mul_##kind(ig_complex_##kind a, real re, real im) \
    { \
        return (ig_complex_##kind){ \
            ig_fma_same_##kind(re, a.re, -im * a.im), ig_fma_same_##kind(re, a.im, im * a.re)}; \
    } \
    IG_INLINE void ig_dft_4_##kind(ig_complex_##kind *a) \
    { \
        const ig_complex_##kind even = ig_c_add_##kind(a[0], a[2]), odd = ig_c_add_##kind(a[1], a[3]); \
        const ig_complex_##kind first = ig_c_sub_##kind(a[0], a[2]); \
        const ig_complex_##kind second = ig_c_turn_##kind(ig_c_sub_##kind(a[1], a[3])); \
        a[0] = ig_c_add_##kind(even, odd), a[2] = ig_c_sub_##kind(even, odd); \
        a[1] = ig_c_add_##kind(first, second), a[3] = ig_c_sub_##kind(first, second); \
    } \
    /* The transform of `radix` numbers in registers. That of an odd number takes its roots from the turns of `n`. */ \
    IG_INLINE void ig_dft_small_##kind(ig_complex_##kind *a, int radix, const real *turns, int64_t n) \
    { \
        if (radix == 2) { \
            const ig_complex_##kind sum = ig_c_add_##kind(a[0], a[1]); \
            a[1] = ig_c_sub_##kind(a[0], a[1]), a[0] = sum; \
        } else if (radix == 4) { \
            ig_dft_4_##kind(a); \
        } else if (radix == 8) { \
            const real root = (real)0.70710678118654752440; \
            ig_complex_##kind even[4] = {a[0], a[2], a[4], a[6]}, odd[4] = {a[1], a[3], a[5], a[7]}; \
            ig_dft_4_##kind(even), ig_dft_4_##kind(odd); \
            odd[1] = (ig_complex_##kind){root * (odd[1].re + odd[1].im), root * (odd[1].im - odd[1].re)}; \
            odd[2] = ig_c_turn_##kind(odd[2]); \
            odd[3] = (ig_complex_##kind){root * (odd[3].im - odd[3].re), -root * (odd[3].re + odd[3].im)}; \
            for (int k = 0; k < 4; ++k) { \
                a[k] = ig_c_add_##kind(even[k], odd[k]), a[k + 4] = ig_c_sub_##kind(even[k], odd[k]); \
            } \
        } else { \
            /* The numbers j and radix - j meet the same cosine, and sines that differ in sign. */ \
            const int half = radix / 2; \
            if (half < 1) __builtin_unreachable(); \
            ig_complex_##kind sum[64], gap[64], total = a[0]; \
            for (int j = 1; j <= half; ++j) { \
                sum[j] = ig_c_add_##kind(a[j], a[radix - j]), gap[j] = ig_c_sub_##kind(a[j], a[radix - j]); \
                total = ig_c_add_##kind(total, sum[j]); \
            } \
            for (int k = 1; k <= half; ++k) { \
                ig_complex_##kind even = a[0], odd = {{0}, {0}}; \
                for (int j = 1; j <= half; ++j) { \
                    const int64_t place = j * k % radix * (n / radix); \
                    const real cosine = turns[place], sine = turns[n + place]; \
                    even.re = ig_fma_same_##kind(cosine, sum[j].re, even.re); \
                    even.im = ig_fma_same_##kind(cosine, sum[j].im, even.im); \
                    odd.re = ig_fma_same_##kind(-sine, gap[j].im, odd.re); \
                    odd.im = ig_fma_same_##kind(sine, gap[j].re, odd.im); \
                } \
                a[k] = ig_c_add_##kind(even, odd), a[radix - k] = ig_c_sub_##kind(even, odd); \
            } \
            a[0] = total; \
        } \
    } \
    /* One pass over radix·m·s elements, s of them for each place; `n` turns, `every` of which is one of this length. */ \
    IG_INLINE void ig_dft_pass_##kind( \
        const ig_vector_##kind *x, ig_vector_##kind *y, const real *turns, int64_t n, int64_t every, int radix, \
        int64_t m, int64_t s, int exchanged) \
    { \
        for (int64_t p = 0; p < m; ++p) \
            for (int64_t q = 0; q < s; ++q) \
                for (int part = 0; part < IG_DFT_PARTS; ++part) { \
                    ig_complex_##kind a[128]; \
                    for (int j = 0; j < radix; ++j) a[j] = ig_c_get_##kind(x + part, q + s * (p + j * m), exchanged); \
                    ig_dft_small_##kind(a, radix, turns, n); \
                    ig_c_put_##kind(y + part, q + s * radix * p, exchanged, a[0]); \
                    for (int k = 1; k < radix; ++k) { \
                        const int64_t turn = p * k * s * every; \
                        if (m > 1) a[k] = ig_c_mul_##kind(a[k], turns[turn], turns[n + turn]); \
                        ig_c_put_##kind(y + part, q + s * (radix * p + k), exchanged, a[k]); \
                    } \
                } \
    } \
    /* The same for a large prime, which only a length that is known when it runs has: sums of products, in blocks so that \
       they stay exact. */ \
    static void ig_dft_prime_##kind( \
        const ig_vector_##kind *x, ig_vector_##kind *y, const real *turns, int64_t n, int64_t every, int64_t radix, \
        int64_t m, int64_t s, int exchanged) \
    { \
        for (int64_t p = 0; p < m; ++p) \
            for (int64_t q = 0; q < s * IG_DFT_PARTS; ++q) \
                for (int64_t k = 0; k < radix; ++k) { \
                    ig_complex_##kind total = {{0}, {0}}; \
                    const int64_t place = q / IG_DFT_PARTS, part = q % IG_DFT_PARTS, turn = p * k * s * every; \
                    for (int64_t first = 0; first < radix; first += 32) { \
                        ig_complex_##kind sum = {{0}, {0}}; \
                        for (int64_t j = first; j < ig_min(first + 32, radix); ++j) { \
                            const int64_t root = j * k % radix * (n / radix); \
                            const ig_complex_##kind a = ig_c_get_##kind(x + part, place + s * (p + j * m), exchanged); \
                            sum = ig_c_add_##kind(sum, ig_c_mul_##kind(a, turns[root], turns[n + root])); \
                        } \
                        total = ig_c_add_##kind(total, sum); \
                    } \
                    total = ig_c_mul_##kind(total, turns[turn], turns[n + turn]); \
                    ig_c_put_##kind(y + part, place + s * (radix * p + k), exchanged, total); \
                } \
    } \
    /* Transforms the `length` elements of x, by way of y; returns which of the two holds the result. */ \
    static ig_vector_##kind *ig_dft_passes_##kind( \
        ig_vector_##kind *x, ig_vector_##kind *y, const real *turns, int64_t n, int64_t length, int exchanged) \
    { \
        const int64_t every = n / length; \
        for (int64_t left = length, s = 1; left > 1;) { \
            int64_t radix = left % 8 == 0 && left != 16 && IG_REGISTERS == 32 ? 8 : left % 4 == 0 ? 4 : 2; \
            while (left % radix) radix += radix == 2 ? 1 : 2; \
            left /= radix; \
            if (radix == 8) ig_dft_pass_##kind(x, y, turns, n, every, 8, left, s, exchanged); \
            else if (radix == 4) ig_dft_pass_##kind(x, y, turns, n, every, 4, left, s, exchanged); \
            else if (radix == 2) ig_dft_pass_##kind(x, y, turns, n, every, 2, left, s, exchanged); \
            else if (radix == 3) ig_dft_pass_##kind(x, y, turns, n, every, 3, left, s, exchanged); \
            else if (radix == 5) ig_dft_pass_##kind(x, y, turns, n, every, 5, left, s, exchanged); \
            else if (radix < 128) ig_dft_pass_##kind(x, y, turns, n, every, (int)radix, left, s, exchanged); \
            else ig_dft_prime_##kind(x, y, turns, n, every, radix, left, s, exchanged); \
            s *= radix; \
            ig_vector_##kind *const swap = x; \
            x = y, y = swap; \
        } \
        return x; \
    } \
    IG_INLINE void ig_dft_transpose_##kind(ig_vector_##kind *rows) \
    { \
        enum { lanes = IG_BYTES / sizeof(real) }; \
        for (int step = 1; step < lanes; step *= 2) { \
            ig_vector_##kind mixed[lanes]; \
            for (int i = 0; i < lanes / 2; ++i) { \
                IG_OF_LANES_##kind(IG_MIX)(rows[i], rows[i + lanes / 2], mixed[2 * i], mixed[2 * i + 1]) \
            } \
            for (int i = 0; i < lanes; ++i) rows[i] = mixed[i]; \
        } \
    } \
    /* Where the numbers of a line begin. */ \
    IG_INLINE int64_t ig_dft_line_##kind(int64_t line, int64_t n, int64_t inner) \
    { \
        return line / inner * n * inner + line % inner; \
    } \
    /* The n numbers of `count` lines, from `first` on, as vectors `step` apart. Lanes without a line repeat the last. */ \
    static void ig_dft_read_##kind( \
        const real *from, int64_t n, int64_t inner, int64_t first, int64_t count, ig_vector_##kind *to, int64_t step) \
    { \
        enum { lanes = IG_BYTES / sizeof(real) }; \
        for (int part = 0; part < IG_DFT_PARTS; ++part) { \
            const real *line[lanes]; \
            for (int lane = 0; lane < lanes; ++lane) \
                line[lane] = from + ig_dft_line_##kind(first + ig_min(part * lanes + lane, count - 1), n, inner); \
            int64_t k = 0; \
            if (line[lanes - 1] - line[0] == lanes - 1 && part * lanes + lanes <= count && inner > 1) { \
                for (; k < n; ++k) memcpy(to + k * step + part, line[0] + k * inner, IG_BYTES); \
            } else if (inner == 1) { \
                for (; k + lanes <= n; k += lanes) { \
                    ig_vector_##kind rows[lanes]; \
                    for (int lane = 0; lane < lanes; ++lane) memcpy(&rows[lane], line[lane] + k, IG_BYTES); \
                    ig_dft_transpose_##kind(rows); \
                    for (int i = 0; i < lanes; ++i) to[(k + i) * step + part] = rows[i]; \
                } \
            } \
            for (; k < n; ++k) \
                for (int lane = 0; lane < lanes; ++lane) to[k * step + part][lane] = line[lane][k * inner]; \
        } \
    } \
    /* The other way round. Lanes without a line are left. */ \
    static void ig_dft_write_##kind( \
        real *to, int64_t n, int64_t inner, int64_t first, int64_t count, const ig_vector_##kind *from, int64_t step) \
    { \
        enum { lanes = IG_BYTES / sizeof(real) }; \
        for (int part = 0; part < IG_DFT_PARTS; ++part) { \
            const int valid = (int)ig_min(count - part * lanes, lanes); \
            if (valid <= 0) return; \
            real *line[lanes]; \
            for (int lane = 0; lane < valid; ++lane) \
                line[lane] = to + ig_dft_line_##kind(first + part * lanes + lane, n, inner); \
            int64_t k = 0; \
            if (valid == lanes && line[lanes - 1] - line[0] == lanes - 1 && inner > 1) { \
                for (; k < n; ++k) memcpy(line[0] + k * inner, from + k * step + part, IG_BYTES); \
            } else if (inner == 1) { \
                for (; k + lanes <= n; k += lanes) { \
                    ig_vector_##kind rows[lanes]; \
                    for (int i = 0; i < lanes; ++i) rows[i] = from[(k + i) * step + part]; \
                    ig_dft_transpose_##kind(rows); \
                    for (int lane = 0; lane < valid; ++lane) memcpy(line[lane] + k, &rows[lane], IG_BYTES); \
                } \
            } \
            for (; k < n; ++k) \
                for (int lane = 0; lane < valid; ++lane) line[lane][k * inner] = from[k * step + part][lane]; \
        } \
    } \
    /* The h + 1 numbers of a real line's spectrum, from the h of the line's pairs. */ \
    static void ig_dft_separate_##kind(const ig_vector_##kind *x, ig_vector_##kind *y, const real *turns, int64_t h) \
    { \
        for (int64_t k = 0; k <= h; ++k) \
            for (int part = 0; part < IG_DFT_PARTS; ++part) { \
                const ig_complex_##kind a = ig_c_get_##kind(x + part, k % h, 0), b = ig_c_get_##kind(x + part, (h - k) % h, 0); \
                const real half = (real)0.5; \
                const ig_complex_##kind even = {half * (a.re + b.re), half * (a.im - b.im)}; \
                const ig_complex_##kind odd = {half * (a.im + b.im), half * (b.re - a.re)}; \
                const ig_complex_##kind turned = ig_c_mul_##kind(odd, turns[k % (2 * h)], turns[2 * h + k]); \
                ig_c_put_##kind(y + part, k, 0, ig_c_add_##kind(even, turned)); \
            } \
    } \
    /* The h numbers of a real line's pairs from the h + 1 of its spectrum. */ \
    static void ig_dft_join_##kind(const ig_vector_##kind *x, ig_vector_##kind *y, const real *turns, int64_t h) \
    { \
        for (int64_t k = 0; k < h; ++k) \
            for (int part = 0; part < IG_DFT_PARTS; ++part) { \
                ig_complex_##kind a = ig_c_get_##kind(x + part, k, 0), b = ig_c_get_##kind(x + part, h - k, 0); \
                if (k == 0) a.im = b.im = (ig_vector_##kind){0}; /* no real line has them, and torch ignores them */ \
                const ig_complex_##kind even = {a.re + b.re, a.im - b.im}; \
                const ig_complex_##kind gap = {a.re - b.re, a.im + b.im}; \
                const ig_complex_##kind odd = ig_c_mul_##kind(gap, turns[k], -turns[2 * h + k]); \
                ig_c_put_##kind(y + part, k, 0, (ig_complex_##kind){even.re - odd.im, even.im + odd.re}); \
            } \
    } \
    /* The n numbers that are a spectrum's n / 2 + 1 and their mirror images. */ \
    static void ig_dft_mirror_##kind(const ig_vector_##kind *x, ig_vector_##kind *y, int64_t n) \
    { \
        for (int64_t k = 0; k <= n / 2; ++k) \
            for (int part = 0; part < IG_DFT_PARTS; ++part) { \
                ig_complex_##kind a = ig_c_get_##kind(x + part, k, 0); \
                if (k == 0) a.im = (ig_vector_##kind){0}; \
                ig_c_put_##kind(y + part, k, 0, a); \
                if (k) ig_c_put_##kind(y + part, n - k, 0, (ig_complex_##kind){a.re, -a.im}); \
            } \
    } \
    /* Complex numbers, as elements. */ \
    static void ig_dft_read_pairs_##kind( \
        const real *from, int64_t n, int64_t inner, int64_t first, int64_t count, ig_vector_##kind *to) \
    { \
        enum { lanes = IG_BYTES / sizeof(real), element = 2 * IG_DFT_PARTS }; \
        if (inner == 1) { \
            ig_dft_read_##kind(from, 2 * n, 1, first, count, to, IG_DFT_PARTS); \
            return; \
        } \
        for (int part = 0; part < IG_DFT_PARTS; ++part) { \
            const real *line[lanes]; \
            for (int lane = 0; lane < lanes; ++lane) \
                line[lane] = from + 2 * ig_dft_line_##kind(first + ig_min(part * lanes + lane, count - 1), n, inner); \
            const int whole = line[lanes - 1] - line[0] == 2 * (lanes - 1) && part * lanes + lanes <= count; \
            for (int64_t k = 0; k < n; ++k) { \
                ig_vector_##kind *const re = to + k * element + part, *const im = re + IG_DFT_PARTS; \
                if (whole) { \
                    ig_vector_##kind a, b; \
                    memcpy(&a, line[0] + 2 * k * inner, IG_BYTES), memcpy(&b, line[0] + 2 * k * inner + lanes, IG_BYTES); \
                    IG_OF_LANES_##kind(IG_SPLIT)(a, b, *re, *im) \
                } else { \
                    for (int lane = 0; lane < lanes; ++lane) \
                        (*re)[lane] = line[lane][2 * k * inner], (*im)[lane] = line[lane][2 * k * inner + 1]; \
                } \
            } \
        } \
    } \
    static void ig_dft_write_pairs_##kind( \
        real *to, int64_t n, int64_t inner, int64_t first, int64_t count, const ig_vector_##kind *from) \
    { \
        enum { lanes = IG_BYTES / sizeof(real), element = 2 * IG_DFT_PARTS }; \
        if (inner == 1) { \
            ig_dft_write_##kind(to, 2 * n, 1, first, count, from, IG_DFT_PARTS); \
            return; \
        } \
        for (int part = 0; part < IG_DFT_PARTS; ++part) { \
            const int valid = (int)ig_min(count - part * lanes, lanes); \
            if (valid <= 0) return; \
            real *line[lanes]; \
            for (int lane = 0; lane < valid; ++lane) \
                line[lane] = to + 2 * ig_dft_line_##kind(first + part * lanes + lane, n, inner); \
            const int whole = valid == lanes && line[lanes - 1] - line[0] == 2 * (lanes - 1); \
            for (int64_t k = 0; k < n; ++k) { \
                const ig_vector_##kind *const re = from + k * element + part, *const im = re + IG_DFT_PARTS; \
                if (whole) { \
                    ig_vector_##kind a, b; \
                    IG_OF_LANES_##kind(IG_MIX)(*re, *im, a, b) \
                    memcpy(line[0] + 2 * k * inner, &a, IG_BYTES), memcpy(line[0] + 2 * k * inner + lanes, &b, IG_BYTES); \
                } else { \
                    for (int lane = 0; lane < valid; ++lane) \
                        line[lane][2 * k * inner] = (*re)[lane], line[lane][2 * k * inner + 1] = (*im)[lane]; \
                } \
            } \
        } \
    } \
    /* The lines of one task: `inner` of them lie between two numbers of a line that is read, `inner_out` between two of \
       one that is written. `work` are 4·n + 4 times 64 bytes. */ \
    static void ig_dft_##kind( \
        const real *from, const real *turns, real *to, void *work, int64_t n, int64_t lines, int64_t inner, \
        int64_t inner_out, int64_t task, int mode) \
    { \
        enum { lanes = 64 / sizeof(real), part = IG_DFT_PARTS, element = 2 * IG_DFT_PARTS }; \
        const int64_t wide = ig_max(inner, inner_out), group = wide < lanes ? lines : wide; \
        const int64_t tasks = (group + lanes - 1) / lanes; \
        const int64_t first = task / tasks * group + task % tasks * lanes; \
        const int64_t count = ig_min(lanes, ig_min(lines, task / tasks * group + group) - first); \
        if (count <= 0 || n == 0) return; \
        const int is_even = n % 2 == 0; \
        ig_vector_##kind *x = work, *y = x + (2 * n + 2) * part; \
        if (mode == ig_dft_forward || mode == ig_dft_backward) { \
            ig_dft_read_pairs_##kind(from, n, inner, first, count, x); \
            x = ig_dft_passes_##kind(x, y, turns, n, n, mode == ig_dft_backward); \
            ig_dft_write_pairs_##kind(to, n, inner_out, first, count, x); \
        } else if (mode == ig_dft_of_real) { \
            if (is_even) { \
                ig_dft_read_##kind(from, n, inner, first, count, x, part); \
                ig_vector_##kind *const made = ig_dft_passes_##kind(x, y, turns, n, n / 2, 0); \
                y = made == x ? y : x; \
                ig_dft_separate_##kind(made, y, turns, n / 2); \
            } else { \
                memset(x, 0, (size_t)(n * 2 * 64)); \
                ig_dft_read_##kind(from, n, inner, first, count, x, element); \
                y = ig_dft_passes_##kind(x, y, turns, n, n, 0); \
            } \
            ig_dft_write_pairs_##kind(to, n / 2 + 1, inner_out, first, count, y); \
        } else { \
            ig_dft_read_pairs_##kind(from, n / 2 + 1, inner, first, count, x); \
            if (is_even) ig_dft_join_##kind(x, y, turns, n / 2); \
            else ig_dft_mirror_##kind(x, y, n); \
            y = ig_dft_passes_##kind(y, x, turns, n, is_even ? n / 2 : n, 1); \
            ig_dft_write_##kind(to, n, inner_out, first, count, y, is_even ? part : element); \
        } \
    }
