/* Math of generated code, 1 of 7: bits, rounding, exact arithmetic, scaling.
 *
 * A model's file holds the functions it uses and what those need, each taken from the comment that names it to the
 * next such comment (ingot.codegen.math_library). Unless a comment says otherwise a function is branch-free, calls
 * nothing outside these files, takes every value including inf, nan and denormals, and vectorizes in a loop under
 * `#pragma omp simd`. Results are within 4 units in the last place (2 for exp and log).
 */

/* ig_prelude: needs nothing */
#include <stdint.h>

/* Inlined always: a call that stays a call stops the vectorizer. */
#define IG_FN static inline __attribute__((always_inline, unused))
/* For what cannot vectorize anyway: one copy in the file. */
#define IG_SCALAR static __attribute__((unused))

#define IG_INF_F32 __builtin_inff()
#define IG_NAN_F32 __builtin_nanf("")
#define IG_INF_F64 __builtin_inf()
#define IG_NAN_F64 __builtin_nan("")

/* Without these instructions the compiler's builtins would become calls into libm. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define IG_HAS_FMA 1
#else
#define IG_HAS_FMA 0
#endif
#if defined(__SSE4_1__) || defined(__aarch64__)
#define IG_HAS_ROUND 1
#else
#define IG_HAS_ROUND 0
#endif

/* ig_bits_f32: needs nothing */
IG_FN uint32_t ig_bits_f32(float x)
{
    union { float value; uint32_t bits; } u = {x};
    return u.bits;
}

/* ig_from_bits_f32: needs nothing */
IG_FN float ig_from_bits_f32(uint32_t bits)
{
    union { uint32_t bits; float value; } u = {bits};
    return u.value;
}

/* ig_bits_f64: needs nothing */
IG_FN uint64_t ig_bits_f64(double x)
{
    union { double value; uint64_t bits; } u = {x};
    return u.bits;
}

/* ig_from_bits_f64: needs nothing */
IG_FN double ig_from_bits_f64(uint64_t bits)
{
    union { uint64_t bits; double value; } u = {bits};
    return u.value;
}

/* ig_fabs_f32: needs nothing */
IG_FN float ig_fabs_f32(float x) { return __builtin_fabsf(x); }

/* ig_fabs_f64: needs nothing */
IG_FN double ig_fabs_f64(double x) { return __builtin_fabs(x); }

/* ig_copysign_f32: needs nothing */
IG_FN float ig_copysign_f32(float size, float sign) { return __builtin_copysignf(size, sign); }

/* ig_copysign_f64: needs nothing */
IG_FN double ig_copysign_f64(double size, double sign) { return __builtin_copysign(size, sign); }

/* ig_sqrt_f32: needs nothing */
IG_FN float ig_sqrt_f32(float x) { return __builtin_sqrtf(x); }

/* ig_sqrt_f64: needs nothing */
IG_FN double ig_sqrt_f64(double x) { return __builtin_sqrt(x); }

/* ig_rsqrt_f32: needs nothing */
IG_FN float ig_rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }

/* ig_rsqrt_f64: needs nothing */
IG_FN double ig_rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }

/* ig_round_f32: needs nothing
   To the nearest integer, ties to even. */
IG_FN float ig_round_f32(float x)
{
#if IG_HAS_ROUND
    return __builtin_rintf(x);
#else
    float size = __builtin_fabsf(x);
    /* The sum is rounded to an integer; volatile-free because nothing here may be reassociated. */
    float whole = (size + 8388608.0f) - 8388608.0f;
    return __builtin_copysignf(size < 8388608.0f ? whole : size, x);
#endif
}

/* ig_round_f64: needs nothing
   To the nearest integer, ties to even. */
IG_FN double ig_round_f64(double x)
{
#if IG_HAS_ROUND
    return __builtin_rint(x);
#else
    double size = __builtin_fabs(x);
    double whole = (size + 4503599627370496.0) - 4503599627370496.0;
    return __builtin_copysign(size < 4503599627370496.0 ? whole : size, x);
#endif
}

/* ig_floor_f32: needs ig_round_f32 */
IG_FN float ig_floor_f32(float x)
{
#if IG_HAS_ROUND
    return __builtin_floorf(x);
#else
    float near = ig_round_f32(x);
    return __builtin_copysignf(near > x ? near - 1.0f : near, x);
#endif
}

/* ig_floor_f64: needs ig_round_f64 */
IG_FN double ig_floor_f64(double x)
{
#if IG_HAS_ROUND
    return __builtin_floor(x);
#else
    double near = ig_round_f64(x);
    return __builtin_copysign(near > x ? near - 1.0 : near, x);
#endif
}

/* ig_ceil_f32: needs ig_floor_f32 */
IG_FN float ig_ceil_f32(float x)
{
#if IG_HAS_ROUND
    return __builtin_ceilf(x);
#else
    return -ig_floor_f32(-x);
#endif
}

/* ig_ceil_f64: needs ig_floor_f64 */
IG_FN double ig_ceil_f64(double x)
{
#if IG_HAS_ROUND
    return __builtin_ceil(x);
#else
    return -ig_floor_f64(-x);
#endif
}

/* ig_trunc_f32: needs ig_floor_f32 */
IG_FN float ig_trunc_f32(float x)
{
#if IG_HAS_ROUND
    return __builtin_truncf(x);
#else
    return __builtin_copysignf(ig_floor_f32(__builtin_fabsf(x)), x);
#endif
}

/* ig_trunc_f64: needs ig_floor_f64 */
IG_FN double ig_trunc_f64(double x)
{
#if IG_HAS_ROUND
    return __builtin_trunc(x);
#else
    return __builtin_copysign(ig_floor_f64(__builtin_fabs(x)), x);
#endif
}

/* ig_fma_f32: needs nothing
   a·b + c, rounded once where the machine has an instruction for that. Compilers may not form one by themselves: which
   they form depends on what lies around an expression, and the same expression would have other bits elsewhere. */
IG_FN float ig_fma_f32(float a, float b, float c)
{
#if IG_HAS_FMA
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* ig_fma_f64: needs nothing
   a·b + c, rounded once where the machine has an instruction for that. */
IG_FN double ig_fma_f64(double a, double b, double c)
{
#if IG_HAS_FMA
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* ig_product_rest_f32: needs nothing
   a·b - product exactly, where product is a·b rounded. */
IG_FN float ig_product_rest_f32(float a, float b, float product)
{
#if IG_HAS_FMA
    return __builtin_fmaf(a, b, -product);
#else
    return (float)((double)a * b - product);
#endif
}

/* ig_product_rest_f64: needs nothing
   a·b - product exactly, where product is a·b rounded; without a fused multiply-add, for sizes below 2^996 only. */
IG_FN double ig_product_rest_f64(double a, double b, double product)
{
#if IG_HAS_FMA
    return __builtin_fma(a, b, -product);
#else
    double wide_a = a * 134217729.0, wide_b = b * 134217729.0;
    double a_hi = wide_a - (wide_a - a), b_hi = wide_b - (wide_b - b);
    double a_lo = a - a_hi, b_lo = b - b_hi;
    return ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo;
#endif
}

/* ig_pow2_f32: needs ig_from_bits_f32
   2^n for n from -126 to 127; another n gives some float, which callers do not use. */
IG_FN float ig_pow2_f32(int32_t n) { return ig_from_bits_f32((uint32_t)(n + 127) << 23); }

/* ig_pow2_f64: needs ig_from_bits_f64
   2^n for n from -1022 to 1023; another n gives some double, which callers do not use. */
IG_FN double ig_pow2_f64(int64_t n) { return ig_from_bits_f64((uint64_t)(n + 1023) << 52); }

/* ig_scale_f32: needs ig_pow2_f32
   x·2^n, rounded once, for x from 0.5 to 2 and n from -250 to 250. */
IG_FN float ig_scale_f32(float x, int32_t n)
{
    int32_t half = n >> 1;
    return x * ig_pow2_f32(half) * ig_pow2_f32(n - half);
}

/* ig_scale_f64: needs ig_pow2_f64
   x·2^n, rounded once, for x from 0.5 to 2 and n from -2000 to 2000. */
IG_FN double ig_scale_f64(double x, int64_t n)
{
    int64_t half = n >> 1;
    return x * ig_pow2_f64(half) * ig_pow2_f64(n - half);
}

/* ig_frexp_f32: needs ig_bits_f32, ig_from_bits_f32
   x = result·2^exponent with the result's size from 0.5 to 1; 0, inf and nan are their own result with exponent 0. */
IG_FN float ig_frexp_f32(float x, int32_t *exponent)
{
    float size = __builtin_fabsf(x);
    int denormal = size < 0x1p-126f;
    uint32_t bits = ig_bits_f32(denormal ? x * 0x1p30f : x);
    int32_t found = (int32_t)(bits >> 23 & 255) - (denormal ? 156 : 126);
    int odd = size == 0.0f || !(size < IG_INF_F32);
    *exponent = odd ? 0 : found;
    return odd ? x : ig_from_bits_f32((bits & 0x807fffffu) | 0x3f000000u);
}

/* ig_frexp_f64: needs ig_bits_f64, ig_from_bits_f64
   x = result·2^exponent with the result's size from 0.5 to 1; 0, inf and nan are their own result with exponent 0. */
IG_FN double ig_frexp_f64(double x, int32_t *exponent)
{
    double size = __builtin_fabs(x);
    int denormal = size < 0x1p-1022;
    uint64_t bits = ig_bits_f64(denormal ? x * 0x1p60 : x);
    int32_t found = (int32_t)(bits >> 52 & 2047) - (denormal ? 1082 : 1022);
    int odd = size == 0.0 || !(size < IG_INF_F64);
    *exponent = odd ? 0 : found;
    return odd ? x : ig_from_bits_f64((bits & 0x800fffffffffffffu) | 0x3fe0000000000000u);
}

/* ig_ldexp_f32: needs ig_frexp_f32, ig_scale_f32
   x·2^n, rounded once, for every n. */
IG_FN float ig_ldexp_f32(float x, int32_t n)
{
    int32_t exponent;
    float fraction = ig_frexp_f32(x, &exponent);
    /* Beyond these every result has overflowed or vanished. */
    int32_t step = n < -500 ? -500 : (n > 500 ? 500 : n);
    int32_t total = exponent + step;
    total = total < -200 ? -200 : (total > 200 ? 200 : total);
    return ig_scale_f32(fraction, total);
}

/* ig_ldexp_f64: needs ig_frexp_f64, ig_scale_f64
   x·2^n, rounded once, for every n. */
IG_FN double ig_ldexp_f64(double x, int32_t n)
{
    int32_t exponent;
    double fraction = ig_frexp_f64(x, &exponent);
    int32_t step = n < -3000 ? -3000 : (n > 3000 ? 3000 : n);
    int32_t total = exponent + step;
    total = total < -1500 ? -1500 : (total > 1500 ? 1500 : total);
    return ig_scale_f64(fraction, total);
}

/* ig_nextafter_f32: needs ig_bits_f32, ig_from_bits_f32
   The neighbour of x on the side of y. */
IG_FN float ig_nextafter_f32(float x, float y)
{
    uint32_t bits = ig_bits_f32(x), sign = bits & 0x80000000u;
    /* Away from zero is up in the bits, whatever the sign. */
    uint32_t moved = (x < y) == (sign == 0) ? bits + 1 : bits - 1;
    float smallest = ig_from_bits_f32((ig_bits_f32(y) & 0x80000000u) | 1u);
    float near = x == 0.0f ? smallest : ig_from_bits_f32(moved);
    return x != x || y != y ? x + y : (x == y ? y : near);
}

/* ig_nextafter_f64: needs ig_bits_f64, ig_from_bits_f64
   The neighbour of x on the side of y. */
IG_FN double ig_nextafter_f64(double x, double y)
{
    uint64_t bits = ig_bits_f64(x), sign = bits & 0x8000000000000000u;
    uint64_t moved = (x < y) == (sign == 0) ? bits + 1 : bits - 1;
    double smallest = ig_from_bits_f64((ig_bits_f64(y) & 0x8000000000000000u) | 1u);
    double near = x == 0.0 ? smallest : ig_from_bits_f64(moved);
    return x != x || y != y ? x + y : (x == y ? y : near);
}

/* ig_hypot_f32: needs nothing
   In double, where the squares of floats neither overflow nor vanish. */
IG_FN float ig_hypot_f32(float x, float y)
{
    double a = x, b = y;
    float size = (float)__builtin_sqrt(a * a + b * b);
    return __builtin_fabsf(x) == IG_INF_F32 || __builtin_fabsf(y) == IG_INF_F32 ? IG_INF_F32 : size;
}

/* ig_hypot_f64: needs nothing */
IG_FN double ig_hypot_f64(double x, double y)
{
    double a = __builtin_fabs(x), b = __builtin_fabs(y);
    double big = a < b ? b : a, small = a < b ? a : b;
    double ratio = small / (big == 0.0 ? 1.0 : big);
    double size = big * __builtin_sqrt(1.0 + ratio * ratio);
    size = x != x || y != y ? x + y : size;
    return a == IG_INF_F64 || b == IG_INF_F64 ? IG_INF_F64 : size;
}
