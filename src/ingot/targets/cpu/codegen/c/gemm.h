/* Products of a few rows with a panel of columns, packed as [depth][width]; width is 16, 32, 48 or 64.

   ig_tile_f32_48(rows, distance, panel, depth, tile, high) puts `high` rows of sums, 48 wide, into `tile`. The sums of
   IG_HIGH rows by IG_WIDE vectors stay in registers; one vector more for each column of the panel's line, and one for
   the row's value, fill the register file. After IG_RUN terms they go to `tile` and begin anew: the rounding error of a
   sum grows with the number of its terms, that of a sum of sums with far fewer. */

#define IG_LANES(real) (IG_BYTES / (int)sizeof(real))
#define IG_WIDE_OF(vectors) \
    (IG_REGISTERS == 16 ? ((vectors) == 1 ? 1 : 2) \
     : (vectors) <= 4 ? (vectors) : (vectors) % 4 == 0 ? 4 : (vectors) % 3 == 0 ? 3 : 2)
#define IG_WIDE(real, width) IG_WIDE_OF((width) / IG_LANES(real))
#define IG_HIGH_OF(wide) (IG_REGISTERS == 16 ? 6 : (wide) == 4 ? 6 : (wide) == 3 ? 8 : 12)
#define IG_HIGH(real, width) IG_HIGH_OF(IG_WIDE(real, width))
enum { IG_HIGHEST = 12, IG_RUN = 512 };

/* The sums of a run of terms into the tile: the first run's are what there is, the others' are added. */
#define IG_FLUSH(kind, real, width, begun) \
    for (int i = 0; i < high; ++i) \
        for (int j = 0; j < wide; ++j) { \
            real *const place = tile + i * width + column + j * lanes; \
            if (begun) { \
                ig_vector_##kind before; \
                memcpy(&before, place, IG_BYTES); \
                sum[i][j] += before; \
            } \
            memcpy(place, &sum[i][j], IG_BYTES); \
        }

#define IG_TILE_ROWS(name, kind, real, width, rows) \
    static inline __attribute__((always_inline)) void name( \
        const real *a, int64_t distance, const real *b, int64_t depth, real *tile) \
    { \
        enum { lanes = IG_LANES(real), wide = IG_WIDE(real, width), high = rows }; \
        for (int column = 0; column < width; column += lanes * wide) { \
            int64_t begin = 0; \
            do { \
                const int64_t end = ig_min(begin + IG_RUN, depth); \
                ig_vector_##kind sum[high][wide]; \
                for (int i = 0; i < high; ++i) \
                    for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_##kind){0}; \
                for (int64_t k = begin; k < end; ++k) { \
                    ig_vector_##kind line[wide]; \
                    for (int j = 0; j < wide; ++j) memcpy(&line[j], b + k * width + column + j * lanes, IG_BYTES); \
                    for (int i = 0; i < high; ++i) { \
                        const real x = a[i * distance + k]; \
                        for (int j = 0; j < wide; ++j) sum[i][j] = ig_fma_same_##kind(x, line[j], sum[i][j]); \
                    } \
                } \
                IG_FLUSH(kind, real, width, begin) \
                begin = end; \
            } while (begin < depth); \
        } \
    }


#define IG_TILE_HEAD(kind, real, width) \
    IG_SHARED void ig_tile_##kind##_##width( \
        const real *a, int64_t distance, const real *b, int64_t depth, real *tile, int64_t high);
#define IG_TILE(kind, real, width) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_1, kind, real, width, 1) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_2, kind, real, width, 2) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_4, kind, real, width, 4) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_all, kind, real, width, IG_HIGH(real, width)) \
    void ig_tile_##kind##_##width( \
        const real *a, int64_t distance, const real *b, int64_t depth, real *tile, int64_t high) \
    { \
        enum { all = IG_HIGH(real, width) }; \
        int64_t i = 0; \
        for (; i + all <= high; i += all) \
            ig_tile_##kind##_##width##_all(a + i * distance, distance, b, depth, tile + i * width); \
        for (; i + 4 <= high; i += 4) \
            ig_tile_##kind##_##width##_4(a + i * distance, distance, b, depth, tile + i * width); \
        for (; i + 2 <= high; i += 2) \
            ig_tile_##kind##_##width##_2(a + i * distance, distance, b, depth, tile + i * width); \
        for (; i < high; ++i) ig_tile_##kind##_##width##_1(a + i * distance, distance, b, depth, tile + i * width); \
    }

/* Rows of anything as neighbours: to[i][j] = from[i · rows + j · columns]; what is missing up to `width` is 0. */
#define IG_PACK(kind, real, name, stored, read) \
    static void ig_pack_##kind##_from_##name( \
        real *to, int64_t width, const stored *from, int64_t rows, int64_t columns, int64_t high, int64_t wide) \
    { \
        for (int64_t i = 0; i < high; ++i) { \
            real *const line = to + i * width; \
            const stored *const source = from + i * rows; \
            if (columns == 1) \
                for (int64_t j = 0; j < wide; ++j) line[j] = (real)read(source[j]); \
            else \
                for (int64_t j = 0; j < wide; ++j) line[j] = (real)read(source[j * columns]); \
            for (int64_t j = wide; j < width; ++j) line[j] = 0; \
        } \
    }
#define IG_AS_IT_IS(x) (x)

/* The same sums over windows of an image with channels last: rows[tap][i] points at what output i reads for a tap. */
#define IG_WINDOW_ROWS(name, kind, real, width, count) \
    static inline __attribute__((always_inline)) void name( \
        const real *const *rows, int64_t taps, int64_t channels, const real *b, real *tile) \
    { \
        enum { lanes = IG_LANES(real), wide = IG_WIDE(real, width), high = count }; \
        for (int column = 0; column < width; column += lanes * wide) { \
            const int64_t run = ig_max(IG_RUN / ig_max(channels, 1), 1); \
            int64_t begin = 0; \
            do { \
                const int64_t end = ig_min(begin + run, taps); \
                ig_vector_##kind sum[high][wide]; \
                for (int i = 0; i < high; ++i) \
                    for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_##kind){0}; \
                for (int64_t tap = begin; tap < end; ++tap) { \
                    const real *a[high]; \
                    const real *const panel = b + tap * channels * width + column; \
                    for (int i = 0; i < high; ++i) a[i] = rows[tap * IG_HIGHEST + i]; \
                    for (int64_t k = 0; k < channels; ++k) { \
                        ig_vector_##kind line[wide]; \
                        for (int j = 0; j < wide; ++j) memcpy(&line[j], panel + k * width + j * lanes, IG_BYTES); \
                        for (int i = 0; i < high; ++i) { \
                            const real x = a[i][k]; \
                            for (int j = 0; j < wide; ++j) sum[i][j] = ig_fma_same_##kind(x, line[j], sum[i][j]); \
                        } \
                    } \
                } \
                IG_FLUSH(kind, real, width, begin) \
                begin = end; \
            } while (begin < taps); \
        } \
    }

typedef struct {
    int64_t high, wide, pixel;    /* the image: lines, pixels of a line, values of a pixel */
    int64_t out_high, out_wide;   /* the result */
    int64_t taps_high, taps_wide; /* the window */
    int64_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
} ig_window;

#define IG_WINDOW_HEAD(kind, real, width) \
    IG_SHARED void ig_window_##kind##_##width( \
        const real *const *rows, int64_t taps, int64_t channels, const real *b, real *tile, int64_t high);
#define IG_WINDOW(kind, real, width) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_1, kind, real, width, 1) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_2, kind, real, width, 2) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_4, kind, real, width, 4) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_all, kind, real, width, IG_HIGH(real, width)) \
    void ig_window_##kind##_##width( \
        const real *const *rows, int64_t taps, int64_t channels, const real *b, real *tile, int64_t high) \
    { \
        enum { all = IG_HIGH(real, width) }; \
        int64_t i = 0; \
        for (; i + all <= high; i += all) \
            ig_window_##kind##_##width##_all(rows + i, taps, channels, b, tile + i * width); \
        for (; i + 4 <= high; i += 4) ig_window_##kind##_##width##_4(rows + i, taps, channels, b, tile + i * width); \
        for (; i + 2 <= high; i += 2) ig_window_##kind##_##width##_2(rows + i, taps, channels, b, tile + i * width); \
        for (; i < high; ++i) ig_window_##kind##_##width##_1(rows + i, taps, channels, b, tile + i * width); \
    }

/* Fills rows[tap][i] for outputs first, first + 1, … of the flattened (image, y, x); outside the image: zeros. */
#define IG_WINDOWS(kind, real) \
    static void ig_windows_##kind( \
        const real **rows, const ig_window *w, const real *image, const real *zeros, int64_t first, int64_t count) \
    { \
        int64_t x = first % w->out_wide, y = first / w->out_wide % w->out_high, n = first / w->out_wide / w->out_high; \
        const int64_t reach_y = (w->taps_high - 1) * w->dilation_y, reach_x = (w->taps_wide - 1) * w->dilation_x; \
        const int64_t above = y * w->stride_y - w->padding_y, before = x * w->stride_x - w->padding_x; \
        if (above >= 0 && above + reach_y < w->high && before >= 0 && x + count <= w->out_wide && \
            before + (count - 1) * w->stride_x + reach_x < w->wide) { \
            /* All on one line and inside: rows[tap] is a vector, of which no more than `count` are ever read. */ \
            const real *line = image + ((n * w->high + above) * w->wide + before) * w->pixel; \
            const int64_t apart = w->stride_x * w->pixel; \
            for (int64_t a = 0; a < w->taps_high; ++a, line += w->dilation_y * w->wide * w->pixel) \
                for (int64_t b = 0; b < w->taps_wide; ++b, rows += IG_HIGHEST) { \
                    const real *const tap = line + b * w->dilation_x * w->pixel; \
                    for (int64_t i = 0; i < IG_HIGHEST; ++i) rows[i] = tap + i * apart; \
                } \
            return; \
        } \
        for (int64_t i = 0; i < count; ++i, ++x) { \
            if (x == w->out_wide) x = 0, ++y; \
            if (y == w->out_high) y = 0, ++n; \
            const int64_t top = y * w->stride_y - w->padding_y, left = x * w->stride_x - w->padding_x; \
            if (top >= 0 && top + reach_y < w->high && left >= 0 && left + reach_x < w->wide) { \
                const real *line = image + ((n * w->high + top) * w->wide + left) * w->pixel; \
                const real **to = rows + i; \
                for (int64_t a = 0; a < w->taps_high; ++a, line += w->dilation_y * w->wide * w->pixel) \
                    for (int64_t b = 0; b < w->taps_wide; ++b, to += IG_HIGHEST) \
                        *to = line + b * w->dilation_x * w->pixel; \
                continue; \
            } \
            for (int64_t a = 0; a < w->taps_high; ++a) \
                for (int64_t b = 0; b < w->taps_wide; ++b) { \
                    const int64_t v = top + a * w->dilation_y, u = left + b * w->dilation_x; \
                    const int inside = v >= 0 && v < w->high && u >= 0 && u < w->wide; \
                    rows[(a * w->taps_wide + b) * IG_HIGHEST + i] = \
                        inside ? image + ((n * w->high + v) * w->wide + u) * w->pixel : zeros; \
                } \
        } \
    }
