/* Convolutions in which every channel is a group of its own: a vector of channels at a time, along the taps.

   ig_depth_f32(x, b, w, span, tile, width, high, wide) puts the sums of `high` neighbouring outputs, `wide` channels
   each, into `tile`, one output every `width` values. Their taps are those of `span`, which lie inside the image for
   all of them; `x` is the first channel of the first one. Sums stay in registers; a line of taps is read once for all
   outputs. ig_depth_u8 is the same of pixels that are uint8, less `zero`, with taps and sums in float32: they are whole
   numbers, and as long as they are below 2^24 every sum is exact. */

enum { IG_SIDE = 4 }; /* outputs at a time */

/* A vector of a pixel's values from memory. */
#define IG_READ_F(vector, place, zero) ((void)(zero), memcpy(&(vector), place, IG_BYTES))
#define IG_READ_U8(vector, place, zero) ((vector) = __builtin_convertvector(ig_wide_u8(place), ig_vector_f32) - (zero))
typedef uint8_t ig_quarter_u8 __attribute__((vector_size(IG_BYTES / 4)));

/* As many bytes as a vector has lanes, one in each. Compilers take them one by one if it is left to them. */
__attribute__((unused)) static inline __attribute__((always_inline)) ig_vector_i32 ig_wide_u8(const uint8_t *place)
{
    ig_quarter_u8 bytes;
    memcpy(&bytes, place, IG_BYTES / 4);
#if IG_BYTES == 64
    ig_vector_i32 wide;
    __asm__("vpmovzxbd %1, %0" : "=v"(wide) : "vm"(bytes));
    return wide;
#elif IG_BYTES == 32
    ig_vector_i32 wide;
    __asm__("vpmovzxbd %1, %0" : "=x"(wide) : "m"(bytes));
    return wide;
#else
    return __builtin_convertvector(bytes, ig_vector_i32);
#endif
}

typedef struct {
    int64_t top, bottom, left, right; /* taps [top, bottom) × [left, right) */
} ig_span;

/* The taps that lie inside the image for one output line or column: `at` is where its window begins. */
static inline void ig_taps(int64_t at, int64_t size, int64_t dilation, int64_t taps, int64_t *first, int64_t *last)
{
    *first = at < 0 ? ig_min((dilation - 1 - at) / dilation, taps) : 0;
    *last = at < size ? ig_min((size - 1 - at) / dilation + 1, taps) : 0;
    if (*last < *first) *last = *first;
}

#define IG_DEPTH_ROWS(kind, sums, real, stored, read, rows, vectors) \
    static inline __attribute__((always_inline)) void ig_depth_##kind##_##rows##_##vectors( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, \
        real zero) \
    { \
        enum { lanes = IG_LANES(real) }; \
        const int64_t next = w->stride_x * w->pixel; \
        ig_vector_##sums sum[rows][vectors]; \
        for (int i = 0; i < rows; ++i) \
            for (int j = 0; j < vectors; ++j) sum[i][j] = (ig_vector_##sums){0}; \
        for (int64_t a = span->top; a < span->bottom; ++a) \
            for (int64_t t = span->left; t < span->right; ++t) { \
                const stored *const from = x + (a * w->dilation_y * w->wide + t * w->dilation_x) * w->pixel; \
                const real *const factors = b + (a * w->taps_wide + t) * w->pixel; \
                ig_vector_##sums line[vectors]; \
                for (int j = 0; j < vectors; ++j) memcpy(&line[j], factors + j * lanes, IG_BYTES); \
                for (int i = 0; i < rows; ++i) \
                    for (int j = 0; j < vectors; ++j) { \
                        ig_vector_##sums value; \
                        read(value, from + i * next + j * lanes, zero); \
                        sum[i][j] = ig_fma_vector_##sums(value, line[j], sum[i][j]); \
                    } \
            } \
        for (int i = 0; i < rows; ++i) \
            for (int j = 0; j < vectors; ++j) memcpy(tile + i * width + j * lanes, &sum[i][j], IG_BYTES); \
    }

#define IG_DEPTH_HIGH(kind, sums, real, stored, read, rows) \
    IG_DEPTH_ROWS(kind, sums, real, stored, read, rows, 1) \
    IG_DEPTH_ROWS(kind, sums, real, stored, read, rows, 2) \
    static __attribute__((noinline)) void ig_depth_##kind##_##rows( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, int64_t wide, \
        real zero) \
    { \
        enum { lanes = IG_LANES(real) }; \
        int64_t at = 0; \
        for (; at + 2 * lanes <= wide; at += 2 * lanes) \
            ig_depth_##kind##_##rows##_2(x + at, b + at, w, span, tile + at, width, zero); \
        for (; at < wide; at += lanes) ig_depth_##kind##_##rows##_1(x + at, b + at, w, span, tile + at, width, zero); \
    }

#define IG_DEPTH_HEAD(kind, sums, real, stored, read) \
    IG_SHARED void ig_depth_##kind( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, \
        int64_t high, int64_t wide, real zero);
#define IG_DEPTH(kind, sums, real, stored, read) \
    IG_DEPTH_HIGH(kind, sums, real, stored, read, 1) \
    IG_DEPTH_HIGH(kind, sums, real, stored, read, 2) \
    IG_DEPTH_HIGH(kind, sums, real, stored, read, 3) \
    IG_DEPTH_HIGH(kind, sums, real, stored, read, 4) \
    void ig_depth_##kind( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, \
        int64_t high, int64_t wide, real zero) \
    { \
        switch (high) { \
        case 1: ig_depth_##kind##_1(x, b, w, span, tile, width, wide, zero); break; \
        case 2: ig_depth_##kind##_2(x, b, w, span, tile, width, wide, zero); break; \
        case 3: ig_depth_##kind##_3(x, b, w, span, tile, width, wide, zero); break; \
        default: ig_depth_##kind##_4(x, b, w, span, tile, width, wide, zero); break; \
        } \
    }

/* A pointer whose value the compiler takes as it comes: else it keeps a register for every column that it could add. */
#define IG_OPAQUE(pointer) __asm__("" : "+r"(pointer))
/* A vector that is read once and stays where it is: else it is read again for each output. */
#if defined(__AVX512F__)
#define IG_HOLD(vector) __asm__("" : "+v"(vector))
#elif defined(__x86_64__)
#define IG_HOLD(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define IG_HOLD(vector) __asm__("" : "+w"(vector))
#else
#define IG_HOLD(vector) ((void)0)
#endif

/* The same where the columns of taps, and the step between outputs, are known: ig_depths_f32_3_1 for three columns and
   step 1. What neighbouring outputs share is then read once, and taps stay in registers for all of them. */
#define IG_DEPTHS_BLOCK(kind, sums, real, stored, read, taps, step) \
    static inline __attribute__((always_inline)) void ig_depths_block_##kind##_##taps##_##step( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, \
        const int vectors, real zero) \
    { \
        enum { lanes = IG_LANES(real), columns = (IG_SIDE - 1) * step + taps }; \
        const int64_t pixel = w->pixel, next = w->dilation_y * w->wide * pixel; \
        ig_vector_##sums sum[IG_SIDE][3], line[taps][3], value; \
        for (int i = 0; i < IG_SIDE; ++i) \
            for (int j = 0; j < vectors; ++j) sum[i][j] = (ig_vector_##sums){0}; \
        x += span->top * next, b += span->top * taps * pixel; \
        for (int64_t a = span->top; a < span->bottom; ++a, x += next) { \
            const stored *from = x; \
            _Pragma("GCC unroll 8") for (int t = 0; t < taps; ++t, b += pixel) { \
                IG_OPAQUE(b); \
                for (int j = 0; j < vectors; ++j) memcpy(&line[t][j], b + j * lanes, IG_BYTES); \
            } \
            _Pragma("GCC unroll 16") for (int column = 0; column < columns; ++column, from += pixel) { \
                IG_OPAQUE(from); \
                _Pragma("GCC unroll 4") for (int j = 0; j < vectors; ++j) { \
                    read(value, from + j * lanes, zero); \
                    IG_HOLD(value); \
                    _Pragma("GCC unroll 4") for (int i = 0; i < IG_SIDE; ++i) \
                        if (column >= i * step && column < i * step + taps) \
                            sum[i][j] = ig_fma_vector_##sums(value, line[column - i * step][j], sum[i][j]); \
                } \
            } \
        } \
        for (int i = 0; i < IG_SIDE; ++i) \
            for (int j = 0; j < vectors; ++j) memcpy(tile + i * width + j * lanes, &sum[i][j], IG_BYTES); \
    }

#define IG_DEPTHS_HEAD(kind, sums, real, stored, read, taps, step) \
    IG_SHARED void ig_depths_##kind##_##taps##_##step( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, \
        int64_t high, int64_t wide, real zero);
#define IG_DEPTHS(kind, sums, real, stored, read, taps, step) \
    IG_DEPTHS_BLOCK(kind, sums, real, stored, read, taps, step) \
    void ig_depths_##kind##_##taps##_##step( \
        const stored *x, const real *b, const ig_window *w, const ig_span *span, real *tile, int64_t width, \
        int64_t high, int64_t wide, real zero) \
    { \
        enum { lanes = IG_LANES(real), most = IG_REGISTERS == 32 && taps == 3 ? 3 : 2 }; /* what registers hold */ \
        int64_t at = 0; \
        if (high < IG_SIDE || span->left || span->right < taps) { \
            ig_depth_##kind(x, b, w, span, tile, width, high, wide, zero); \
            return; \
        } \
        for (; at + most * lanes <= wide; at += most * lanes) \
            ig_depths_block_##kind##_##taps##_##step(x + at, b + at, w, span, tile + at, width, most, zero); \
        for (; at < wide; at += lanes) \
            ig_depths_block_##kind##_##taps##_##step(x + at, b + at, w, span, tile + at, width, 1, zero); \
    }

/* The columns of taps inside the image for the output at `at`, and how many outputs from there on share them. */
static inline int64_t ig_side_by_side(const ig_window *w, int64_t at, ig_span *span)
{
    const int64_t begin = at * w->stride_x - w->padding_x;
    ig_taps(begin, w->wide, w->dilation_x, w->taps_wide, &span->left, &span->right);
    if (begin < 0) return 1;
    int64_t count = 1;
    const int64_t reach = (w->taps_wide - 1) * w->dilation_x;
    while (count < IG_SIDE && at + count < w->out_wide && begin + count * w->stride_x + reach < w->wide) ++count;
    return begin + reach < w->wide ? count : 1;
}
