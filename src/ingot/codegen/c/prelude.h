#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INF_F32 (__builtin_inff())
#define INF_F64 (__builtin_inf())
#define NAN_F32 (__builtin_nanf(""))
#define NAN_F64 (__builtin_nan(""))

/* What a model may do without: no compiler is to warn of it. */
#define IG_OPTIONAL __attribute__((unused)) static inline

IG_OPTIONAL int64_t ig_min(int64_t a, int64_t b) { return a < b ? a : b; }
IG_OPTIONAL int64_t ig_max(int64_t a, int64_t b) { return a > b ? a : b; }
IG_OPTIONAL int64_t ig_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
IG_OPTIONAL int64_t ig_floor_mod(int64_t a, int64_t b) { return a - ig_floor_div(a, b) * b; }
IG_OPTIONAL int64_t ig_round_up(int64_t bytes) { return bytes < 64 ? 64 : (bytes + 63) / 64 * 64; }
