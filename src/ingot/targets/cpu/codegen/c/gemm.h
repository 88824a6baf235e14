/* Products of rows with a panel of columns, packed as [depth][width]; width is 16, 32, 48 or 64.

   ig_tile_f32_48(rows, distance, panel, depth, sums, high) puts `high` rows of sums, 48 wide, into `sums`. The sums of
   IG_HIGH rows by IG_WIDE vectors stay in registers; one vector more for each column of the panel's line, and one for
   the row's value, fill the register file. After a run of terms they go to memory and begin anew: the rounding error of
   a sum grows with the number of its terms, that of a sum of sums with far fewer. All rows go through a run before the
   next one begins, so that its weights stay in the core's own cache; the next run's are brought there meanwhile.

   A kind says what the factors are: "f32" and "f64" here, "bf16" and "u8" in headers of their own. Each has types of a
   row's values, of weights, of sums and of vectors of sums, how many terms lie side by side in a panel (IG_SIDE), how
   many make a run (IG_RUN), IG_STEPS, which adds the products of a run, and IG_SETTLE, which puts the sums of a tile in
   order where IG_STEPS keeps them in another one. */

typedef float ig_factor_f32, ig_weight_f32, ig_sum_f32;
typedef double ig_factor_f64, ig_weight_f64, ig_sum_f64;
typedef ig_vector_f32 ig_sums_f32;
typedef ig_vector_f64 ig_sums_f64;
enum { IG_SIDE_f32 = 1, IG_SIDE_f64 = 1, IG_RUN_f32 = 512, IG_RUN_f64 = 512 };

#define IG_LANES(real) (IG_BYTES / (int)sizeof(real))
#define IG_WIDE_OF(vectors) \
    (IG_REGISTERS == 16 ? ((vectors) == 1 ? 1 : 2) \
     : (vectors) <= 4 ? (vectors) : (vectors) % 4 == 0 ? 4 : (vectors) % 3 == 0 ? 3 : 2)
#define IG_WIDE(real, width) IG_WIDE_OF((width) / IG_LANES(real))
#define IG_HIGH_OF(wide) (IG_REGISTERS == 16 ? 6 : (wide) == 4 ? 6 : (wide) == 3 ? 8 : 12)
#define IG_HIGH(real, width) IG_HIGH_OF(IG_WIDE(real, width))

/* How many bytes of the next run each step of a tile brings near. Tiles share them evenly, for what is asked for all at
   once is waited for. A single tile reads memory as fast as it comes. */
#define IG_ASK(place) __builtin_prefetch((place), 0, 2)
#define IG_PACE(kind, width, high) \
    ((high) <= IG_HIGH(ig_sum_##kind, width) ? 0 \
     : (IG_HIGH(ig_sum_##kind, width) * IG_WIDE(ig_sum_##kind, width) * IG_BYTES + (high) - 1) / (high))
#define IG_STEP_COUNT(kind, width, terms) \
    (((terms) + IG_SIDE_##kind - 1) / IG_SIDE_##kind * \
     (width / IG_LANES(ig_sum_##kind) / IG_WIDE(ig_sum_##kind, width)))

/* The sums of a run into memory: the first run's are what there is, the others' are added. */
#define IG_FLUSH(kind, real, sums, width, begun) \
    for (int i = 0; i < high; ++i) \
        for (int j = 0; j < wide; ++j) { \
            real *const place = sums + i * width + column + j * lanes; \
            if (begun) { \
                ig_sums_##kind before; \
                memcpy(&before, place, IG_BYTES); \
                sum[i][j] += before; \
            } \
            memcpy(place, &sum[i][j], IG_BYTES); \
        }

/* `high` rows of a run, whose products LOOP adds to `sum`. */
#define IG_TILE_BODY(kind, width, rows, LOOP) \
    { \
        typedef ig_sum_##kind real; \
        enum { lanes = IG_LANES(real), wide = IG_WIDE(real, width), high = rows, side = IG_SIDE_##kind }; \
        for (int column = 0; column < width; column += lanes * wide) { \
            ig_sums_##kind sum[high][wide]; \
            for (int i = 0; i < high; ++i) \
                for (int j = 0; j < wide; ++j) sum[i][j] = (ig_sums_##kind){0}; \
            LOOP \
            IG_SETTLE_##kind() \
            IG_FLUSH(kind, real, sums, width, begun) \
        } \
    }

/* Rows of a matrix lie a distance apart. Of a window they lie anywhere: from[i] is what row i reads for a tap. */
#define IG_ROW_OF_MATRIX(i) (a + (i) * distance)
#define IG_ROW_OF_TAP(i) (from[i])
#define IG_TILE_ROWS(name, kind, width, rows) \
    static inline __attribute__((always_inline)) void name( \
        const ig_factor_##kind *a, int64_t distance, const ig_weight_##kind *b, int64_t terms, ig_sum_##kind *sums, \
        int begun, const char *ahead, int64_t pace) \
    IG_TILE_BODY(kind, width, rows, IG_STEPS_##kind(IG_ROW_OF_MATRIX, b + column * side, terms, width))
#define IG_WINDOW_ROWS(name, kind, width, rows) \
    static inline __attribute__((always_inline)) void name( \
        const ig_factor_##kind *const *a, int64_t apart, int64_t taps, int64_t channels, const ig_weight_##kind *b, \
        ig_sum_##kind *sums, int begun, const char *ahead, int64_t pace) \
    IG_TILE_BODY(kind, width, rows, \
        for (int64_t tap = 0; tap < taps; ++tap) { \
            const ig_weight_##kind *const panel = b + (tap * IG_WHOLE(channels, side) * width) + column * side; \
            const ig_factor_##kind *from[high]; \
            for (int i = 0; i < high; ++i) from[i] = a[tap * apart + i]; \
            IG_STEPS_##kind(IG_ROW_OF_TAP, panel, channels, width) \
        })
#define IG_WHOLE(terms, side) (((terms) + (side) - 1) / (side) * (side))

#define IG_STEPS_SAME(kind, row, panel, terms, width) \
    for (int64_t k = 0; k < (terms); ++k, ahead += pace) { \
        ig_vector_##kind line[wide]; \
        IG_ASK(ahead); \
        for (int j = 0; j < wide; ++j) memcpy(&line[j], (panel) + k * width + j * lanes, IG_BYTES); \
        for (int i = 0; i < high; ++i) { \
            const real x = row(i)[k]; \
            for (int j = 0; j < wide; ++j) sum[i][j] = ig_fma_same_##kind(x, line[j], sum[i][j]); \
        } \
    }
#define IG_SETTLE_f32()
#define IG_SETTLE_f64()
#define IG_STEPS_f32(row, panel, terms, width) IG_STEPS_SAME(f32, row, panel, terms, width)
#define IG_STEPS_f64(row, panel, terms, width) IG_STEPS_SAME(f64, row, panel, terms, width)

#define IG_TILE_HEAD(kind, width) \
    IG_SHARED void ig_tile_##kind##_##width( \
        const ig_factor_##kind *a, int64_t distance, const ig_weight_##kind *b, int64_t depth, ig_sum_##kind *sums, \
        int64_t high);
#define IG_TILE(kind, width) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_1, kind, width, 1) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_2, kind, width, 2) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_4, kind, width, 4) \
    IG_TILE_ROWS(ig_tile_##kind##_##width##_all, kind, width, IG_HIGH(ig_sum_##kind, width)) \
    void ig_tile_##kind##_##width( \
        const ig_factor_##kind *a, int64_t distance, const ig_weight_##kind *b, int64_t depth, ig_sum_##kind *sums, \
        int64_t high) \
    { \
        enum { all = IG_HIGH(ig_sum_##kind, width) }; \
        const int64_t pace = IG_PACE(kind, width, high); \
        int64_t begin = 0; \
        do { \
            const int64_t terms = ig_min(depth - begin, IG_RUN_##kind), each = IG_STEP_COUNT(kind, width, terms) * pace; \
            const ig_factor_##kind *const from = a + begin; \
            const ig_weight_##kind *const run = b + begin * width; \
            const char *ahead = (const char *)(run + IG_WHOLE(terms, IG_SIDE_##kind) * width); \
            int64_t i = 0; \
            for (; i + all <= high; i += all, ahead += each) \
                ig_tile_##kind##_##width##_all( \
                    from + i * distance, distance, run, terms, sums + i * width, begin > 0, ahead, pace); \
            for (; i + 4 <= high; i += 4) \
                ig_tile_##kind##_##width##_4( \
                    from + i * distance, distance, run, terms, sums + i * width, begin > 0, ahead, 0); \
            for (; i + 2 <= high; i += 2) \
                ig_tile_##kind##_##width##_2( \
                    from + i * distance, distance, run, terms, sums + i * width, begin > 0, ahead, 0); \
            for (; i < high; ++i) \
                ig_tile_##kind##_##width##_1( \
                    from + i * distance, distance, run, terms, sums + i * width, begin > 0, ahead, 0); \
            begin += terms; \
        } while (begin < depth); \
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

/* The same sums over windows of an image with channels last, of outputs first, first + 1, … of the flattened (image, y,
   x). `rows` holds what they read of the `run` taps of a run, `apart` pointers for each tap. */
typedef struct {
    int64_t high, wide, pixel;    /* the image: lines, pixels of a line, values of a pixel */
    int64_t out_high, out_wide;   /* the result */
    int64_t taps_high, taps_wide; /* the window */
    int64_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
} ig_window;

/* rows[tap - begin][i] for taps [begin, end) of `count` outputs; outside the image: `outside`. */
#define IG_WINDOWS(kind) \
    static void ig_windows_##kind( \
        const ig_factor_##kind **rows, int64_t apart, const ig_window *w, const ig_factor_##kind *image, \
        const ig_factor_##kind *outside, int64_t first, int64_t count, int64_t begin, int64_t end) \
    { \
        for (int64_t done = 0, here; done < count; done += here) { /* as many as lie on one line */ \
            const int64_t x = (first + done) % w->out_wide, line = (first + done) / w->out_wide; \
            const int64_t top = line % w->out_high * w->stride_y - w->padding_y, n = line / w->out_high; \
            const int64_t left = x * w->stride_x - w->padding_x, step = w->stride_x * w->pixel; \
            here = ig_min(count - done, w->out_wide - x); \
            const ig_factor_##kind **to = rows + done; \
            for (int64_t tap = begin; tap < end; ++tap, to += apart) { \
                const int64_t v = top + tap / w->taps_wide * w->dilation_y; \
                const int64_t u = left + tap % w->taps_wide * w->dilation_x; \
                const ig_factor_##kind *const from = image + ((n * w->high + v) * w->wide + u) * w->pixel; \
                if (v < 0 || v >= w->high) { \
                    for (int64_t i = 0; i < here; ++i) to[i] = outside; \
                } else if (u >= 0 && u + (here - 1) * w->stride_x < w->wide) { \
                    for (int64_t i = 0; i < here; ++i) to[i] = from + i * step; \
                } else { \
                    for (int64_t i = 0; i < here; ++i) { \
                        const int64_t at = u + i * w->stride_x; \
                        to[i] = at >= 0 && at < w->wide ? from + i * step : outside; \
                    } \
                } \
            } \
        } \
    }

#define IG_WINDOW_HEAD(kind, width) \
    IG_SHARED void ig_window_##kind##_##width( \
        const ig_factor_##kind **rows, int64_t apart, const ig_window *w, const ig_factor_##kind *image, \
        const ig_factor_##kind *outside, int64_t run, int64_t channels, const ig_weight_##kind *b, \
        ig_sum_##kind *sums, int64_t first, int64_t high);
#define IG_WINDOW(kind, width) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_1, kind, width, 1) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_2, kind, width, 2) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_4, kind, width, 4) \
    IG_WINDOW_ROWS(ig_window_##kind##_##width##_all, kind, width, IG_HIGH(ig_sum_##kind, width)) \
    void ig_window_##kind##_##width( \
        const ig_factor_##kind **rows, int64_t apart, const ig_window *w, const ig_factor_##kind *image, \
        const ig_factor_##kind *outside, int64_t run, int64_t channels, const ig_weight_##kind *b, \
        ig_sum_##kind *sums, int64_t first, int64_t high) \
    { \
        enum { all = IG_HIGH(ig_sum_##kind, width) }; \
        const int64_t taps = w->taps_high * w->taps_wide, whole = IG_WHOLE(channels, IG_SIDE_##kind) * width; \
        const int64_t pace = IG_PACE(kind, width, high); \
        for (int64_t begin = 0, count; begin < taps; begin += count, b += count * whole) { \
            count = ig_min(taps - begin, run); \
            ig_windows_##kind(rows, apart, w, image, outside, first, high, begin, begin + count); \
            const char *ahead = (const char *)(b + count * whole); \
            const int64_t each = count * IG_STEP_COUNT(kind, width, channels) * pace; \
            int64_t i = 0; \
            for (; i + all <= high; i += all, ahead += each) \
                ig_window_##kind##_##width##_all( \
                    rows + i, apart, count, channels, b, sums + i * width, begin > 0, ahead, pace); \
            for (; i + 4 <= high; i += 4) \
                ig_window_##kind##_##width##_4( \
                    rows + i, apart, count, channels, b, sums + i * width, begin > 0, ahead, 0); \
            for (; i + 2 <= high; i += 2) \
                ig_window_##kind##_##width##_2( \
                    rows + i, apart, count, channels, b, sums + i * width, begin > 0, ahead, 0); \
            for (; i < high; ++i) \
                ig_window_##kind##_##width##_1( \
                    rows + i, apart, count, channels, b, sums + i * width, begin > 0, ahead, 0); \
        } \
    }
