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
