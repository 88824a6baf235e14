/* What every device text begins with. Functions without a qualifier are device functions, by an option of NVRTC. */
#include <stdint.h>

/* A device has fused multiply-adds and rounds in one instruction: by these names the math library asks for it. */
#ifndef __FMA__
#define __FMA__ 1
#endif
#ifndef __SSE4_1__
#define __SSE4_1__ 1
#endif

#ifndef IG_EMULATED
/* The names that gcc has for functions of the device's math library. Those of doubles are overloaded here. */
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000LL)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000LL)
#define __builtin_fabsf fabsf
#define __builtin_fabs(x) fabs((double)(x))
#define __builtin_sqrtf __fsqrt_rn
#define __builtin_sqrt(x) sqrt((double)(x))
#define __builtin_floorf floorf
#define __builtin_floor(x) floor((double)(x))
#define __builtin_ceilf ceilf
#define __builtin_ceil(x) ceil((double)(x))
#define __builtin_truncf truncf
#define __builtin_trunc(x) trunc((double)(x))
#define __builtin_rintf rintf
#define __builtin_rint(x) rint((double)(x))
#define __builtin_copysignf copysignf
#define __builtin_copysign(x, y) copysign((double)(x), (double)(y))
#define __builtin_fmaf fmaf
#define __builtin_fma(x, y, z) fma((double)(x), (double)(y), (double)(z))
#define __builtin_fmaxf fmaxf
#define __builtin_fmax(x, y) fmax((double)(x), (double)(y))
#define __builtin_fminf fminf
#define __builtin_fmin(x, y) fmin((double)(x), (double)(y))
#endif

#define INF_F32 (__builtin_inff())
#define INF_F64 (__builtin_inf())
#define NAN_F32 (__builtin_nanf(""))
#define NAN_F64 (__builtin_nan(""))
#define IG_OPTIONAL __attribute__((unused)) static inline

enum { INGOT_OK, INGOT_INVALID, INGOT_ASSERTION, INGOT_INDEX, INGOT_MEMORY, INGOT_ZERO_DIVISION, INGOT_DEVICE };

/* What every kernel gets as its last parameter: where it reports what is wrong, and from which draw its random numbers
   follow. */
struct ig_context {
    unsigned *status;
    int site;
    uint64_t seed, draw;
};

IG_OPTIONAL int64_t ig_min(int64_t a, int64_t b) { return a < b ? a : b; }
IG_OPTIONAL int64_t ig_max(int64_t a, int64_t b) { return a > b ? a : b; }
IG_OPTIONAL int64_t ig_clamp(int64_t a, int64_t limit) { return a < 0 ? 0 : a > limit ? limit : a; }
IG_OPTIONAL int64_t ig_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
IG_OPTIONAL int64_t ig_floor_mod(int64_t a, int64_t b) { return a - ig_floor_div(a, b) * b; }
