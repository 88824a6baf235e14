/* The driver of the GPU: the few functions that a model needs, found in its library when a model is opened. The names
   are those that the library exports, where "_v2" marks the newer of two functions. */

typedef struct ig_cuda_context *ig_cu_context;
typedef struct ig_cuda_module *ig_cu_module;
typedef struct ig_cuda_function *ig_cu_function;
typedef struct ig_cuda_stream *ig_cu_stream;
typedef struct ig_cuda_event *ig_cu_event;
typedef struct ig_cuda_graph *ig_cu_graph;
typedef struct ig_cuda_graph_exec *ig_cu_graph_exec;
typedef struct ig_cuda_graph_node *ig_cu_node;
typedef uint64_t ig_address; /* of memory on the device */

typedef struct {
    ig_cu_function function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
} ig_node_parameters;

typedef struct { /* how a node depends on the one before: from when on it may begin */
    unsigned char from_port, to_port, type, reserved[5];
} ig_edge;

typedef union { /* of a node or launch */
    char bytes[64];
    int is_cooperative;
} ig_attribute_value;

enum { IG_ATTRIBUTE_COOPERATIVE = 2 };
enum { IG_PORT_PROGRAMMATIC = 1, IG_EDGE_PROGRAMMATIC = 1 };
enum { IG_CUDA_OUT_OF_MEMORY = 2, IG_CUDA_NO_DEVICE = 100, IG_CUDA_INVALID_IMAGE = 200, IG_CUDA_NOT_READY = 600 };
enum { IG_ATTRIBUTE_PROCESSORS = 16, IG_ATTRIBUTE_SHARED_LIMIT = 97, IG_ATTRIBUTE_MAJOR = 75, IG_ATTRIBUTE_MINOR = 76 };
enum { IG_FUNCTION_STATIC_SHARED = 1, IG_FUNCTION_DYNAMIC_SHARED = 8 };
enum { IG_STREAM_NON_BLOCKING = 1, IG_EVENT_WITHOUT_TIME = 2, IG_HOST_MAPPED = 2 };

#define IG_DRIVER_FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDriverGetVersion, (int *)) \
    F(cuGetErrorString, (int, const char **)) \
    F(cuDeviceGetCount, (int *)) \
    F(cuDeviceGet, (int *, int)) \
    F(cuDeviceGetName, (char *, int, int)) \
    F(cuDeviceGetAttribute, (int *, int, int)) \
    F(cuDevicePrimaryCtxRetain, (ig_cu_context *, int)) \
    F(cuDevicePrimaryCtxRelease_v2, (int)) \
    F(cuCtxGetCurrent, (ig_cu_context *)) \
    F(cuCtxPushCurrent_v2, (ig_cu_context)) \
    F(cuCtxPopCurrent_v2, (ig_cu_context *)) \
    F(cuModuleLoadData, (ig_cu_module *, const void *)) \
    F(cuModuleUnload, (ig_cu_module)) \
    F(cuModuleGetFunction, (ig_cu_function *, ig_cu_module, const char *)) \
    F(cuFuncGetAttribute, (int *, int, ig_cu_function)) \
    F(cuFuncSetAttribute, (ig_cu_function, int, int)) \
    F(cuMemAlloc_v2, (ig_address *, size_t)) \
    F(cuMemFree_v2, (ig_address)) \
    F(cuMemAllocAsync, (ig_address *, size_t, ig_cu_stream)) \
    F(cuMemFreeAsync, (ig_address, ig_cu_stream)) \
    F(cuMemHostAlloc, (void **, size_t, unsigned)) \
    F(cuMemHostGetDevicePointer_v2, (ig_address *, void *, unsigned)) \
    F(cuMemFreeHost, (void *)) \
    F(cuMemsetD32Async, (ig_address, unsigned, size_t, ig_cu_stream)) \
    F(cuMemcpyHtoDAsync_v2, (ig_address, const void *, size_t, ig_cu_stream)) \
    F(cuMemcpyDtoHAsync_v2, (void *, ig_address, size_t, ig_cu_stream)) \
    F(cuMemcpyDtoDAsync_v2, (ig_address, ig_address, size_t, ig_cu_stream)) \
    F(cuStreamCreate, (ig_cu_stream *, unsigned)) \
    F(cuStreamDestroy_v2, (ig_cu_stream)) \
    F(cuStreamSynchronize, (ig_cu_stream)) \
    F(cuStreamWaitEvent, (ig_cu_stream, ig_cu_event, unsigned)) \
    F(cuEventCreate, (ig_cu_event *, unsigned)) \
    F(cuEventDestroy_v2, (ig_cu_event)) \
    F(cuEventRecord, (ig_cu_event, ig_cu_stream)) \
    F(cuEventQuery, (ig_cu_event)) \
    F(cuEventSynchronize, (ig_cu_event)) \
    F(cuEventElapsedTime, (float *, ig_cu_event, ig_cu_event)) \
    F(cuLaunchKernel, (ig_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                       ig_cu_stream, void **, void **)) \
    F(cuLaunchCooperativeKernel, (ig_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                  ig_cu_stream, void **)) \
    F(cuGraphCreate, (ig_cu_graph *, unsigned)) \
    F(cuGraphDestroy, (ig_cu_graph)) \
    F(cuGraphAddKernelNode, (ig_cu_node *, ig_cu_graph, const ig_cu_node *, size_t, const ig_node_parameters *)) \
    F(cuGraphKernelNodeSetAttribute, (ig_cu_node, int, const ig_attribute_value *)) \
    F(cuGraphInstantiateWithFlags, (ig_cu_graph_exec *, ig_cu_graph, unsigned long long)) \
    F(cuGraphExecKernelNodeSetParams, (ig_cu_graph_exec, ig_cu_node, const ig_node_parameters *)) \
    F(cuGraphExecDestroy, (ig_cu_graph_exec)) \
    F(cuGraphLaunch, (ig_cu_graph_exec, ig_cu_stream))

#define IG_DECLARE_FUNCTION(name, parameters) int(*name) parameters;
static struct {
    void *library;
    int version; /* of CUDA that it supports: 13000 for 13.0 */
    IG_DRIVER_FUNCTIONS(IG_DECLARE_FUNCTION)
    /* From CUDA 12.3 on. */
    int (*cuGraphAddDependencies_v2)(ig_cu_graph, const ig_cu_node *, const ig_cu_node *, const ig_edge *, size_t);
    /* From CUDA 12.0 on: map, dtype, rank, address, sizes, steps in bytes, box, steps inside it, and how a box lies. */
    int (*cuTensorMapEncodeTiled)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *,
                                  const unsigned *, int, int, int, int);
} ig_driver;

static pthread_mutex_t ig_driver_lock = PTHREAD_MUTEX_INITIALIZER;

IG_OPTIONAL int ig_tell(int status, char *message, size_t size, const char *text)
{
    if (message && size) snprintf(message, size, "%s", text);
    return status;
}

/* What a function of the driver returned, as a status and a sentence. */
static int ig_driver_failure(const char *what, int result, char *message, size_t size)
{
    const char *why = 0;
    if (ig_driver.cuGetErrorString) ig_driver.cuGetErrorString(result, &why);
    if (message && size)
        snprintf(message, size, "%s\n  why: the CUDA driver says: %s (%d, in %s)",
                 result == IG_CUDA_OUT_OF_MEMORY ? "There is no memory left on the GPU for what the model needs." : "The GPU failed.",
                 why ? why : "an error without a name", result, what);
    return result == IG_CUDA_OUT_OF_MEMORY ? INGOT_MEMORY : INGOT_DEVICE;
}

/* Returns from a function with `message` and `size` where the driver fails. */
#define IG_CALL(name, ...) \
    do { \
        const int ig_result = ig_driver.name(__VA_ARGS__); \
        if (ig_result) return ig_driver_failure(#name, ig_result, message, size); \
    } while (0)

static int ig_load_functions(const char *name, char *message, size_t size)
{
    void *const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *const why = dlerror();
        if (message && size)
            snprintf(message, size, "There is no CUDA driver.\n  why: %s\n  what to do: install the NVIDIA driver, version %s or newer, on this machine",
                     why ? why : name, IG_LEAST_DRIVER);
        return INGOT_DEVICE;
    }
#define IG_FIND_FUNCTION(function, parameters) \
    if (!(*(void **)&ig_driver.function = dlsym(library, #function))) { \
        if (message && size) \
            snprintf(message, size, "The CUDA driver is too old.\n  why: %s has no function %s\n  what to do: install version %s or newer", name, #function, IG_LEAST_DRIVER); \
        dlclose(library); \
        return INGOT_DEVICE; \
    }
    IG_DRIVER_FUNCTIONS(IG_FIND_FUNCTION)
    *(void **)&ig_driver.cuGraphAddDependencies_v2 = dlsym(library, "cuGraphAddDependencies_v2");
    *(void **)&ig_driver.cuTensorMapEncodeTiled = dlsym(library, "cuTensorMapEncodeTiled");
    const int result = ig_driver.cuInit(0);
    if (result == IG_CUDA_NO_DEVICE) {
        dlclose(library);
        return ig_tell(INGOT_DEVICE, message, size,
                       "There is no CUDA device.\n  why: the driver is installed and finds no NVIDIA GPU\n"
                       "  what to do: run on a machine with one; in a container, pass the GPU to it; look at CUDA_VISIBLE_DEVICES");
    }
    if (result) {
        const int status = ig_driver_failure("cuInit", result, message, size);
        dlclose(library);
        return status;
    }
    ig_driver.cuDriverGetVersion(&ig_driver.version);
    ig_driver.library = library;
    return INGOT_OK;
}

/* The driver stays loaded: a process has one. */
static int ig_load_driver(char *message, size_t size)
{
    pthread_mutex_lock(&ig_driver_lock);
    int status = INGOT_OK;
    if (!ig_driver.library) {
        const char *const name = getenv("INGOT_CUDA_DRIVER");
        status = ig_load_functions(name && *name ? name : "libcuda.so.1", message, size);
    }
    pthread_mutex_unlock(&ig_driver_lock);
    return status;
}

/* The number of an image's architecture: 90 of "sm_90a". */
static long ig_architecture_number(const char *architecture)
{
    const char *const digits = strchr(architecture, '_');
    return digits ? strtol(digits + 1, 0, 10) : 0;
}

/* How well an image runs on a device: 0 for not at all. Code with a letter behind its number runs on just this one;
   other code on the same major version from its minor version on; PTX ("compute_80") on everything newer. */
static int ig_rank_image(const char *architecture, int major, int minor)
{
    const int is_code = !strncmp(architecture, "sm_", 3), is_text = !strncmp(architecture, "compute_", 8);
    if (!is_code && !is_text) return 0;
    char *rest;
    const long number = strtol(architecture + (is_code ? 3 : 8), &rest, 10), own = 10L * major + minor;
    if (*rest == 'a') return number == own ? (is_code ? 3000 : 1500) : 0;
    if (*rest) return 0;
    if (is_text) return number <= own ? 1000 + (int)number : 0;
    return number / 10 == major && number <= own ? 2000 + (int)number : 0;
}
