/* The widest vectors of the machine that is compiled for, and multiply-adds of them. */

#include <stdint.h>

#if defined(__AVX512F__)
#define IG_BYTES 64
#define IG_REGISTERS 32
#elif defined(__AVX2__)
#define IG_BYTES 32
#define IG_REGISTERS 16
#elif defined(__aarch64__)
#define IG_BYTES 16
#define IG_REGISTERS 32
#else
#define IG_BYTES 16
#define IG_REGISTERS 16
#endif

typedef float ig_vector_f32 __attribute__((vector_size(IG_BYTES)));
typedef double ig_vector_f64 __attribute__((vector_size(IG_BYTES)));
typedef int32_t ig_vector_i32 __attribute__((vector_size(IG_BYTES)));
typedef uint32_t ig_vector_u32 __attribute__((vector_size(IG_BYTES)));

/* a·b + c of vectors, rounded once where there is an instruction for it. It is asked for by name, for contraction is
   off: see ig_fma_f32. A function that uses IG_FMA says IG_CONTRACTED first. */
#if defined(__clang__)
#define IG_CONTRACTED _Pragma("clang fp contract(fast)")
#else
#define IG_CONTRACTED
#if IG_BYTES == 64
#define IG_FMA_f32(a, b, c) __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4)
#define IG_FMA_f64(a, b, c) __builtin_ia32_vfmaddpd512_mask(a, b, c, (unsigned char)-1, 4)
#elif IG_BYTES == 32 && defined(__FMA__)
#define IG_FMA_f32(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
#define IG_FMA_f64(a, b, c) __builtin_ia32_vfmaddpd256(a, b, c)
#elif defined(__aarch64__)
#include <arm_neon.h>
#define IG_FMA_f32(a, b, c) (__typeof__(a))vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
#define IG_FMA_f64(a, b, c) (__typeof__(a))vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b))
#endif
#endif
#ifndef IG_FMA_f32
#define IG_FMA_f32(a, b, c) ((a) * (b) + (c))
#define IG_FMA_f64(a, b, c) ((a) * (b) + (c))
#endif
/* ig_fma_vector_f32(a, b, c) of three vectors, ig_fma_same_f32(x, b, c) of a number and two. */
#define IG_VECTOR_FMA(kind, real) \
    __attribute__((unused)) static inline __attribute__((always_inline)) ig_vector_##kind ig_fma_vector_##kind( \
        ig_vector_##kind a, ig_vector_##kind b, ig_vector_##kind c) \
    { \
        IG_CONTRACTED return IG_FMA_##kind(a, b, c); \
    } \
    __attribute__((unused)) static inline __attribute__((always_inline)) ig_vector_##kind ig_fma_same_##kind( \
        real x, ig_vector_##kind b, ig_vector_##kind c) \
    { \
        return ig_fma_vector_##kind(x - (ig_vector_##kind){0}, b, c); \
    }
IG_VECTOR_FMA(f32, float)
IG_VECTOR_FMA(f64, double)
