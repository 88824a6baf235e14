/* What the tests of random.h compile: each function over a range of elements, as a kernel would. The math functions
   come from the machine here, so that these tests say nothing about ours. */
#include <math.h>
#include <stdint.h>

#define IG_FN static inline __attribute__((always_inline))
#define ig_log_f32 logf
#define ig_log_f64 log
#define ig_cos_f32 cosf
#define ig_cos_f64 cos
#define ig_sqrt_f32 sqrtf
#define ig_sqrt_f64 sqrt
#include "random.h"

void philox(uint64_t key, uint64_t draw, uint64_t i, uint32_t *out) {
    ig_u32x4 x = ig_philox(key, draw, i);
    out[0] = x.a, out[1] = x.b, out[2] = x.c, out[3] = x.d;
}

#define FILL(name, type)                                                                              \
    void name(uint64_t key, uint64_t draw, int64_t begin, int64_t end, type *restrict out) {          \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++)                                     \
            out[i - begin] = ig_##name(key, draw, (uint64_t)i);                                       \
    }

FILL(uniform_f32, float)
FILL(uniform_f64, double)
#ifndef NO_LIBM
FILL(normal_f32, float)
FILL(normal_f64, double)
#endif

void randint_i64(uint64_t key, uint64_t draw, int64_t begin, int64_t end, int64_t *restrict out, int64_t low, int64_t high) {
#pragma omp simd
    for (int64_t i = begin; i < end; i++) out[i - begin] = ig_randint_i64(key, draw, (uint64_t)i, low, high);
}
