/* Winograd F(2×2, 3×3): four outputs of a 3×3 convolution from 16 products instead of 36.

   A tile is 2×2 outputs and the 4×4 pixels that they read. ig_spread_f32 turns a tile's pixels into 16 values, each a
   sum of four of them, which lie `step` apart: one for each of the 16 products. ig_gather_f32 turns 16 sums of
   products, `step` apart, into 4 lines of outputs. Both only add; the weights' part is done when they are packed. */

#define IG_WINOGRAD_HEAD(kind, real) \
    IG_SHARED void ig_spread_##kind( \
        const real *image, real *to, int64_t step, int64_t high, int64_t wide, int64_t channels, int64_t top, \
        int64_t left); \
    IG_SHARED void ig_gather_##kind(const real *sums, int64_t step, real *tile, int64_t width);

/* B'·d: what lies before each minus, and behind it, over four vectors a step apart. */
#define IG_SPREAD(a, b, c, d) \
    do { \
        const __typeof__(a) before = a, after = c; \
        a = before - after; \
        c = after - b; \
        d = b - d; \
        b = b + after; \
    } while (0)

#define IG_WINOGRAD(kind, real) \
    void ig_spread_##kind( \
        const real *image, real *to, int64_t step, int64_t high, int64_t wide, int64_t channels, int64_t top, \
        int64_t left) \
    { \
        enum { lanes = IG_LANES(real) }; \
        static const real none[lanes]; \
        const real *from[4][4]; \
        int64_t along[4][4]; \
        for (int y = 0; y < 4; ++y) \
            for (int x = 0; x < 4; ++x) { \
                const int inside = top + y >= 0 && top + y < high && left + x >= 0 && left + x < wide; \
                from[y][x] = inside ? image + ((top + y) * wide + left + x) * channels : none; \
                along[y][x] = inside; \
            } \
        for (int64_t c = 0; c < channels; c += lanes) { \
            ig_vector_##kind d[4][4]; \
            for (int y = 0; y < 4; ++y) \
                for (int x = 0; x < 4; ++x) memcpy(&d[y][x], from[y][x] + c * along[y][x], IG_BYTES); \
            for (int x = 0; x < 4; ++x) IG_SPREAD(d[0][x], d[1][x], d[2][x], d[3][x]); \
            for (int y = 0; y < 4; ++y) { \
                IG_SPREAD(d[y][0], d[y][1], d[y][2], d[y][3]); \
                for (int x = 0; x < 4; ++x) memcpy(to + (y * 4 + x) * step + c, &d[y][x], IG_BYTES); \
            } \
        } \
    } \
    void ig_gather_##kind(const real *sums, int64_t step, real *tile, int64_t width) \
    { \
        enum { lanes = IG_LANES(real) }; \
        for (int64_t c = 0; c < width; c += lanes) { \
            ig_vector_##kind m[4][4], s[2][4]; \
            for (int y = 0; y < 4; ++y) \
                for (int x = 0; x < 4; ++x) memcpy(&m[y][x], sums + (y * 4 + x) * step + c, IG_BYTES); \
            for (int x = 0; x < 4; ++x) { \
                s[0][x] = m[0][x] + m[1][x] + m[2][x]; \
                s[1][x] = m[1][x] - m[2][x] - m[3][x]; \
            } \
            for (int y = 0; y < 2; ++y) { \
                const ig_vector_##kind first = s[y][0] + s[y][1] + s[y][2], second = s[y][1] - s[y][2] - s[y][3]; \
                memcpy(tile + y * 2 * width + c, &first, IG_BYTES); \
                memcpy(tile + (y * 2 + 1) * width + c, &second, IG_BYTES); \
            } \
        } \
    }
