/* What every device text begins with. Functions without a word are device functions: NVRTC is told so. */
#include <stdint.h>

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
