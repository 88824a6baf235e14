/* The tiles of products.h for integers: rows of uint8, panels of int8, sums in int32, four terms at a time.

   Rows lie as they do there. Panels are packed as [fours of terms][width][4]: what one 32-bit lane holds are four terms
   of one column, the earliest one in its low byte. Where the number of terms is not a multiple of four the last weights are
   0, and the values behind the last are never read. Every sum is exact: nothing here saturates. */

typedef int16_t ig_vector_i16 __attribute__((vector_size(IG_BYTES)));

#if defined(__AVX512VNNI__) && IG_BYTES == 64
static inline __attribute__((always_inline)) ig_vector_i32 ig_dot_u8(
    ig_vector_i32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(line));
    return sum;
}
#elif defined(__SSE2__)
/* Products of neighbours, added: the instruction that multiplies bytes would saturate at 16 bits. */
static inline __attribute__((always_inline)) ig_vector_i32 ig_both_i16(ig_vector_i16 a, ig_vector_i16 b)
{
#if IG_BYTES == 64
    __asm__("vpmaddwd %1, %0, %0" : "+v"(a) : "v"(b));
#elif IG_BYTES == 32
    __asm__("vpmaddwd %1, %0, %0" : "+x"(a) : "x"(b));
#else
    __asm__("pmaddwd %1, %0" : "+x"(a) : "x"(b));
#endif
    return (ig_vector_i32)a;
}
static inline __attribute__((always_inline)) ig_vector_i32 ig_dot_u8(
    ig_vector_i32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
    const ig_vector_i16 first = (ig_vector_i16)(x & 0x00ff00ffu), second = (ig_vector_i16)(x >> 8 & 0x00ff00ffu);
    sum += ig_both_i16(first, (ig_vector_i16)(line << 8) >> 8);
    return sum + ig_both_i16(second, (ig_vector_i16)line >> 8);
}
#else
static inline __attribute__((always_inline)) ig_vector_i32 ig_dot_u8(
    ig_vector_i32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
    for (int term = 0; term < 4; ++term)
        sum += (ig_vector_i32)(x >> 8 * term & 0xffu) * ((ig_vector_i32)(line << (24 - 8 * term)) >> 24);
    return sum;
}
#endif

static inline __attribute__((always_inline)) uint32_t ig_four_u8(const uint8_t *place)
{
    uint32_t four;
    memcpy(&four, place, 4);
    return four;
}

/* The last one to four of a row; 0 stands for four. */
static inline __attribute__((always_inline)) uint32_t ig_last_u8(const uint8_t *place, int64_t count)
{
    if (count == 0) return ig_four_u8(place);
    uint32_t four = place[0];
    if (count > 1) four |= (uint32_t)place[1] << 8;
    if (count > 2) four |= (uint32_t)place[2] << 16;
    return four;
}

/* Each tile asks for a part of the panel behind its own, a line of memory a step, so that it is near when its turn comes:
   panels are read from beginning to end, and processors do not look beyond a page. */
#if IG_BYTES == 64
#define IG_ASK(place) __builtin_prefetch((place), 0, 2)
#else
#define IG_ASK(place) ((void)(place))
#endif
#define IG_AHEAD(panel, terms, width, tile) \
    ((panel) + (int64_t)(terms) * (width) + (tile) % ((width) / 16) * (16 * (int64_t)(terms)))

/* Four terms for every row and every vector of columns; `value` is row i's. */
#define IG_STEP_U8(panel, value, ahead) \
    do { \
        ig_vector_u32 line[wide]; \
        IG_ASK(ahead); \
        for (int j = 0; j < wide; ++j) memcpy(&line[j], (panel) + 4 * j * lanes, IG_BYTES); \
        for (int i = 0; i < high; ++i) { \
            const ig_vector_u32 x = (ig_vector_u32){0} + (value); \
            for (int j = 0; j < wide; ++j) sum[i][j] = ig_dot_u8(sum[i][j], x, line[j]); \
        } \
    } while (0)

#define IG_TILE_ROWS_U8(name, width, rows) \
    static inline __attribute__((always_inline)) void name( \
        const uint8_t *a, int64_t distance, const int8_t *b, int64_t depth, int32_t *tile, const int8_t *ahead) \
    { \
        enum { lanes = IG_LANES(int32_t), wide = IG_WIDE(int32_t, width), high = rows }; \
        const int64_t last = (depth - 1) / 4, rest = depth % 4; \
        for (int column = 0; column < width; column += lanes * wide) { \
            ig_vector_i32 sum[high][wide]; \
            for (int i = 0; i < high; ++i) \
                for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_i32){0}; \
            for (int64_t k = 0; k < last; ++k) \
                IG_STEP_U8(b + 4 * (k * width + column), ig_four_u8(a + i * distance + 4 * k), ahead + 64 * k); \
            IG_STEP_U8( \
                b + 4 * (last * width + column), ig_last_u8(a + i * distance + 4 * last, rest), ahead + 64 * last); \
            IG_FLUSH(i32, int32_t, width, 0) \
        } \
    }

#define IG_TILE_U8_HEAD(width) \
    IG_SHARED void ig_tile_u8_##width( \
        const uint8_t *a, int64_t distance, const int8_t *b, int64_t depth, int32_t *tile, int64_t high, \
        const int8_t *ahead);
#define IG_TILE_U8(width) \
    IG_TILE_ROWS_U8(ig_tile_u8_##width##_1, width, 1) \
    IG_TILE_ROWS_U8(ig_tile_u8_##width##_2, width, 2) \
    IG_TILE_ROWS_U8(ig_tile_u8_##width##_4, width, 4) \
    IG_TILE_ROWS_U8(ig_tile_u8_##width##_all, width, IG_HIGH(int32_t, width)) \
    void ig_tile_u8_##width( \
        const uint8_t *a, int64_t distance, const int8_t *b, int64_t depth, int32_t *tile, int64_t high, \
        const int8_t *ahead) \
    { \
        enum { all = IG_HIGH(int32_t, width) }; \
        int64_t i = 0; \
        for (; i + all <= high; i += all) \
            ig_tile_u8_##width##_all(a + i * distance, distance, b, depth, tile + i * width, ahead); \
        for (; i + 4 <= high; i += 4) \
            ig_tile_u8_##width##_4(a + i * distance, distance, b, depth, tile + i * width, ahead); \
        for (; i + 2 <= high; i += 2) \
            ig_tile_u8_##width##_2(a + i * distance, distance, b, depth, tile + i * width, ahead); \
        for (; i < high; ++i) ig_tile_u8_##width##_1(a + i * distance, distance, b, depth, tile + i * width, ahead); \
    }

/* Over windows of an image with channels last. A tap's channels are in fours among themselves. */
#define IG_WINDOW_ROWS_U8(name, width, count) \
    static inline __attribute__((always_inline)) void name( \
        const uint8_t *const *rows, int64_t taps, int64_t channels, const int8_t *b, int32_t *tile, \
        const int8_t *ahead) \
    { \
        enum { lanes = IG_LANES(int32_t), wide = IG_WIDE(int32_t, width), high = count }; \
        const int64_t last = (channels - 1) / 4, rest = channels % 4; \
        for (int column = 0; column < width; column += lanes * wide) { \
            ig_vector_i32 sum[high][wide]; \
            for (int i = 0; i < high; ++i) \
                for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_i32){0}; \
            int64_t tap = 0; \
            do { /* the last four stand by themselves: what every turn writes to, compilers keep in registers */ \
                const uint8_t *a[high]; \
                const int8_t *const panel = b + 4 * (tap * (last + 1) * width + column); \
                for (int i = 0; i < high; ++i) a[i] = rows[tap * IG_HIGHEST + i]; \
                for (int64_t k = 0; k < last; ++k, ahead += 64) \
                    IG_STEP_U8(panel + 4 * k * width, ig_four_u8(a[i] + 4 * k), ahead); \
                IG_STEP_U8(panel + 4 * last * width, ig_last_u8(a[i] + 4 * last, rest), ahead); \
                ahead += 64; \
            } while (++tap < taps); \
            IG_FLUSH(i32, int32_t, width, 0) \
        } \
    }

#define IG_WINDOW_U8_HEAD(width) \
    IG_SHARED void ig_window_u8_##width( \
        const uint8_t *const *rows, int64_t taps, int64_t channels, const int8_t *b, int32_t *tile, int64_t high, \
        const int8_t *ahead);
#define IG_WINDOW_U8(width) \
    IG_WINDOW_ROWS_U8(ig_window_u8_##width##_1, width, 1) \
    IG_WINDOW_ROWS_U8(ig_window_u8_##width##_2, width, 2) \
    IG_WINDOW_ROWS_U8(ig_window_u8_##width##_4, width, 4) \
    IG_WINDOW_ROWS_U8(ig_window_u8_##width##_all, width, IG_HIGH(int32_t, width)) \
    void ig_window_u8_##width( \
        const uint8_t *const *rows, int64_t taps, int64_t channels, const int8_t *b, int32_t *tile, int64_t high, \
        const int8_t *ahead) \
    { \
        enum { all = IG_HIGH(int32_t, width) }; \
        int64_t i = 0; \
        for (; i + all <= high; i += all) \
            ig_window_u8_##width##_all(rows + i, taps, channels, b, tile + i * width, ahead); \
        for (; i + 4 <= high; i += 4) ig_window_u8_##width##_4(rows + i, taps, channels, b, tile + i * width, ahead); \
        for (; i + 2 <= high; i += 2) ig_window_u8_##width##_2(rows + i, taps, channels, b, tile + i * width, ahead); \
        for (; i < high; ++i) ig_window_u8_##width##_1(rows + i, taps, channels, b, tile + i * width, ahead); \
    }
