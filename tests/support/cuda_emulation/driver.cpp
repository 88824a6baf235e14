/* A driver of GPUs that are not there: the functions of libcuda that the host text calls, for images that are libraries
 * of this machine (emulator.h). Streams run at once, in the order of the calls.
 *
 * Device memory lies between bytes that must keep their value, and is full of 0xFF (nan) when it is allocated. Mistakes
 * end the process with a sentence: a launch without a current context, memory that is freed twice or never was
 * allocated, a copy that leaves its memory, a graph that is used after its end, an event that was never recorded.
 *
 * What a test may ask for, in the environment:
 *   INGOT_EMULATED_CC=80          the compute capability; 90 unless told
 *   INGOT_EMULATED_DEVICES=0      how many devices there are; 1 unless told
 *   INGOT_EMULATED_VERSION=12020  the version of CUDA; 13000 unless told
 *   INGOT_EMULATED_MEMORY=1000    bytes of device memory; more is out of memory
 *   INGOT_EMULATED_FAULT=name:n   the call number n of that function fails with the error 999
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NOT_FOUND = 500, UNKNOWN = 999 };
constexpr size_t GUARD = 256;

std::recursive_mutex lock;
size_t used_bytes = 0;
std::map<std::string, int> calls;

struct Memory {
    std::unique_ptr<char[]> bytes;
    size_t size;
    char *begin;
};
std::map<uintptr_t, Memory> memories; /* by the address that callers know */
std::set<void *> pinned;

struct Module {
    void *library;
    std::map<std::string, void *> functions;
};
struct Function {
    void (*entry)(void **, const unsigned *, unsigned, size_t);
    const size_t *sizes;
    int dynamic_shared = 48 << 10;
    bool together = false; /* its blocks wait for each other */
    std::string name;
};
struct Stream {
    int number;
};
struct Event {
    bool was_recorded = false;
};
struct Node {
    Function *function;
    unsigned grid[3], block, shared;
    std::vector<std::vector<char>> arguments;
    bool cooperative = false;
};
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    size_t joined = 0; /* nodes that follow the one before them */
};
struct Edge {
    unsigned char from_port, to_port, type, reserved[5];
};
struct Exec {
    std::map<Node *, Node> nodes;
    std::vector<Node *> order;
};
struct NodeParameters {
    Function *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
};
std::set<void *> alive; /* modules, streams, events, graphs */
thread_local std::vector<int> contexts;
int retained = 0;

[[noreturn]] void stop(const std::string &why)
{
    fprintf(stderr, "emulated driver: %s\n", why.c_str());
    fflush(stderr);
    abort();
}

int setting(const char *name, int otherwise)
{
    const char *const text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Counts a call; whether it is the one that is to fail. */
bool fails(const char *name)
{
    const int number = calls[name]++;
    const char *const fault = getenv("INGOT_EMULATED_FAULT");
    if (!fault) return false;
    const std::string text = fault;
    const size_t colon = text.find(':');
    return text.substr(0, colon) == name && (colon == std::string::npos || atoi(text.c_str() + colon + 1) == number);
}

void check_context(const char *name)
{
    if (contexts.empty()) stop(std::string(name) + " without a current context");
}

template <class T> T *check_alive(T *object, const char *name)
{
    if (!alive.count(object)) stop(std::string(name) + " of something that does not exist");
    return object;
}

void check_range(uintptr_t at, size_t size, const char *name)
{
    auto found = memories.upper_bound(at);
    if (found == memories.begin()) stop(std::string(name) + " outside of the device's memory");
    --found;
    if (at + size > found->first + found->second.size) stop(std::string(name) + " beyond the end of its memory");
}

void check_guards(const char *when)
{
    for (auto &[at, memory] : memories)
        for (size_t g = 0; g < GUARD; ++g)
            if (memory.begin[-1 - (ptrdiff_t)g] != (char)0xA5 || memory.begin[memory.size + g] != (char)0xA5)
                stop(std::string("memory next to a buffer was written: ") + when);
}

/* What CUPTI notes of a kernel, up to its name. A clock that counts kernels: each takes 600 ns, and 400 are between two. */
struct KernelRecord {
    int kind = 10;
    char configuration[12] = {};
    uint64_t start, end, completed;
    uint32_t places[3] = {};
    int32_t grid[3], block[3] = {1, 1, 1}, shared[2] = {};
    uint32_t local[2] = {}, correlation = 0;
    int64_t grid_id = 0;
    const char *name;
    char rest[32] = {};
};
bool records_kernels = false;
std::vector<KernelRecord> kernel_records;
void (*give_buffer)(uint8_t **, size_t *, size_t *) = nullptr;
void (*take_buffer)(void *, uint32_t, uint8_t *, size_t, size_t) = nullptr;

void note_kernel(const Function *function, const unsigned *grid)
{
    if (!records_kernels) return;
    const uint64_t at = 5000 + 1000 * kernel_records.size();
    KernelRecord made;
    made.start = at, made.end = made.completed = at + 600;
    for (int d = 0; d < 3; ++d) made.grid[d] = (int32_t)grid[d];
    made.name = function->name.c_str();
    kernel_records.push_back(made);
}

void run(const Function *function, const unsigned *grid, unsigned block, unsigned shared, void **arguments, bool cooperative)
{
    if (function->together != cooperative) stop("blocks that wait for each other, in a launch that may begin some of them later");
    if (cooperative && (int)(grid[0] * grid[1] * grid[2]) > setting("INGOT_EMULATED_PROCESSORS", 132)) stop("more blocks than run at the same time");
    if (!grid[0] || !grid[1] || !grid[2]) stop("a launch of an empty grid");
    if (grid[1] > 65535 || grid[2] > 65535) stop("a grid that is too large");
    if (block < 1 || block > 1024) stop("a block of " + std::to_string(block) + " threads");
    if ((int)shared > function->dynamic_shared) stop("more dynamic shared memory than was asked for");
    note_kernel(function, grid);
    function->entry(arguments, grid, block, shared);
    check_guards("by a kernel");
}

Node node_of(const NodeParameters *given)
{
    Node node{given->function, {given->grid[0], given->grid[1], given->grid[2]}, given->block[0], given->shared, {}};
    check_alive(given->function, "a node");
    for (size_t p = 0; given->function->sizes[p]; ++p)
        node.arguments.emplace_back((char *)given->parameters[p], (char *)given->parameters[p] + given->function->sizes[p]);
    return node;
}
} // namespace

#define BEGIN(name) \
    std::lock_guard<std::recursive_mutex> hold(lock); \
    if (fails(#name)) return UNKNOWN
#define BEGIN_IN_CONTEXT(name) \
    BEGIN(name); \
    check_context(#name)

/* How often a function was called: for tests. */
EXPORT int ig_emulated_calls(const char *name)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    return calls[name];
}
/* What is allocated and not freed, in bytes; contexts that are held. */
EXPORT size_t ig_emulated_bytes(void) { return used_bytes; }
EXPORT int ig_emulated_contexts(void) { return retained; }
EXPORT int ig_emulated_objects(void) { return (int)alive.size(); }
EXPORT int ig_emulated_depth(void) { return (int)contexts.size(); }

EXPORT int cuInit(unsigned)
{
    BEGIN(cuInit);
    return setting("INGOT_EMULATED_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}
EXPORT int cuDriverGetVersion(int *version) { return *version = setting("INGOT_EMULATED_VERSION", 13000), SUCCESS; }
EXPORT int cuGetErrorString(int error, const char **text)
{
    static const std::map<int, const char *> texts = {{OUT_OF_MEMORY, "out of memory"}, {INVALID_IMAGE, "device kernel image is invalid"},
        {NOT_FOUND, "named symbol not found"}, {UNKNOWN, "unknown error"}, {INVALID_VALUE, "invalid argument"}};
    const auto found = texts.find(error);
    *text = found == texts.end() ? nullptr : found->second;
    return *text ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuDeviceGetCount(int *count) { return *count = setting("INGOT_EMULATED_DEVICES", 1), SUCCESS; }
EXPORT int cuDeviceGet(int *device, int number)
{
    if (number < 0 || number >= setting("INGOT_EMULATED_DEVICES", 1)) return INVALID_DEVICE;
    return *device = number, SUCCESS;
}
EXPORT int cuDeviceGetName(char *name, int size, int) { return snprintf(name, (size_t)size, "Emulated GPU"), SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int)
{
    const int cc = setting("INGOT_EMULATED_CC", 90);
    *value = attribute == 75 ? cc / 10 : attribute == 76 ? cc % 10 : attribute == 97 ? 227 << 10 : attribute == 16 ? setting("INGOT_EMULATED_PROCESSORS", 132) : 0;
    return SUCCESS;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = (size_t)1 << 37, SUCCESS; }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN(cuDevicePrimaryCtxRetain);
    ++retained;
    *context = (void *)(intptr_t)(device + 1);
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int)
{
    BEGIN(cuDevicePrimaryCtxRelease_v2);
    if (--retained < 0) stop("a context is released more often than it was retained");
    return SUCCESS;
}
EXPORT int cuCtxGetCurrent(void **context)
{
    BEGIN(cuCtxGetCurrent);
    *context = contexts.empty() ? nullptr : (void *)(intptr_t)contexts.back();
    return SUCCESS;
}
EXPORT int cuCtxPushCurrent_v2(void *context)
{
    BEGIN(cuCtxPushCurrent_v2);
    contexts.push_back((int)(intptr_t)context);
    return SUCCESS;
}
EXPORT int cuCtxPopCurrent_v2(void **context)
{
    BEGIN(cuCtxPopCurrent_v2);
    check_context("cuCtxPopCurrent");
    *context = (void *)(intptr_t)contexts.back();
    contexts.pop_back();
    return SUCCESS;
}

EXPORT int cuModuleLoadData(Module **module, const void *image)
{
    BEGIN_IN_CONTEXT(cuModuleLoadData);
    /* The size of a library: where its table of sections ends, as the driver finds that of a cubin. */
    const unsigned char *const bytes = (const unsigned char *)image;
    if (memcmp(bytes, "\177ELF\2", 5)) return INVALID_IMAGE;
    uint64_t sections;
    uint16_t size, count;
    memcpy(&sections, bytes + 40, 8);
    memcpy(&size, bytes + 58, 2);
    memcpy(&count, bytes + 60, 2);
    const int file = memfd_create("image", 0);
    if (file < 0 || write(file, image, sections + (size_t)size * count) < 0) return UNKNOWN;
    void *const library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return close(file), INVALID_IMAGE; /* an open file keeps its name from the next library */
    *module = new Module{library, {}};
    alive.insert(*module);
    return SUCCESS;
}
EXPORT int cuModuleUnload(Module *module)
{
    BEGIN_IN_CONTEXT(cuModuleUnload);
    check_alive(module, "cuModuleUnload");
    for (auto &[name, function] : module->functions) alive.erase(function), delete (Function *)function;
    alive.erase(module);
    delete module; /* its library stays: a test ends soon */
    return SUCCESS;
}
EXPORT int cuModuleGetFunction(Function **function, Module *module, const char *name)
{
    BEGIN_IN_CONTEXT(cuModuleGetFunction);
    check_alive(module, "cuModuleGetFunction");
    const std::string text = name;
    void *const entry = dlsym(module->library, (text + "__entry").c_str());
    void *const sizes = dlsym(module->library, (text + "__sizes").c_str());
    if (!entry || !sizes) return NOT_FOUND;
    auto *const made = new Function;
    made->entry = (void (*)(void **, const unsigned *, unsigned, size_t))entry;
    made->sizes = ((const size_t *(*)())sizes)();
    made->together = dlsym(module->library, (text + "__together").c_str()) != nullptr;
    made->name = text;
    module->functions[text] = *function = made;
    alive.insert(made);
    return SUCCESS;
}
EXPORT int cuFuncGetAttribute(int *value, int, Function *) { return *value = 0, SUCCESS; }
EXPORT int cuFuncSetAttribute(Function *function, int attribute, int value)
{
    if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
    function->dynamic_shared = value;
    return SUCCESS;
}

EXPORT int cuMemAlloc_v2(uintptr_t *address, size_t size)
{
    BEGIN_IN_CONTEXT(cuMemAlloc_v2);
    if (!size) return INVALID_VALUE;
    const int limit = setting("INGOT_EMULATED_MEMORY", 0);
    if (size > (size_t)1 << 40 || (limit && used_bytes + size > (size_t)limit)) return OUT_OF_MEMORY;
    Memory memory{std::unique_ptr<char[]>(new char[size + 2 * GUARD + 512]), size, nullptr};
    memset(memory.bytes.get(), 0xA5, size + 2 * GUARD + 512);
    memory.begin = (char *)(((uintptr_t)memory.bytes.get() + GUARD + 255) / 256 * 256);
    memset(memory.begin, 0xFF, size);
    *address = (uintptr_t)memory.begin;
    used_bytes += size;
    memories[*address] = std::move(memory);
    return SUCCESS;
}
EXPORT int cuMemFree_v2(uintptr_t address)
{
    BEGIN_IN_CONTEXT(cuMemFree_v2);
    check_guards("found when memory was freed");
    const auto found = memories.find(address);
    if (found == memories.end()) stop("memory is freed that was not allocated, or twice");
    used_bytes -= found->second.size;
    memset(found->second.begin, 0xDD, found->second.size);
    memories.erase(found);
    return SUCCESS;
}
EXPORT int cuMemAllocAsync(uintptr_t *address, size_t size, Stream *) { return cuMemAlloc_v2(address, size); }
EXPORT int cuMemFreeAsync(uintptr_t address, Stream *) { return cuMemFree_v2(address); }
EXPORT int cuMemHostAlloc(void **memory, size_t size, unsigned)
{
    BEGIN_IN_CONTEXT(cuMemHostAlloc);
    *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    pinned.insert(*memory);
    return SUCCESS;
}
EXPORT int cuMemHostGetDevicePointer_v2(uintptr_t *address, void *memory, unsigned)
{
    return *address = (uintptr_t)memory, SUCCESS;
}
EXPORT int cuMemFreeHost(void *memory)
{
    BEGIN_IN_CONTEXT(cuMemFreeHost);
    if (!pinned.erase(memory)) stop("memory is unpinned that was not pinned");
    free(memory);
    return SUCCESS;
}
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t size, Stream *)
{
    BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
    check_range(to, size, "a copy to the device");
    memcpy((void *)to, from, size);
    return SUCCESS;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t size, Stream *)
{
    BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
    check_range(from, size, "a copy from the device");
    memcpy(to, (const void *)from, size);
    return SUCCESS;
}
EXPORT int cuMemsetD32Async(uintptr_t to, unsigned value, size_t count, Stream *)
{
    BEGIN_IN_CONTEXT(cuMemsetD32Async);
    check_range(to, 4 * count, "a fill");
    std::fill_n((unsigned *)to, count, value);
    return SUCCESS;
}
EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t size, Stream *)
{
    BEGIN_IN_CONTEXT(cuMemcpyDtoDAsync_v2);
    check_range(from, size, "a copy");
    check_range(to, size, "a copy");
    memmove((void *)to, (const void *)from, size);
    return SUCCESS;
}

EXPORT int cuStreamCreate(Stream **stream, unsigned)
{
    BEGIN_IN_CONTEXT(cuStreamCreate);
    static int number = 0;
    alive.insert(*stream = new Stream{++number});
    return SUCCESS;
}
EXPORT int cuStreamDestroy_v2(Stream *stream)
{
    BEGIN_IN_CONTEXT(cuStreamDestroy_v2);
    alive.erase(check_alive(stream, "cuStreamDestroy"));
    delete stream;
    return SUCCESS;
}
EXPORT int cuStreamSynchronize(Stream *)
{
    BEGIN_IN_CONTEXT(cuStreamSynchronize);
    return SUCCESS;
}
EXPORT int cuStreamWaitEvent(Stream *, Event *event, unsigned)
{
    BEGIN_IN_CONTEXT(cuStreamWaitEvent);
    if (!check_alive(event, "cuStreamWaitEvent")->was_recorded) stop("a stream waits for an event that was never recorded");
    return SUCCESS;
}
EXPORT int cuEventCreate(Event **event, unsigned)
{
    BEGIN_IN_CONTEXT(cuEventCreate);
    alive.insert(*event = new Event);
    return SUCCESS;
}
EXPORT int cuEventDestroy_v2(Event *event)
{
    BEGIN_IN_CONTEXT(cuEventDestroy_v2);
    alive.erase(check_alive(event, "cuEventDestroy"));
    delete event;
    return SUCCESS;
}
EXPORT int cuEventRecord(Event *event, Stream *)
{
    BEGIN_IN_CONTEXT(cuEventRecord);
    check_alive(event, "cuEventRecord")->was_recorded = true;
    return SUCCESS;
}
EXPORT int cuEventQuery(Event *event)
{
    BEGIN_IN_CONTEXT(cuEventQuery);
    check_alive(event, "cuEventQuery");
    return SUCCESS;
}
EXPORT int cuEventSynchronize(Event *event)
{
    BEGIN_IN_CONTEXT(cuEventSynchronize);
    if (!check_alive(event, "cuEventSynchronize")->was_recorded) stop("an event is waited for that was never recorded");
    return SUCCESS;
}
EXPORT int cuEventElapsedTime(float *milliseconds, Event *begin, Event *end)
{
    BEGIN_IN_CONTEXT(cuEventElapsedTime);
    check_alive(begin, "cuEventElapsedTime");
    check_alive(end, "cuEventElapsedTime");
    *milliseconds = 0.5f;
    return SUCCESS;
}

EXPORT int cuLaunchKernel(Function *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          Stream *, void **arguments, void **)
{
    BEGIN_IN_CONTEXT(cuLaunchKernel);
    check_alive(function, "cuLaunchKernel");
    if (by != 1 || bz != 1) return INVALID_VALUE;
    const unsigned grid[] = {x, y, z};
    run(function, grid, bx, shared, arguments, false);
    return SUCCESS;
}
EXPORT int cuLaunchCooperativeKernel(Function *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                                     unsigned shared, Stream *, void **arguments)
{
    BEGIN_IN_CONTEXT(cuLaunchCooperativeKernel);
    check_alive(function, "cuLaunchCooperativeKernel");
    if (by != 1 || bz != 1) return INVALID_VALUE;
    const unsigned grid[] = {x, y, z};
    run(function, grid, bx, shared, arguments, true);
    return SUCCESS;
}
/* The map is what was asked for, as the emulator reads it. */
EXPORT int cuTensorMapEncodeTiled(void *map, int dtype, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *steps,
                                  const unsigned *box, const unsigned *every, int interleave, int swizzle, int, int fill)
{
    BEGIN_IN_CONTEXT(cuTensorMapEncodeTiled);
    const uintptr_t at = (uintptr_t)address;
    if ((uintptr_t)map % 64 || at % 16 || rank < 1 || rank > 5 || interleave || fill) return INVALID_VALUE;
    uint64_t *const words = (uint64_t *)map;
    memset(words, 0, 128);
    words[0] = at;
    words[1] = (unsigned)dtype | rank << 8 | (unsigned)swizzle << 16;
    static const uint64_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    uint64_t last = sizes[0] * bytes[dtype];
    for (unsigned d = 0; d < rank; ++d) {
        if (!sizes[d] || sizes[d] > (uint64_t)1 << 32 || !box[d] || box[d] > 256 || every[d] < 1 || every[d] > 8) return INVALID_VALUE;
        if (d && (!steps[d - 1] || steps[d - 1] % 16 || steps[d - 1] >= (uint64_t)1 << 40)) return INVALID_VALUE;
        words[1] |= (uint64_t)(every[d] - 1) << (24 + 8 * d);
        words[2 + d] = sizes[d];
        words[11 + d] = box[d];
        if (d) words[6 + d] = steps[d - 1], last += (sizes[d] - 1) * steps[d - 1];
    }
    check_range(at, last, "a tensor's map");
    return SUCCESS;
}
EXPORT int cuGraphCreate(Graph **graph, unsigned)
{
    BEGIN_IN_CONTEXT(cuGraphCreate);
    alive.insert(*graph = new Graph);
    return SUCCESS;
}
EXPORT int cuGraphDestroy(Graph *graph)
{
    BEGIN_IN_CONTEXT(cuGraphDestroy);
    alive.erase(check_alive(graph, "cuGraphDestroy"));
    delete graph;
    return SUCCESS;
}
EXPORT int cuGraphAddKernelNode(Node **node, Graph *graph, Node *const *after, size_t count, const NodeParameters *given)
{
    BEGIN_IN_CONTEXT(cuGraphAddKernelNode);
    check_alive(graph, "cuGraphAddKernelNode");
    if (count > 1 || (count && (graph->nodes.empty() || *after != graph->nodes.back().get()))) stop("a node does not follow the one before it");
    graph->joined += count;
    graph->nodes.push_back(std::make_unique<Node>(node_of(given)));
    *node = graph->nodes.back().get();
    return SUCCESS;
}
EXPORT int cuGraphKernelNodeSetAttribute(Node *node, int attribute, const int *value)
{
    BEGIN_IN_CONTEXT(cuGraphKernelNodeSetAttribute);
    if (attribute != 2) return INVALID_VALUE;
    node->cooperative = *value != 0;
    return SUCCESS;
}
EXPORT int cuGraphAddDependencies_v2(Graph *graph, Node *const *from, Node *const *to, const Edge *edge, size_t count)
{
    BEGIN_IN_CONTEXT(cuGraphAddDependencies_v2);
    const size_t nodes = check_alive(graph, "cuGraphAddDependencies")->nodes.size();
    if (count != 1 || nodes < 2 || *to != graph->nodes.back().get() || *from != graph->nodes[nodes - 2].get()) stop("an edge does not join the last two nodes");
    if (edge->from_port != 1 || edge->to_port || edge->type != 1) return INVALID_VALUE;
    ++graph->joined;
    return SUCCESS;
}
EXPORT int cuGraphInstantiateWithFlags(Exec **exec, Graph *graph, unsigned long long)
{
    BEGIN_IN_CONTEXT(cuGraphInstantiateWithFlags);
    check_alive(graph, "cuGraphInstantiate");
    if (graph->joined + 1 != graph->nodes.size()) stop("a node of the graph waits for none");
    auto *const made = new Exec;
    for (auto &node : graph->nodes) made->nodes.emplace(node.get(), *node), made->order.push_back(node.get());
    alive.insert(*exec = made);
    return SUCCESS;
}
EXPORT int cuGraphExecKernelNodeSetParams(Exec *exec, Node *node, const NodeParameters *given)
{
    BEGIN_IN_CONTEXT(cuGraphExecKernelNodeSetParams);
    check_alive(exec, "cuGraphExecKernelNodeSetParams");
    const auto found = exec->nodes.find(node);
    if (found == exec->nodes.end()) stop("a node is not of the graph");
    const bool cooperative = found->second.cooperative;
    found->second = node_of(given);
    found->second.cooperative = cooperative;
    return SUCCESS;
}
EXPORT int cuGraphExecDestroy(Exec *exec)
{
    BEGIN_IN_CONTEXT(cuGraphExecDestroy);
    alive.erase(check_alive(exec, "cuGraphExecDestroy"));
    delete exec;
    return SUCCESS;
}
EXPORT int cuGraphLaunch(Exec *exec, Stream *)
{
    BEGIN_IN_CONTEXT(cuGraphLaunch);
    check_alive(exec, "cuGraphLaunch");
    for (Node *key : exec->order) {
        Node &node = exec->nodes.at(key);
        std::vector<void *> arguments;
        for (auto &bytes : node.arguments) arguments.push_back(bytes.data());
        run(node.function, node.grid, node.block, node.shared, arguments.data(), node.cooperative);
    }
    return SUCCESS;
}

/* CUPTI, as far as records of kernels go. */
EXPORT int cuptiActivityRegisterCallbacks(decltype(give_buffer) give, decltype(take_buffer) take)
{
    BEGIN(cuptiActivityRegisterCallbacks);
    give_buffer = give;
    take_buffer = take;
    return SUCCESS;
}
EXPORT int cuptiActivityEnable(int kind)
{
    BEGIN(cuptiActivityEnable);
    if (kind != 10) stop("records of something other than kernels");
    records_kernels = true;
    return SUCCESS;
}
EXPORT int cuptiActivityDisable(int)
{
    BEGIN(cuptiActivityDisable);
    records_kernels = false;
    return SUCCESS;
}
/* The last record comes in a buffer of its own, and the others before it in reverse: CUPTI promises no order. */
EXPORT int cuptiActivityFlushAll(uint32_t)
{
    BEGIN(cuptiActivityFlushAll);
    std::reverse(kernel_records.begin(), kernel_records.end());
    for (size_t first = 0, count = 1; first < kernel_records.size(); first += count, count = kernel_records.size() - first) {
        uint8_t *buffer = nullptr;
        size_t size = 0, most = 0;
        give_buffer(&buffer, &size, &most);
        const size_t bytes = count * sizeof(KernelRecord);
        if ((uintptr_t)buffer % 8 || bytes > size) stop("a buffer of records that is too small, or not aligned");
        std::memcpy(buffer, &kernel_records[first], bytes);
        take_buffer(nullptr, 0, buffer, size, bytes);
    }
    kernel_records.clear();
    return SUCCESS;
}
EXPORT int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, KernelRecord **record)
{
    KernelRecord *const next = *record ? *record + 1 : (KernelRecord *)buffer;
    if ((uint8_t *)next >= buffer + valid) return 12;
    *record = next;
    return SUCCESS;
}
