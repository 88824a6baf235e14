/* The tiles of products.h for integers: rows of uint8, panels of int8, sums in int32, four terms at a time.

   Rows lie as they do there. Panels are packed as [fours of terms][width][4]: what one 32-bit lane holds are four terms
   of one column, the earliest one in its low byte. Where the number of terms is not a multiple of four the last weights are
   0, and the values behind the last are never read. Every sum is exact: nothing here saturates. */

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif
typedef int16_t ig_vector_i16 __attribute__((vector_size(IG_BYTES)));

#if defined(__AVX512VNNI__) && IG_BYTES == 64
static inline __attribute__((always_inline)) ig_vector_i32 ig_dot_u8(
    ig_vector_i32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(line));
    return sum;
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
static inline __attribute__((always_inline)) ig_vector_i32 ig_dot_u8(
    ig_vector_i32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
    return (ig_vector_i32)vusdotq_s32((int32x4_t)sum, (uint8x16_t)x, (int8x16_t)line);
}
#elif defined(__ARM_FEATURE_DOTPROD)
/* Both factors without a sign: weights come as those of int8 and 128 more, which IG_LESS_U8 takes back. */
static inline __attribute__((always_inline)) ig_vector_i32 ig_dot_u8(
    ig_vector_i32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
    return (ig_vector_i32)vdotq_u32((uint32x4_t)sum, (uint8x16_t)x, (uint8x16_t)(line ^ 0x80808080u));
}
static inline __attribute__((always_inline)) int32_t ig_add_u8(const uint8_t *row, int64_t terms)
{
    uint32x4_t sums = {0};
    int64_t k = 0;
    for (; k + 16 <= terms; k += 16) sums = vdotq_u32(sums, vld1q_u8(row + k), vdupq_n_u8(1));
    uint32_t sum = vaddvq_u32(sums);
    for (; k < terms; ++k) sum += row[k];
    return (int32_t)(sum * 128);
}
#define IG_LESS_U8(row, terms) \
    for (int i = 0; i < high; ++i) { \
        const int32_t less = ig_add_u8(row(i), terms); \
        for (int j = 0; j < wide; ++j) sum[i][j] -= less; \
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

typedef uint8_t ig_factor_u8;
typedef int8_t ig_weight_u8;
typedef int32_t ig_sum_u8;
typedef ig_vector_i32 ig_sums_u8;
enum { IG_SIDE_u8 = 4, IG_RUN_u8 = 2048 };

/* Four terms for every row and every vector of columns. */
#define IG_FOUR_U8(panel, k, width, value) \
    do { \
        ig_vector_u32 line[wide]; \
        IG_ASK(ahead); \
        for (int j = 0; j < wide; ++j) memcpy(&line[j], (panel) + 4 * ((k) * width + j * lanes), IG_BYTES); \
        for (int i = 0; i < high; ++i) { \
            const ig_vector_u32 x = (ig_vector_u32){0} + (value); \
            for (int j = 0; j < wide; ++j) sum[i][j] = ig_dot_u8(sum[i][j], x, line[j]); \
        } \
    } while (0)
#ifndef IG_LESS_U8
#define IG_LESS_U8(row, terms)
#endif
/* The last four stand by themselves: what every step writes to, compilers keep in registers. */
#define IG_DOTS_U8(row, panel, terms, width) \
    for (int64_t k = 0; k < ((terms) - 1) / 4; ++k, ahead += pace) \
        IG_FOUR_U8(panel, k, width, ig_four_u8(row(i) + 4 * k)); \
    IG_FOUR_U8(panel, ((terms) - 1) / 4, width, ig_last_u8(row(i) + ((terms) - 1) / 4 * 4, (terms) % 4)); \
    IG_LESS_U8(row, terms)
#if defined(__ARM_FEATURE_MATMUL_INT8)
/* The last one to eight of a row, and zeros. */
static inline __attribute__((always_inline)) uint64_t ig_rest_u8(const uint8_t *place, int64_t count)
{
    if (count <= 4) return ig_last_u8(place, count % 4);
    return (uint64_t)ig_last_u8(place + 4, count % 4) << 32 | ig_four_u8(place);
}
#define IG_MULTIPLY_U8(sum, x, columns) \
    (ig_vector_i32)vusmmlaq_s32((int32x4_t)(sum), (uint8x16_t)(x), (int8x16_t)(columns))
#define IG_STEPS_u8(row, panel, terms, width) \
    if (high % 2 == 0) { \
        int64_t k = 0; \
        for (; k + 8 < (terms); k += 8, ahead += 2 * pace) \
            IG_QUARTERS(IG_MULTIPLY_U8, 4, panel, k, width, 1, ig_eight(row(i) + k), ig_eight(row(i + 1) + k)); \
        IG_QUARTERS(IG_MULTIPLY_U8, 4, panel, k, width, k + 4 < (terms), ig_rest_u8(row(i) + k, (terms) - k), \
            ig_rest_u8(row(i + 1) + k, (terms) - k)); \
    } else { \
        IG_DOTS_U8(row, panel, terms, width) \
    }
#define IG_SETTLE_u8() IG_SETTLE_QUARTERS(ig_vector_i32)
#else
#define IG_STEPS_u8(row, panel, terms, width) IG_DOTS_U8(row, panel, terms, width)
#define IG_SETTLE_u8()
#endif
