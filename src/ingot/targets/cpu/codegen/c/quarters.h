/* Tiles of two rows by two columns in one vector, as Arm's instructions for products of matrices have them: each adds
   eight bytes of two rows times eight bytes of two columns.

   Of the rows i and i + 1 and four columns, sum[i][j] holds those of the first two columns, row by row, and
   sum[i + 1][j] those of the other two; at the end of a tile IG_SETTLE_QUARTERS puts each row's in its own vector. A
   panel's line has four bytes of each column: two lines one after the other, zipped, have eight. */

#if defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>

static inline __attribute__((always_inline)) uint64_t ig_eight(const void *place)
{
    uint64_t eight;
    memcpy(&eight, place, 8);
    return eight;
}

/* A line of a panel, or zeros for the one behind the last. */
static inline __attribute__((always_inline)) uint32x4_t ig_line(const void *place, int there)
{
    uint32x4_t line = {0};
    if (there) memcpy(&line, place, 16);
    return line;
}

/* The terms k to k + 2 · side, `side` of them in four bytes; `first` and `second` are those of the rows i and i + 1.
   Without `both`, only the first half is there. */
#define IG_QUARTERS(multiply, side, panel, k, width, both, first, second) \
    do { \
        uint64x2_t x[high / 2 + 1]; \
        IG_ASK(ahead); \
        for (int i = 0; i < high; i += 2) x[i / 2] = (uint64x2_t){first, second}; \
        for (int j = 0; j < wide; ++j) { \
            const uint32x4_t line = ig_line((panel) + (k) * width + side * j * lanes, 1); \
            const uint32x4_t after = ig_line((panel) + ((k) + side) * width + side * j * lanes, both); \
            const uint32x4_t left = vzip1q_u32(line, after), right = vzip2q_u32(line, after); \
            for (int i = 0; i < high; i += 2) { \
                sum[i][j] = multiply(sum[i][j], x[i / 2], left); \
                sum[i + 1][j] = multiply(sum[i + 1][j], x[i / 2], right); \
            } \
        } \
    } while (0)
#define IG_SETTLE_QUARTERS(vector) \
    if (high % 2 == 0) \
        for (int i = 0; i < high; i += 2) \
            for (int j = 0; j < wide; ++j) { \
                const uint64x2_t left = (uint64x2_t)sum[i][j], right = (uint64x2_t)sum[i + 1][j]; \
                sum[i][j] = (vector)vzip1q_u64(left, right); \
                sum[i + 1][j] = (vector)vzip2q_u64(left, right); \
            }
#endif
