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
IG_OPTIONAL int64_t ig_clamp(int64_t a, int64_t limit) { return a < 0 ? 0 : a > limit ? limit : a; }
IG_OPTIONAL int64_t ig_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
IG_OPTIONAL int64_t ig_floor_mod(int64_t a, int64_t b) { return a - ig_floor_div(a, b) * b; }
IG_OPTIONAL int64_t ig_round_up(int64_t bytes) { return bytes < 64 ? 64 : (bytes + 63) / 64 * 64; }

/* Sizes of a call: where one cannot be computed, *over becomes 1 and the result is of no use. */
IG_OPTIONAL int64_t ig_checked_add(int64_t a, int64_t b, int *over)
{
    int64_t sum;
    *over |= __builtin_add_overflow(a, b, &sum);
    return sum;
}
IG_OPTIONAL int64_t ig_checked_mul(int64_t a, int64_t b, int *over)
{
    int64_t product;
    *over |= __builtin_mul_overflow(a, b, &product);
    return product;
}
IG_OPTIONAL int64_t ig_checked_div(int64_t a, int64_t b, int *over)
{
    *over |= b == 0;
    return b == 0 ? 0 : b == -1 ? ig_checked_mul(a, b, over) : ig_floor_div(a, b);
}
IG_OPTIONAL int64_t ig_checked_mod(int64_t a, int64_t b, int *over)
{
    *over |= b == 0;
    return b == 0 || b == -1 ? 0 : ig_floor_mod(a, b);
}
/* More bytes than any machine addresses; see codegen/checked_sizes.py. */
#define IG_MOST_BYTES (INT64_C(1) << 56)

/* The file as a whole, or, with IG_PART and IG_PARTS defined, one part of it, so that several compilers can work side by
   side: part 0 is the run, with the pool and what is exported; kernels and the functions that they share lie in groups,
   for the other parts. A shared function (IG_SHARED) is worth its call; copies of it, one for each caller, would only
   take time to compile. */
#ifdef IG_PART
#define IG_IN_RUN (IG_PART == 0)
#define IG_IN(group) ((group) % (IG_PARTS - 1) + 1 == IG_PART)
#define IG_KERNEL __attribute__((visibility("hidden")))
#else
#define IG_IN_RUN 1
#define IG_IN(group) 1
#define IG_KERNEL static
#endif
#if defined(__GNUC__) && !defined(__clang__)
#define IG_SHARED __attribute__((noipa, unused)) IG_KERNEL
#else
#define IG_SHARED __attribute__((noinline, unused)) IG_KERNEL
#endif
/* A long list of calls. What gcc finds out about its pointers takes time that grows with the square of their number. */
#if defined(__GNUC__) && !defined(__clang__)
#define IG_CALLS __attribute__((optimize("no-tree-pta")))
#else
#define IG_CALLS
#endif
/* One turn of the loops around a loop along vectors. gcc, left to itself, joins turns of loops that compare integers,
   and then finds no vectors in what it made. */
#if defined(__GNUC__) && !defined(__clang__)
#define IG_TURN() __asm__ volatile("")
#else
#define IG_TURN() ((void)0)
#endif
typedef void ig_kernel(void *context, int64_t begin, int64_t end, int worker);
