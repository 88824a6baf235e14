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
