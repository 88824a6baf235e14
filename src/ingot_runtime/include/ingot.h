/* A model that Ingot compiled: one shared library and one blob of weights.
 *
 * From a .ingot file, `python -m ingot_runtime extract m.ingot DIR` writes model.so, weights.bin and this header.
 * The library needs libc and pthreads, nothing else. Every function may be called from any thread.
 *
 * A model that was compiled for a GPU also has one image per architecture, the code that runs there. Its library opens
 * the driver at run time and exports two more functions, at the end of this header.
 */
#ifndef INGOT_H
#define INGOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INGOT_ABI 2

enum ingot_dtype {
    INGOT_BOOL = 0,
    INGOT_UINT8 = 1,
    INGOT_INT8 = 2,
    INGOT_INT16 = 3,
    INGOT_INT32 = 4,
    INGOT_INT64 = 5,
    INGOT_FLOAT16 = 6,
    INGOT_BFLOAT16 = 7, /* its 16 bits */
    INGOT_FLOAT32 = 8,
    INGOT_FLOAT64 = 9,
    INGOT_UINT16 = 10,
    INGOT_UINT32 = 11,
    INGOT_UINT64 = 12
};

enum ingot_status {
    INGOT_OK = 0,
    INGOT_INVALID = 1,      /* an argument is not what the model was compiled for */
    INGOT_ASSERTION = 2,    /* an assertion of the model failed */
    INGOT_INDEX = 3,        /* an index is out of range */
    INGOT_MEMORY = 4,       /* no memory */
    INGOT_ZERO_DIVISION = 5, /* an integer was divided by zero */
    INGOT_DEVICE = 6 /* there is no device that the model can run on, or it failed */
};

typedef struct { /* one input or output; strides count elements. Members that are left out are 0: a contiguous host tensor */
    void *data;
    int32_t dtype; /* enum ingot_dtype */
    int32_t rank;
    const int64_t *shape;
    const int64_t *strides; /* NULL: contiguous */
    int32_t device;         /* where data lies: 0 for the host, n for the device with the number n - 1 */
    int32_t reserved;       /* 0 */
} ingot_tensor;

typedef struct { /* what the library is; constant */
    int32_t abi, inputs, outputs, symbols;
    const char *isa;       /* "x86-64-v4" ... */
    const char *weights;   /* sha256 of the weights it was compiled with, as hex */
    uint64_t weights_size; /* bytes of the weights blob */
} ingot_info;

typedef struct ingot_model ingot_model;

const ingot_info *ingot_describe(void);

/* weights: the blob, aligned to 64 bytes, alive and unchanged until close. threads: 0 for one per core. */
int ingot_open(const void *weights, int threads, ingot_model **model);

/* Sizes of every output, one after another in `sizes`, for inputs of these shapes. Data is not read, but for the
 * value of a scalar that is a size (an int argument that the model was compiled with as a symbol). */
int ingot_sizes(ingot_model *model, const ingot_tensor *inputs, int64_t *sizes, char *message, size_t message_size);

/* Writes the outputs; inputs that the program mutates are written in place. Any number of callers at once. */
int ingot_run(ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, char *message,
              size_t message_size);

/* Of random draws. */
void ingot_seed(ingot_model *model, uint64_t seed);

/* No call may be under way. */
void ingot_close(ingot_model *model);

/* ---- Of libraries for a GPU only. There ingot_open fails with INGOT_DEVICE, and ingot_run takes tensors that lie on
 * the host or on the model's device, and returns when the results are there. */

typedef struct { /* code for one architecture */
    const char *architecture; /* "sm_90a" ... */
    const void *data;
    size_t size;
} ingot_image;

/* device: the number of one. Weights and images are copied; they need not stay. */
int ingot_open_device(const void *weights, const ingot_image *images, int image_count, int device, ingot_model **model,
                      char *message, size_t message_size);

/* Queues a run on a stream of the device's driver (CUstream; NULL is the default stream) and returns at once, where
 * every tensor lies on the device. What fails on the device is reported by a later call of the model. */
int ingot_enqueue(ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, void *stream,
                  char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
