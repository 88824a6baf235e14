/* The tiles of products.h for numbers that are bfloat16: sums in float32, two terms at a time.

   Rows lie as they do there. Panels are packed as [pairs of terms][width][2]: what one 32-bit lane holds are two terms
   of one column, the earlier one in its low half. Where the number of terms is odd the last pair's second weight is 0,
   and its second value is never read. */

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

/* sum + both products of each lane, the second term's first: as the instruction has it. */
static inline __attribute__((always_inline)) ig_vector_f32 ig_dot_bf16(
    ig_vector_f32 sum, ig_vector_u32 x, ig_vector_u32 line)
{
#if defined(__AVX512BF16__) && IG_BYTES == 64
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(line), "v"(x));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    sum = (ig_vector_f32)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)line);
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

typedef uint16_t ig_factor_bf16, ig_weight_bf16;
typedef float ig_sum_bf16;
typedef ig_vector_f32 ig_sums_bf16;
enum { IG_SIDE_bf16 = 2, IG_RUN_bf16 = 512 };

/* One pair of terms for every row and every vector of columns. */
#define IG_PAIR_BF16(panel, k, width, value) \
    do { \
        ig_vector_u32 line[wide]; \
        IG_ASK(ahead); \
        for (int j = 0; j < wide; ++j) memcpy(&line[j], (panel) + 2 * ((k) * width + j * lanes), IG_BYTES); \
        for (int i = 0; i < high; ++i) { \
            const ig_vector_u32 x = (ig_vector_u32){0} + (value); \
            for (int j = 0; j < wide; ++j) sum[i][j] = ig_dot_bf16(sum[i][j], x, line[j]); \
        } \
    } while (0)
#define IG_DOTS_BF16(row, panel, terms, width) \
    for (int64_t k = 0; k < (terms) / 2; ++k, ahead += pace) IG_PAIR_BF16(panel, k, width, ig_pair_bf16(row(i) + 2 * k)); \
    if ((terms) % 2) IG_PAIR_BF16(panel, (terms) / 2, width, (uint32_t)row(i)[(terms) - 1]);
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/* The last one to four terms of a row, and zeros. */
static inline __attribute__((always_inline)) uint64_t ig_rest_bf16(const uint16_t *place, int64_t count)
{
    if (count >= 4) return ig_eight(place);
    uint64_t rest = place[0];
    if (count > 1) rest |= (uint64_t)place[1] << 16;
    if (count > 2) rest |= (uint64_t)place[2] << 32;
    return rest;
}
#define IG_MULTIPLY_BF16(sum, x, columns) \
    (ig_vector_f32)vbfmmlaq_f32((float32x4_t)(sum), (bfloat16x8_t)(x), (bfloat16x8_t)(columns))
#define IG_STEPS_bf16(row, panel, terms, width) \
    if (high % 2 == 0) { \
        int64_t k = 0; \
        for (; k + 4 < (terms); k += 4, ahead += 2 * pace) \
            IG_QUARTERS(IG_MULTIPLY_BF16, 2, panel, k, width, 1, ig_eight(row(i) + k), ig_eight(row(i + 1) + k)); \
        IG_QUARTERS(IG_MULTIPLY_BF16, 2, panel, k, width, k + 2 < (terms), ig_rest_bf16(row(i) + k, (terms) - k), \
            ig_rest_bf16(row(i + 1) + k, (terms) - k)); \
    } else { \
        IG_DOTS_BF16(row, panel, terms, width) \
    }
#define IG_SETTLE_bf16() IG_SETTLE_QUARTERS(ig_vector_f32)
#else
#define IG_STEPS_bf16(row, panel, terms, width) IG_DOTS_BF16(row, panel, terms, width)
#define IG_SETTLE_bf16()
#endif
