#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IG_HOST_ONLY 0 /* tensors may lie on the device */
#ifndef IG_CUDA_VERSION
#define IG_CUDA_VERSION 13000 /* of what compiled the kernels */
#endif
/* The driver that runs kernels of that CUDA. */
#define IG_LEAST_DRIVER (IG_CUDA_VERSION >= 13000 ? "580" : "525")

#if defined(__x86_64__) && !defined(__SSE4_1__)
/* The oldest processors have no instruction that rounds, and a compiler may call the system's math library, which the
   model does not need otherwise. */
static inline double ig_host_trunc(double x)
{
    return __builtin_fabs(x) < 0x1p52 ? __builtin_copysign((double)(int64_t)x, x) : x;
}
static inline double ig_host_floor(double x)
{
    const double t = ig_host_trunc(x);
    return t > x ? t - 1.0 : t;
}
static inline double ig_host_ceil(double x) { return -ig_host_floor(-x); }
static inline double ig_host_rint(double x)
{
    const double large = __builtin_copysign(0x1p52, x);
    return __builtin_fabs(x) < 0x1p52 ? __builtin_copysign((x + large) - large, x) : x;
}
#define __builtin_trunc ig_host_trunc
#define __builtin_floor ig_host_floor
#define __builtin_ceil ig_host_ceil
#define __builtin_rint ig_host_rint
#define __builtin_truncf(x) ((float)ig_host_trunc(x))
#define __builtin_floorf(x) ((float)ig_host_floor(x))
#define __builtin_ceilf(x) ((float)ig_host_ceil(x))
#define __builtin_rintf(x) ((float)ig_host_rint(x))
#endif
