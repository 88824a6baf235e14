/* Products with weights that are integers of 4 or 8 bits, each with the scale of its column and group of terms.

   A panel's codes lie as [groups][words of a group][width] words of 32 bits: a word has 8 or 4 terms of one column, the
   first one lowest, in two's complement; a group's last word is filled up with zeros. Scales, and zeros where there are
   any (kinds s4z and s8z), lie as [groups][width]. A weight is (code - zero) · scale.

   ig_stream_s4_48 puts `high` rows of sums into `tile` as ig_tile_f32_48 does. Codes are widened in registers, and the
   sums of a group are scaled once, so that a few rows take as long as reading the codes.
   ig_widen_s4_48 writes the panel out as float32, for ig_tile_f32_48: better for many rows. */

/* Bytes that are asked for ahead of their use: a panel's end is followed by the next panel. */
enum { IG_CODED_AHEAD = 1024 };

/* Term `term` of each lane's word as float32. */
static inline __attribute__((always_inline)) ig_vector_f32 ig_code_s4(ig_vector_u32 word, int term)
{
#if defined(__AVX512F__) && IG_BYTES == 64
    /* The lowest four bits of a lane choose one of sixteen numbers, whatever the others are. */
    const ig_vector_f32 values = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    ig_vector_f32 value;
    __asm__("vpermps %1, %2, %0" : "=v"(value) : "v"(values), "v"(word >> (4 * term)));
    return value;
#else
    return __builtin_convertvector((ig_vector_i32)(word << (28 - 4 * term)) >> 28, ig_vector_f32);
#endif
}

static inline __attribute__((always_inline)) ig_vector_f32 ig_code_s8(ig_vector_u32 word, int term)
{
    return __builtin_convertvector((ig_vector_i32)(word << (24 - 8 * term)) >> 24, ig_vector_f32);
}

static inline __attribute__((always_inline)) ig_vector_f32 ig_load_f32(const float *place)
{
    ig_vector_f32 value;
    memcpy(&value, place, IG_BYTES);
    return value;
}

#define IG_TERMS_s4 8
#define IG_TERMS_s8 4
#define IG_TERMS_s4z 8
#define IG_TERMS_s8z 4
#define IG_ZERO_s4(place) ((ig_vector_f32){0})
#define IG_ZERO_s8(place) ((ig_vector_f32){0})
#define IG_ZERO_s4z(place) ig_load_f32(place)
#define IG_ZERO_s8z(place) ig_load_f32(place)
#define IG_NEXT_s4(zeros, width) (zeros)
#define IG_NEXT_s8(zeros, width) (zeros)
#define IG_NEXT_s4z(zeros, width) ((zeros) + (width))
#define IG_NEXT_s8z(zeros, width) ((zeros) + (width))
#define IG_VALUE_s4(word, term, zero) ig_code_s4(word, term)
#define IG_VALUE_s8(word, term, zero) ig_code_s8(word, term)
#define IG_VALUE_s4z(word, term, zero) (ig_code_s4(word, term) - (zero))
#define IG_VALUE_s8z(word, term, zero) (ig_code_s8(word, term) - (zero))

/* Written out, for a loop over terms would not always be unrolled, and the shifts are to be known. */
#define IG_EACH_s8(step, kind) step(kind, 0) step(kind, 1) step(kind, 2) step(kind, 3)
#define IG_EACH_s4(step, kind) IG_EACH_s8(step, kind) step(kind, 4) step(kind, 5) step(kind, 6) step(kind, 7)
#define IG_EACH_s8z(step, kind) IG_EACH_s8(step, kind)
#define IG_EACH_s4z(step, kind) IG_EACH_s4(step, kind)

#define IG_STREAM_TERM(kind, term) \
    for (int j = 0; j < wide; ++j) { \
        const ig_vector_f32 value = IG_VALUE_##kind(line[j], term, zero[j]); \
        for (int i = 0; i < high; ++i) \
            sum[i][j] = ig_fma_same_f32(a[i * distance + k + term], value, sum[i][j]); \
    }
#define IG_STREAM_LINE() \
    for (int j = 0; j < wide; ++j) { \
        memcpy(&line[j], b + j * lanes, IG_BYTES); \
        __builtin_prefetch((const char *)(b + j * lanes) + IG_CODED_AHEAD); \
    }

#define IG_STREAM_ROWS(name, kind, width, rows) \
    static inline __attribute__((always_inline)) void name( \
        const float *a, int64_t distance, const uint32_t *panel, const float *scales, const float *zeros, \
        int64_t depth, int64_t group, float *tile) \
    { \
        enum { lanes = IG_LANES(float), wide = IG_WIDE(float, width), high = rows, terms = IG_TERMS_##kind }; \
        (void)zeros; \
        for (int column = 0; column < width; column += lanes * wide) { \
            const uint32_t *b = panel + column; \
            int64_t k = 0; \
            for (int64_t at = column; k < depth; at += width) { \
                ig_vector_f32 scale[wide], zero[wide]; \
                for (int j = 0; j < wide; ++j) { \
                    scale[j] = ig_load_f32(scales + at + j * lanes); \
                    zero[j] = IG_ZERO_##kind(zeros + at + j * lanes); \
                    (void)zero[j]; \
                } \
                for (const int64_t to = k + group; k < to;) { \
                    const int64_t begin = k, end = ig_min(k + IG_RUN_f32, to); \
                    ig_vector_f32 sum[high][wide]; \
                    ig_vector_u32 line[wide]; \
                    for (int i = 0; i < high; ++i) \
                        for (int j = 0; j < wide; ++j) sum[i][j] = (ig_vector_f32){0}; \
                    for (; k + terms <= end; k += terms, b += width) { \
                        IG_STREAM_LINE() \
                        IG_EACH_##kind(IG_STREAM_TERM, kind) \
                    } \
                    if (k < end) { \
                        IG_STREAM_LINE() \
                        b += width; \
                        for (int term = 0; k < end; ++k, ++term) \
                            for (int j = 0; j < wide; ++j) { \
                                const ig_vector_f32 value = IG_VALUE_##kind(line[j], term, zero[j]); \
                                for (int i = 0; i < high; ++i) \
                                    sum[i][j] = ig_fma_same_f32(a[i * distance + k], value, sum[i][j]); \
                            } \
                    } \
                    for (int i = 0; i < high; ++i) \
                        for (int j = 0; j < wide; ++j) sum[i][j] *= scale[j]; \
                    IG_FLUSH(f32, float, tile, width, begin) \
                } \
            } \
        } \
    }

#define IG_STREAM_HEAD(kind, real, width) \
    IG_SHARED void ig_stream_##kind##_##width( \
        const float *a, int64_t distance, const uint32_t *b, const float *scales, const float *zeros, int64_t depth, \
        int64_t group, float *tile, int64_t high);
#define IG_STREAM(kind, real, width) \
    IG_STREAM_ROWS(ig_stream_##kind##_##width##_1, kind, width, 1) \
    IG_STREAM_ROWS(ig_stream_##kind##_##width##_2, kind, width, 2) \
    IG_STREAM_ROWS(ig_stream_##kind##_##width##_4, kind, width, 4) \
    void ig_stream_##kind##_##width( \
        const float *a, int64_t distance, const uint32_t *b, const float *scales, const float *zeros, int64_t depth, \
        int64_t group, float *tile, int64_t high) \
    { \
        int64_t i = 0; \
        for (; i + 4 <= high; i += 4) \
            ig_stream_##kind##_##width##_4(a + i * distance, distance, b, scales, zeros, depth, group, tile + i * width); \
        for (; i + 2 <= high; i += 2) \
            ig_stream_##kind##_##width##_2(a + i * distance, distance, b, scales, zeros, depth, group, tile + i * width); \
        for (; i < high; ++i) \
            ig_stream_##kind##_##width##_1(a + i * distance, distance, b, scales, zeros, depth, group, tile + i * width); \
    }

#define IG_WIDEN_TERM(kind, term) \
    { \
        const ig_vector_f32 value = IG_VALUE_##kind(line, term, zero) * scale; \
        memcpy(to + term * across, &value, IG_BYTES); \
    }

#define IG_WIDEN_HEAD(kind, real, width) \
    IG_SHARED void ig_widen_##kind##_##width( \
        const uint32_t *b, const float *scales, const float *zeros, int64_t depth, int64_t group, float *panel);
#define IG_WIDEN(kind, real, width) \
    void ig_widen_##kind##_##width( \
        const uint32_t *b, const float *scales, const float *zeros, int64_t depth, int64_t group, float *panel) \
    { \
        enum { lanes = IG_LANES(float), across = width, terms = IG_TERMS_##kind }; \
        const int64_t words = (group + terms - 1) / terms; \
        for (int64_t first = 0; first < depth; first += group, b += words * width, scales += width) { \
            for (int64_t word = 0; word < words; ++word) { \
                const int64_t k = word * terms, left = group - k; \
                for (int column = 0; column < width; column += lanes) { \
                    const ig_vector_f32 scale = ig_load_f32(scales + column), zero = IG_ZERO_##kind(zeros + column); \
                    float *const to = panel + (first + k) * width + column; \
                    ig_vector_u32 line; \
                    (void)zero; \
                    memcpy(&line, b + word * width + column, IG_BYTES); \
                    if (left >= terms) { \
                        IG_EACH_##kind(IG_WIDEN_TERM, kind) \
                    } else { \
                        for (int term = 0; term < left; ++term) IG_WIDEN_TERM(kind, term) \
                    } \
                } \
            } \
            zeros = IG_NEXT_##kind(zeros, width); \
        } \
    }
