/* Products of a few rows with a panel of 48 columns, packed as [depth][48].

   ig_tile_f32(rows, distance, panel, depth, tile, high) puts `high` rows of sums, 48 wide, into `tile`; the sums are
   kept in registers over the whole depth, IG_ROWS × IG_WIDE vectors of them at a time. */

#if defined(__AVX512F__)
#define IG_BYTES 64
enum { IG_WIDE = 3, IG_ROWS_F32 = 8, IG_ROWS_F64 = 8 };
#elif defined(__AVX2__)
#define IG_BYTES 32
enum { IG_WIDE = 2, IG_ROWS_F32 = 6, IG_ROWS_F64 = 6 };
#elif defined(__aarch64__)
#define IG_BYTES 16
enum { IG_WIDE = 3, IG_ROWS_F32 = 8, IG_ROWS_F64 = 8 };
#else
#define IG_BYTES 16
enum { IG_WIDE = 2, IG_ROWS_F32 = 4, IG_ROWS_F64 = 4 };
#endif

#define IG_TILE_ROWS(kind, real, vector, rows)                                                                        \
    static inline __attribute__((always_inline)) void ig_tile_##kind##_##rows(                                        \
        const real *a, int64_t distance, const real *b, int64_t depth, real *tile)                                    \
    {                                                                                                                 \
        enum { lanes = IG_BYTES / sizeof(real), width = lanes * IG_WIDE };                                            \
        for (int column = 0; column < 48; column += width) {                                                          \
            vector sum[rows][IG_WIDE];                                                                                \
            for (int i = 0; i < rows; ++i)                                                                            \
                for (int j = 0; j < IG_WIDE; ++j) sum[i][j] = (vector){0};                                            \
            for (int64_t k = 0; k < depth; ++k) {                                                                     \
                vector line[IG_WIDE];                                                                                 \
                for (int j = 0; j < IG_WIDE; ++j) memcpy(&line[j], b + k * 48 + column + j * lanes, sizeof(vector));  \
                for (int i = 0; i < rows; ++i) {                                                                      \
                    const real x = a[i * distance + k];                                                               \
                    for (int j = 0; j < IG_WIDE; ++j) sum[i][j] += x * line[j];                                       \
                }                                                                                                     \
            }                                                                                                         \
            for (int i = 0; i < rows; ++i)                                                                            \
                for (int j = 0; j < IG_WIDE; ++j)                                                                     \
                    memcpy(tile + i * 48 + column + j * lanes, &sum[i][j], sizeof(vector));                           \
        }                                                                                                             \
    }

#define IG_TILE(kind, real)                                                                                           \
    typedef real ig_vector_##kind __attribute__((vector_size(IG_BYTES)));                                             \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 1)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 2)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 3)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 4)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 5)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 6)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 7)                                                                     \
    IG_TILE_ROWS(kind, real, ig_vector_##kind, 8)                                                                     \
    static __attribute__((noinline)) void ig_tile_##kind(                                                             \
        const real *a, int64_t distance, const real *b, int64_t depth, real *tile, int64_t high)                      \
    {                                                                                                                 \
        switch (high) {                                                                                               \
        case 1: ig_tile_##kind##_1(a, distance, b, depth, tile); break;                                               \
        case 2: ig_tile_##kind##_2(a, distance, b, depth, tile); break;                                               \
        case 3: ig_tile_##kind##_3(a, distance, b, depth, tile); break;                                               \
        case 4: ig_tile_##kind##_4(a, distance, b, depth, tile); break;                                               \
        case 5: ig_tile_##kind##_5(a, distance, b, depth, tile); break;                                               \
        case 6: ig_tile_##kind##_6(a, distance, b, depth, tile); break;                                               \
        case 7: ig_tile_##kind##_7(a, distance, b, depth, tile); break;                                               \
        default: ig_tile_##kind##_8(a, distance, b, depth, tile); break;                                              \
        }                                                                                                             \
    }

/* Rows of anything as neighbours: to[i][j] = from[i · rows + j · columns]; what is missing up to `width` is 0. */
#define IG_PACK(kind, real, name, stored, read)                                                                       \
    static void ig_pack_##kind##_from_##name(                                                                         \
        real *to, int64_t width, const stored *from, int64_t rows, int64_t columns, int64_t high, int64_t wide)       \
    {                                                                                                                 \
        for (int64_t i = 0; i < high; ++i) {                                                                          \
            real *const line = to + i * width;                                                                        \
            const stored *const source = from + i * rows;                                                             \
            if (columns == 1)                                                                                         \
                for (int64_t j = 0; j < wide; ++j) line[j] = (real)read(source[j]);                                   \
            else                                                                                                      \
                for (int64_t j = 0; j < wide; ++j) line[j] = (real)read(source[j * columns]);                         \
            for (int64_t j = wide; j < width; ++j) line[j] = 0;                                                       \
        }                                                                                                             \
    }
#define IG_AS_IT_IS(x) (x)

/* The same sums over windows of an image with channels last. `rows[tap][i]` points at what output i reads for a tap. */
#define IG_WINDOW_ROWS(kind, real, vector, high)                                                                      \
    static inline __attribute__((always_inline)) void ig_window_##kind##_##high(                                      \
        const real *const *rows, int64_t taps, int64_t channels, const real *b, real *tile)                           \
    {                                                                                                                 \
        enum { lanes = IG_BYTES / sizeof(real), width = lanes * IG_WIDE };                                            \
        for (int column = 0; column < 48; column += width) {                                                          \
            vector sum[high][IG_WIDE];                                                                                \
            for (int i = 0; i < high; ++i)                                                                            \
                for (int j = 0; j < IG_WIDE; ++j) sum[i][j] = (vector){0};                                            \
            for (int64_t tap = 0; tap < taps; ++tap) {                                                                \
                const real *a[high];                                                                                  \
                const real *const panel = b + tap * channels * 48 + column;                                           \
                for (int i = 0; i < high; ++i) a[i] = rows[tap * 8 + i];                                              \
                for (int64_t k = 0; k < channels; ++k) {                                                              \
                    vector line[IG_WIDE];                                                                             \
                    for (int j = 0; j < IG_WIDE; ++j) memcpy(&line[j], panel + k * 48 + j * lanes, sizeof(vector));   \
                    for (int i = 0; i < high; ++i) {                                                                  \
                        const real x = a[i][k];                                                                       \
                        for (int j = 0; j < IG_WIDE; ++j) sum[i][j] += x * line[j];                                   \
                    }                                                                                                 \
                }                                                                                                     \
            }                                                                                                         \
            for (int i = 0; i < high; ++i)                                                                            \
                for (int j = 0; j < IG_WIDE; ++j)                                                                     \
                    memcpy(tile + i * 48 + column + j * lanes, &sum[i][j], sizeof(vector));                           \
        }                                                                                                             \
    }

typedef struct {
    int64_t high, wide, pixel;         /* the image: lines, pixels of a line, values of a pixel */
    int64_t out_high, out_wide;        /* the result */
    int64_t taps_high, taps_wide;      /* the window */
    int64_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
} ig_window;

/* Fills rows[tap][i] for outputs first, first + 1, … of the flattened (image, y, x); outside of the image: zeros. */
#define IG_WINDOW(kind, real)                                                                                         \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 1)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 2)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 3)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 4)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 5)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 6)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 7)                                                                   \
    IG_WINDOW_ROWS(kind, real, ig_vector_##kind, 8)                                                                   \
    static __attribute__((noinline)) void ig_window_##kind(                                                           \
        const real *const *rows, int64_t taps, int64_t channels, const real *b, real *tile, int64_t high)             \
    {                                                                                                                 \
        switch (high) {                                                                                               \
        case 1: ig_window_##kind##_1(rows, taps, channels, b, tile); break;                                           \
        case 2: ig_window_##kind##_2(rows, taps, channels, b, tile); break;                                           \
        case 3: ig_window_##kind##_3(rows, taps, channels, b, tile); break;                                           \
        case 4: ig_window_##kind##_4(rows, taps, channels, b, tile); break;                                           \
        case 5: ig_window_##kind##_5(rows, taps, channels, b, tile); break;                                           \
        case 6: ig_window_##kind##_6(rows, taps, channels, b, tile); break;                                           \
        case 7: ig_window_##kind##_7(rows, taps, channels, b, tile); break;                                           \
        default: ig_window_##kind##_8(rows, taps, channels, b, tile); break;                                          \
        }                                                                                                             \
    }                                                                                                                 \
    static void ig_windows_##kind(                                                                                    \
        const real **rows, const ig_window *w, const real *image, const real *zeros, int64_t first, int64_t count)    \
    {                                                                                                                 \
        for (int64_t i = 0; i < count; ++i) {                                                                         \
            const int64_t x = (first + i) % w->out_wide, rest = (first + i) / w->out_wide;                            \
            const int64_t y = rest % w->out_high, n = rest / w->out_high;                                             \
            const int64_t top = y * w->stride_y - w->padding_y, left = x * w->stride_x - w->padding_x;                \
            for (int64_t a = 0; a < w->taps_high; ++a)                                                                \
                for (int64_t b = 0; b < w->taps_wide; ++b) {                                                          \
                    const int64_t v = top + a * w->dilation_y, u = left + b * w->dilation_x;                          \
                    const int inside = v >= 0 && v < w->high && u >= 0 && u < w->wide;                                \
                    rows[(a * w->taps_wide + b) * 8 + i] =                                                            \
                        inside ? image + ((n * w->high + v) * w->wide + u) * w->pixel : zeros;                        \
                }                                                                                                     \
        }                                                                                                             \
    }
