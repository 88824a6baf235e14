/* The tiles of products.h for numbers that are bfloat16: sums in float32, two terms at a time.

   Rows lie as they do there. Panels are packed as [pairs of terms][width][2]: what one 32-bit lane holds are two terms
   of one column, the earlier one in its low half. Where the number of terms is odd the last pair's second weight is 0,
   and its second value is never read. */

/* sum + both products of each lane, the second term's first: as the instruction has it. */
static inline __attribute__((always_inline)) ig_vector_f32 ig_dot_bf16(
    ig_vector_f32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
#if defined(__AVX512BF16__) && IG_BYTES == 64
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(line), "v"(x));
#else
    sum = ig_fma_vector_f32((ig_vector_f32)(x & 0xffff0000u), (ig_vector_f32)(line & 0xffff0000u), sum);
    sum = ig_fma_vector_f32((ig_vector_f32)(x << 16), (ig_vector_f32)(line << 16), sum);
#endif
    return sum;
}

static inline __attribute__((always_inline)) uint32_t ig_pair_bf16(const uint16_t *place)
{
    uint32_t pair;
    memcpy(&pair, place, 4);
    return pair;
}

/* One pair of terms for every row and every vector of columns; `value` is row i's. */
#define IG_STEP_BF16(panel, value) \
    do { \
        ig_vector_u32 line[wide]; \
        for (int j = 0; j < wide; ++j) memcpy(&line[j], (panel) + 2 * j * lanes, IG_BYTES); \
        for (int i = 0; i < high; ++i) { \
            const ig_vector_u32 x = (ig_vector_u32){0} + (value); \
            for (int j = 0; j < wide; ++j) sum[i][j] = ig_dot_bf16(sum[i][j], x, line[j]); \
        } \
    } while (0)

#define IG_TILE_ROWS_BF16(name, width, rows) \
    static inline __attribute__((always_inline)) void name( \
        const uint16_t *a, int64_t distance, const uint16_t *b, int64_t depth, float *tile) \
    { \
        enum { lanes = IG_LANES(float), wide = IG_WIDE(float, width), high = rows }; \
        const int64_t pairs = (depth + 1) / 2; \
        for (int column = 0; column < width; column += lanes * wide) { \
            int64_t begin = 0; \
            do { \
                const int64_t end = ig_min(begin + IG_RUN / 2, pairs), whole = ig_min(end, depth / 2); \
                ig_vector_f32 sum[high][wide]; \
                for (int i = 0; i < high; ++i) \
                    for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_f32){0}; \
                for (int64_t k = begin; k < whole; ++k) \
                    IG_STEP_BF16(b + 2 * (k * width + column), ig_pair_bf16(a + i * distance + 2 * k)); \
                if (whole < end) IG_STEP_BF16(b + 2 * (whole * width + column), (uint32_t)a[i * distance + 2 * whole]); \
                IG_FLUSH(f32, float, width, begin) \
                begin = end; \
            } while (begin < pairs); \
        } \
    }

#define IG_TILE_BF16_HEAD(width) \
    IG_SHARED void ig_tile_bf16_##width( \
        const uint16_t *a, int64_t distance, const uint16_t *b, int64_t depth, float *tile, int64_t high);
#define IG_TILE_BF16(width) \
    IG_TILE_ROWS_BF16(ig_tile_bf16_##width##_1, width, 1) \
    IG_TILE_ROWS_BF16(ig_tile_bf16_##width##_2, width, 2) \
    IG_TILE_ROWS_BF16(ig_tile_bf16_##width##_4, width, 4) \
    IG_TILE_ROWS_BF16(ig_tile_bf16_##width##_all, width, IG_HIGH(float, width)) \
    void ig_tile_bf16_##width( \
        const uint16_t *a, int64_t distance, const uint16_t *b, int64_t depth, float *tile, int64_t high) \
    { \
        enum { all = IG_HIGH(float, width) }; \
        int64_t i = 0; \
        for (; i + all <= high; i += all) \
            ig_tile_bf16_##width##_all(a + i * distance, distance, b, depth, tile + i * width); \
        for (; i + 4 <= high; i += 4) ig_tile_bf16_##width##_4(a + i * distance, distance, b, depth, tile + i * width); \
        for (; i + 2 <= high; i += 2) ig_tile_bf16_##width##_2(a + i * distance, distance, b, depth, tile + i * width); \
        for (; i < high; ++i) ig_tile_bf16_##width##_1(a + i * distance, distance, b, depth, tile + i * width); \
    }

/* Over windows of an image with channels last. A tap's channels are paired among themselves. */
#define IG_WINDOW_ROWS_BF16(name, width, count) \
    static inline __attribute__((always_inline)) void name( \
        const uint16_t *const *rows, int64_t taps, int64_t channels, const uint16_t *b, float *tile) \
    { \
        enum { lanes = IG_LANES(float), wide = IG_WIDE(float, width), high = count }; \
        const int64_t pairs = (channels + 1) / 2, whole = channels / 2; \
        for (int column = 0; column < width; column += lanes * wide) { \
            const int64_t run = ig_max(IG_RUN / ig_max(channels, 1), 1); \
            int64_t begin = 0; \
            do { \
                const int64_t end = ig_min(begin + run, taps); \
                ig_vector_f32 sum[high][wide]; \
                for (int i = 0; i < high; ++i) \
                    for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_f32){0}; \
                for (int64_t tap = begin; tap < end; ++tap) { \
                    const uint16_t *a[high]; \
                    const uint16_t *const panel = b + 2 * (tap * pairs * width + column); \
                    for (int i = 0; i < high; ++i) a[i] = rows[tap * IG_HIGHEST + i]; \
                    for (int64_t k = 0; k < whole; ++k) \
                        IG_STEP_BF16(panel + 2 * k * width, ig_pair_bf16(a[i] + 2 * k)); \
                    if (whole < pairs) IG_STEP_BF16(panel + 2 * whole * width, (uint32_t)a[i][2 * whole]); \
                } \
                IG_FLUSH(f32, float, width, begin) \
                begin = end; \
            } while (begin < taps); \
        } \
    }

#define IG_WINDOW_BF16_HEAD(width) \
    IG_SHARED void ig_window_bf16_##width( \
        const uint16_t *const *rows, int64_t taps, int64_t channels, const uint16_t *b, float *tile, int64_t high);
#define IG_WINDOW_BF16(width) \
    IG_WINDOW_ROWS_BF16(ig_window_bf16_##width##_1, width, 1) \
    IG_WINDOW_ROWS_BF16(ig_window_bf16_##width##_2, width, 2) \
    IG_WINDOW_ROWS_BF16(ig_window_bf16_##width##_4, width, 4) \
    IG_WINDOW_ROWS_BF16(ig_window_bf16_##width##_all, width, IG_HIGH(float, width)) \
    void ig_window_bf16_##width( \
        const uint16_t *const *rows, int64_t taps, int64_t channels, const uint16_t *b, float *tile, int64_t high) \
    { \
        enum { all = IG_HIGH(float, width) }; \
        int64_t i = 0; \
        for (; i + all <= high; i += all) \
            ig_window_bf16_##width##_all(rows + i, taps, channels, b, tile + i * width); \
        for (; i + 4 <= high; i += 4) ig_window_bf16_##width##_4(rows + i, taps, channels, b, tile + i * width); \
        for (; i + 2 <= high; i += 2) ig_window_bf16_##width##_2(rows + i, taps, channels, b, tile + i * width); \
        for (; i < high; ++i) ig_window_bf16_##width##_1(rows + i, taps, channels, b, tile + i * width); \
    }
