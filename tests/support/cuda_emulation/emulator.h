/* A GPU's blocks and threads on the CPU, so that the text of kernels runs where there is no GPU.
 *
 * A block's threads are fibers of one thread of the system. They run in turn, each until it must wait for others: at a
 * barrier of the block or of its warp. What a warp does together (shuffles, votes, ldmatrix, mma) goes through memory
 * of the warp between two such barriers. Copies by cp.async happen as late as they may: where they are waited for.
 *
 * Mistakes end the process with a sentence: a barrier that some threads of the block never reach, a block that waits
 * forever, a copy that nobody waited for, dynamic shared memory that the kernel writes past its end.
 */
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

struct ig_dim3 {
    unsigned x, y, z;
};
static ig_dim3 blockIdx, gridDim, blockDim;

enum { IG_STACK = 128 << 10, IG_GUARD = 256 };
enum ig_state { IG_RUNS, IG_AT_BLOCK, IG_AT_WARP, IG_DONE };

struct ig_copy {
    char *to;
    const char *from;
    int bytes, total;
};

struct ig_fiber {
    void *stack_pointer;
    ig_dim3 thread;
    int lane, warp;
    ig_state state;
    const void *where; /* of the barrier: all threads of a warp or block wait at barriers of one kind, at any place */
    std::vector<std::vector<ig_copy>> copies; /* by group; the last is open */
};

struct ig_warp_memory {
    uint64_t words[32][16];
    const void *rows[32];
};

static ig_fiber *ig_current;
static void *ig_scheduler;
static std::vector<ig_fiber> ig_fibers;
static std::vector<ig_warp_memory> ig_warps;
static char *ig_stacks;
static size_t ig_stack_count;
static const char *ig_kernel_name = "?";
static std::vector<char> ig_dynamic;
static char *ig_dynamic_begin;
static void (*ig_thread_body)();

#define threadIdx (ig_current->thread)

extern "C" void ig_switch(void **from, void *to);
asm(".text\n.hidden ig_switch\n.globl ig_switch\n.type ig_switch, @function\nig_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

[[noreturn]] static void ig_stop(const char *why)
{
    fprintf(stderr, "emulated kernel %s, block (%u, %u, %u): %s\n", ig_kernel_name, blockIdx.x, blockIdx.y, blockIdx.z, why);
    fflush(stderr);
    abort();
}

static void ig_yield(ig_state state)
{
    ig_fiber *const self = ig_current;
    self->state = state;
    ig_switch(&self->stack_pointer, ig_scheduler);
}

static void ig_enter()
{
    ig_thread_body();
    for (auto &group : ig_current->copies)
        if (!group.empty()) ig_stop("a thread ends before it has waited for its asynchronous copies");
    ig_yield(IG_DONE);
    ig_stop("a thread runs on after its end");
}

static void __syncthreads() { ig_yield(IG_AT_BLOCK); }
static void ig_syncwarp() { ig_yield(IG_AT_WARP); }

static void ig_prepare_stacks(size_t count)
{
    if (count <= ig_stack_count) return;
    if (ig_stacks) munmap(ig_stacks, ig_stack_count * IG_STACK);
    ig_stacks = (char *)mmap(0, count * IG_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ig_stacks == MAP_FAILED) ig_stop("no memory for the stacks of its threads");
    ig_stack_count = count;
}

static void ig_run_block(int threads)
{
    ig_fibers.resize((size_t)threads);
    ig_warps.resize((size_t)(threads + 31) / 32);
    for (int t = 0; t < threads; ++t) {
        ig_fiber &fiber = ig_fibers[(size_t)t];
        fiber.thread = {(unsigned)t, 0, 0};
        fiber.lane = t % 32;
        fiber.warp = t / 32;
        fiber.state = IG_RUNS;
        fiber.copies.assign(1, {});
        void **top = (void **)(ig_stacks + (size_t)(t + 1) * IG_STACK) - 8;
        top[6] = (void *)ig_enter; /* behind six registers: where `ret` goes; the stack is aligned as after a call */
        fiber.stack_pointer = top;
    }
    for (;;) {
        bool ran = false;
        for (ig_fiber &fiber : ig_fibers) {
            if (fiber.state != IG_RUNS) continue;
            ran = true;
            ig_current = &fiber;
            ig_switch(&ig_scheduler, fiber.stack_pointer);
        }
        size_t done = 0, at_block = 0;
        for (ig_fiber &fiber : ig_fibers) done += fiber.state == IG_DONE, at_block += fiber.state == IG_AT_BLOCK;
        if (done == ig_fibers.size()) return;
        if (at_block == ig_fibers.size()) {
            for (ig_fiber &fiber : ig_fibers) fiber.state = IG_RUNS;
            continue;
        }
        bool released = false;
        for (size_t first = 0; first < ig_fibers.size(); first += 32) {
            const size_t last = std::min(first + 32, ig_fibers.size());
            bool together = true;
            for (size_t t = first; t < last; ++t) together &= ig_fibers[t].state == IG_AT_WARP;
            if (!together) continue;
            released = true;
            for (size_t t = first; t < last; ++t) ig_fibers[t].state = IG_RUNS;
        }
        if (!ran && !released)
            ig_stop(done ? "some threads wait at a barrier, and others have ended" : "threads wait at different barriers");
    }
}

/* Runs a kernel: `body` is one thread of it. */
template <class F> static void ig_run_kernel(const char *name, const unsigned *grid, unsigned threads, size_t shared, F body)
{
    static F *now;
    now = &body;
    ig_kernel_name = name;
    ig_thread_body = [] { (*now)(); };
    ig_prepare_stacks(threads);
    ig_dynamic.assign(shared + 128 + IG_GUARD, (char)0xCB);
    ig_dynamic_begin = (char *)(((uintptr_t)ig_dynamic.data() + 127) / 128 * 128);
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                std::memset(ig_dynamic_begin, 0xFF, shared); /* nan: nothing may rely on what a block before left */
                ig_run_block((int)threads);
                for (int at = 0; at < 64; ++at)
                    if (ig_dynamic_begin[shared + (size_t)at] != (char)0xCB) ig_stop("it wrote past its dynamic shared memory");
            }
}

/* The entry by which a kernel is called with the addresses of its arguments, as the driver takes them. */
template <class R, class... A, size_t... I>
static void ig_call_with(R (*kernel)(A...), void **arguments, std::index_sequence<I...>)
{
    kernel(*(std::remove_const_t<A> *)arguments[I]...);
}
template <class... A> static void ig_call(void (*kernel)(A...), void **arguments)
{
    ig_call_with(kernel, arguments, std::index_sequence_for<A...>());
}
/* The sizes of its arguments, with a 0 behind them: a driver that keeps a launch for later copies so much. */
template <class... A> struct ig_argument_sizes {
    static constexpr size_t values[] = {sizeof(A)..., 0};
};
template <class... A> static const size_t *ig_sizes_of(void (*)(A...)) { return ig_argument_sizes<A...>::values; }
#define IG_KERNEL_ENTRY(kernel) \
    extern "C" __attribute__((visibility("default"))) const size_t *kernel##__sizes() { return ig_sizes_of(kernel); } \
    extern "C" __attribute__((visibility("default"))) void kernel##__entry( \
        void **arguments, const unsigned *grid, unsigned threads, size_t shared) \
    { \
        ig_run_kernel(#kernel, grid, threads, shared, [=] { ig_call(kernel, arguments); }); \
    }

static inline char *ig_shared() { return ig_dynamic_begin; }
static inline int ig_lane() { return ig_current->lane; }
static inline int ig_warp() { return ig_current->warp; }

template <class T> static T ig_shuffle(T value, int from)
{
    static_assert(sizeof(T) <= 8, "a word at most");
    auto &memory = ig_warps[(size_t)ig_current->warp];
    std::memcpy(&memory.words[ig_current->lane][0], &value, sizeof value);
    ig_syncwarp();
    T found;
    std::memcpy(&found, &memory.words[from & 31][0], sizeof found);
    ig_syncwarp();
    return found;
}
template <class T> static T ig_shuffle_xor(T value, int mask) { return ig_shuffle(value, ig_current->lane ^ mask); }
template <class T> static T ig_shuffle_up(T value, int by)
{
    return ig_shuffle(value, ig_current->lane < by ? ig_current->lane : ig_current->lane - by);
}
template <class T> static T ig_shuffle_down(T value, int by)
{
    return ig_shuffle(value, ig_current->lane + by > 31 ? ig_current->lane : ig_current->lane + by);
}
static unsigned ig_ballot(int holds)
{
    auto &memory = ig_warps[(size_t)ig_current->warp];
    memory.words[ig_current->lane][0] = holds != 0;
    ig_syncwarp();
    unsigned found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= (unsigned)memory.words[lane][0] << lane;
    ig_syncwarp();
    return found;
}

/* Copies. `bytes` of `total` are read, and the rest becomes 0. */
static void ig_cp_async(void *to, const void *from, int bytes, int total)
{
    if ((uintptr_t)to % (unsigned)total || (bytes && (uintptr_t)from % (unsigned)total)) ig_stop("an asynchronous copy is not aligned");
    std::memset(to, 0xFF, (size_t)total);
    ig_current->copies.back().push_back({(char *)to, (const char *)from, bytes, total});
}
static void ig_cp_async_commit() { ig_current->copies.emplace_back(); }
static void ig_cp_async_wait_all_but(int groups)
{
    auto &copies = ig_current->copies;
    while ((int)copies.size() - 1 > groups) {
        for (const ig_copy &copy : copies.front()) {
            std::memcpy(copy.to, copy.from, (size_t)copy.bytes);
            std::memset(copy.to + copy.bytes, 0, (size_t)(copy.total - copy.bytes));
        }
        copies.erase(copies.begin());
    }
}

static void ig_ldmatrix(uint32_t *to, int count, const void *row, bool transposed)
{
    if ((uintptr_t)row % 16) ig_stop("a row of ldmatrix is not aligned");
    auto &memory = ig_warps[(size_t)ig_current->warp];
    const int lane = ig_current->lane;
    memory.rows[lane] = row;
    ig_syncwarp();
    for (int m = 0; m < count; ++m) {
        uint16_t found[2];
        for (int half = 0; half < 2; ++half) {
            const int r = transposed ? lane % 4 * 2 + half : lane / 4, c = transposed ? lane / 4 : lane % 4 * 2 + half;
            std::memcpy(&found[half], (const char *)memory.rows[m * 8 + r] + 2 * c, 2);
        }
        std::memcpy(&to[m], found, 4);
    }
    ig_syncwarp();
}

static float ig_half_value(uint16_t bits)
{
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return (float)value;
}
static float ig_brain_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

/* d (16×8) += a (16×k) · b (k×8) for the whole warp; elements of `a` and `b` lie 4 / size to a register. */
template <class S, class E, class Read> static void ig_mma(S *d, const uint32_t *a, const uint32_t *b, int k, Read read)
{
    auto &memory = ig_warps[(size_t)ig_current->warp];
    const int lane = ig_current->lane, each = (int)(4 / sizeof(E));
    for (int i = 0; i < 4; ++i) memory.words[lane][i] = a[i];
    for (int i = 0; i < 2; ++i) memory.words[lane][4 + i] = b[i];
    ig_syncwarp();
    auto element = [&](int from, int word, int part) {
        E found;
        std::memcpy(&found, (const char *)&memory.words[from][word] + part * (int)sizeof(E), sizeof(E));
        return read(found);
    };
    const int half = k / 2;
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        S sum = 0;
        for (int t = 0; t < k; ++t) {
            const int word = t / half, within = t % half, part = within % each, thread = within / each;
            sum += element(row % 8 * 4 + thread, row / 8 + 2 * word, part) * element(column * 4 + thread, 4 + word, part);
        }
        d[i] += sum;
    }
    ig_syncwarp();
}
