/* A GPU's blocks and threads on the CPU, so that the text of kernels runs where there is no GPU.
 *
 * A block's threads are fibers of one thread of the system. They run in turn, each until it must wait for others: at a
 * barrier of the block or of its warp; a warp runs until it must wait for other warps. What a warp does together (shuffles,
 * votes, ldmatrix, mma) goes through memory of the warp between two such barriers. Copies by cp.async happen as late as they may: where they are waited for. So do
 * copies that a barrier in shared memory counts, and what blocks of a cluster send each other: when no thread can run.
 *
 * The blocks of a cluster run together; variables that a kernel declares as shared would be the same for all of them.
 *
 * Mistakes end the process with a sentence: a barrier that some threads of the block never reach, a block that waits
 * forever, a copy that nobody waited for, dynamic shared memory that the kernel writes past its end, a barrier that was
 * never set up or at which too many arrive.
 */
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
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
static ig_dim3 gridDim, blockDim;

enum { IG_STACK = 128 << 10, IG_GUARD = 256 };
enum ig_state { IG_RUNS, IG_AT_BLOCK, IG_AT_WARP, IG_AT_CONDITION, IG_DONE };

struct ig_copy {
    char *to;
    const char *from;
    int bytes, total;
};

struct ig_fiber {
    void *stack_pointer;
    ig_dim3 thread, block;
    int lane, warp, rank; /* rank: of its block in the cluster */
    ig_state state;
    bool (*is_over)(const ig_fiber &); /* what it waits for, where that is not a barrier of a warp or block */
    const void *where;
    unsigned phase;
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
static size_t ig_dynamic_pitch; /* from one block's memory to the next one's in a cluster */
static size_t ig_block_warps;
static unsigned ig_cluster_arrivals, ig_cluster_phase;
static std::deque<std::function<void()>> ig_sent; /* copies that are under way */
static void (*ig_thread_body)();

#define threadIdx (ig_current->thread)
#define blockIdx (ig_current->block)

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

static void ig_wait_until(bool (*is_over)(const ig_fiber &), const void *where, unsigned phase)
{
    ig_current->is_over = is_over;
    ig_current->where = where;
    ig_current->phase = phase;
    if (!is_over(*ig_current)) ig_yield(IG_AT_CONDITION);
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

/* Runs a warp for as long as its threads wait for each other only. What other warps need a barrier to see or to be done
 * with, they are sure to miss: they come later, or were there before. */
static bool ig_run_warp(ig_fiber *begin, ig_fiber *end)
{
    for (bool ran = false;;) {
        bool together = true;
        for (ig_fiber *fiber = begin; fiber < end; ++fiber) {
            if (fiber->state == IG_AT_CONDITION && fiber->is_over(*fiber)) fiber->state = IG_RUNS;
            if (fiber->state == IG_RUNS) {
                ran = true;
                ig_current = fiber;
                ig_switch(&ig_scheduler, fiber->stack_pointer);
            }
            together &= fiber->state == IG_AT_WARP;
        }
        if (!together) return ran;
        for (ig_fiber *fiber = begin; fiber < end; ++fiber) fiber->state = IG_RUNS;
    }
}

/* Runs the blocks of a cluster, of which there may be one, from block `first` on. */
static void ig_run_cluster(int threads, int blocks, ig_dim3 first)
{
    ig_fibers.resize((size_t)(threads * blocks));
    ig_block_warps = (size_t)(threads + 31) / 32;
    ig_warps.resize(ig_block_warps * (size_t)blocks);
    ig_cluster_arrivals = ig_cluster_phase = 0;
    for (int t = 0; t < threads * blocks; ++t) {
        ig_fiber &fiber = ig_fibers[(size_t)t];
        fiber.thread = {(unsigned)(t % threads), 0, 0};
        fiber.rank = t / threads;
        fiber.block = {first.x + (unsigned)fiber.rank, first.y, first.z};
        fiber.lane = t % threads % 32;
        fiber.warp = t % threads / 32;
        fiber.state = IG_RUNS;
        if (fiber.copies.size() != 1 || !fiber.copies[0].empty()) fiber.copies.assign(1, {});
        void **top = (void **)(ig_stacks + (size_t)(t + 1) * IG_STACK) - 8;
        top[6] = (void *)ig_enter; /* behind six registers: where `ret` goes; the stack is aligned as after a call */
        fiber.stack_pointer = top;
    }
    for (;;) {
        size_t done = 0;
        bool ran = false, released = false;
        for (int rank = 0; rank < blocks; ++rank) {
            ig_fiber *const begin = &ig_fibers[(size_t)(rank * threads)], *const end = begin + threads;
            int at_block = 0;
            for (ig_fiber *warp = begin; warp < end; warp += 32) {
                ig_fiber *const last = std::min(warp + 32, end);
                ran |= ig_run_warp(warp, last);
                for (ig_fiber *fiber = warp; fiber < last; ++fiber) done += fiber->state == IG_DONE, at_block += fiber->state == IG_AT_BLOCK;
            }
            if (at_block != threads) continue;
            released = true;
            for (ig_fiber *fiber = begin; fiber < end; ++fiber) fiber->state = IG_RUNS;
        }
        if (ran || released) continue;
        if (!ig_sent.empty()) {
            const auto copy = ig_sent.front();
            ig_sent.pop_front();
            copy();
            continue;
        }
        if (done == ig_fibers.size()) return;
        for (ig_fiber &fiber : ig_fibers)
            if (fiber.state != IG_DONE) ig_current = &fiber; /* whose block is named */
        ig_stop(done ? "some threads wait at a barrier, and others have ended" : "threads wait at different barriers");
    }
}

/* Runs a kernel: `body` is one thread of it. */
template <class F> static void ig_run_kernel(const char *name, const unsigned *grid, unsigned threads, size_t shared, unsigned cluster, F body)
{
    static F *now;
    static ig_fiber outside;
    now = &body;
    ig_current = &outside;
    ig_kernel_name = name;
    ig_thread_body = [] { (*now)(); };
    ig_prepare_stacks(threads * cluster);
    ig_dynamic_pitch = (shared + 2 * IG_GUARD + 1023) / 1024 * 1024;
    ig_dynamic.assign(ig_dynamic_pitch * cluster + 1024, (char)0xCB);
    ig_dynamic_begin = (char *)(((uintptr_t)ig_dynamic.data() + 1023) / 1024 * 1024);
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    if (grid[0] % cluster) ig_stop("its grid is not whole clusters");
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; x += cluster) {
                /* nan: nothing may rely on what a block before left */
                for (unsigned rank = 0; rank < cluster; ++rank) std::memset(ig_dynamic_begin + rank * ig_dynamic_pitch, 0xFF, shared);
                ig_run_cluster((int)threads, (int)cluster, {x, y, z});
                ig_current = &outside;
                outside.block = {x, y, z};
                for (unsigned rank = 0; rank < cluster; ++rank)
                    for (int at = 0; at < 64; ++at)
                        if (ig_dynamic_begin[rank * ig_dynamic_pitch + shared + (size_t)at] != (char)0xCB)
                            ig_stop("it wrote past its dynamic shared memory");
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
#define IG_KERNEL_ENTRY(kernel) IG_ENTRY(kernel, 1)
/* The same for a kernel whose blocks are clusters of so many. */
#define IG_CLUSTER_ENTRY(kernel, blocks) IG_ENTRY(kernel, blocks)
/* The same for a kernel whose blocks wait for each other: they run together, as one cluster would. Variables that it
 * declares as shared have the same value in all blocks. */
#define IG_GRID_ENTRY(kernel) \
    extern "C" __attribute__((visibility("default"))) void kernel##__together() {} \
    IG_ENTRY(kernel, grid[0])
#define IG_ENTRY(kernel, blocks) \
    extern "C" __attribute__((visibility("default"))) const size_t *kernel##__sizes() { return ig_sizes_of(kernel); } \
    extern "C" __attribute__((visibility("default"))) void kernel##__entry( \
        void **arguments, const unsigned *grid, unsigned threads, size_t shared) \
    { \
        ig_run_kernel(#kernel, grid, threads, shared, blocks, [=] { ig_call(kernel, arguments); }); \
    }

static inline char *ig_shared() { return ig_dynamic_begin + (size_t)ig_current->rank * ig_dynamic_pitch; }
static inline int ig_lane() { return ig_current->lane; }
static inline int ig_warp() { return ig_current->warp; }
static inline ig_warp_memory &ig_own_warp() { return ig_warps[(size_t)ig_current->rank * ig_block_warps + (size_t)ig_current->warp]; }

static inline int ig_read_word(const int *from) { return *from; }
static inline void ig_write_word(int *to, int value) { *to = value; }
template <class T> static T ig_shuffle(T value, int from)
{
    static_assert(sizeof(T) <= 8, "a word at most");
    auto &memory = ig_own_warp();
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
    auto &memory = ig_own_warp();
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
    auto &memory = ig_own_warp();
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
    auto &memory = ig_own_warp();
    const int lane = ig_current->lane, each = (int)(4 / sizeof(E));
    static_assert(sizeof(S) == 4, "24 of them are a thread's share of the warp's memory");
    /* Each thread converts what it holds, and all read it: a conversion takes longer than a product. */
    for (int word = 0; word < 6; ++word)
        for (int part = 0; part < each; ++part) {
            E found;
            std::memcpy(&found, (const char *)(word < 4 ? &a[word] : &b[word - 4]) + part * (int)sizeof(E), sizeof(E));
            const S value = read(found);
            std::memcpy((S *)memory.words[lane] + word * each + part, &value, sizeof value);
        }
    ig_syncwarp();
    auto element = [&](int from, int word, int part) {
        S found;
        std::memcpy(&found, (const S *)memory.words[from] + word * each + part, sizeof found);
        return found;
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

/* ---- clusters, barriers in shared memory, and the copies that they count (cu/async_copies.cuh) */

typedef char *ig_place; /* an address in the shared memory of a block of the cluster */

static void ig_arrive_at_cluster()
{
    ig_current->phase = ig_cluster_phase;
    if (++ig_cluster_arrivals == ig_fibers.size()) ig_cluster_arrivals = 0, ++ig_cluster_phase;
}
static void ig_wait_for_cluster()
{
    ig_wait_until([](const ig_fiber &fiber) { return ig_cluster_phase != fiber.phase; }, nullptr, ig_current->phase);
}
/* The first threads of a block, or of all blocks that run together, wait for each other. */
static void ig_wait_for_threads(int threads, int blocks)
{
    static std::vector<std::pair<int, unsigned>> barriers; /* of each block, and one of all: who is there, and its phase */
    if (ig_current->thread.x >= (unsigned)threads) ig_stop("a thread waits that does not take part");
    const size_t place = blocks > 1 ? 0 : 1 + (size_t)ig_current->rank;
    if (barriers.size() <= place) barriers.resize(place + 1);
    const unsigned phase = barriers[place].second;
    if (++barriers[place].first == threads * blocks) barriers[place] = {0, phase + 1};
    ig_current->where = (const void *)place;
    ig_wait_until([](const ig_fiber &fiber) { return barriers[(size_t)fiber.where].second != fiber.phase; }, (const void *)place, phase);
}
static ig_place ig_place_in(ig_place place, unsigned rank) { return place + ((int64_t)rank - ig_current->rank) * (int64_t)ig_dynamic_pitch; }

struct ig_barrier {
    int16_t expected, missing;
    int32_t state; /* twice the bytes that are on their way, and the phase's parity */
};
static ig_barrier ig_read_barrier(const void *place)
{
    ig_barrier found;
    std::memcpy(&found, place, sizeof found);
    if ((uintptr_t)place % 8 || found.expected <= 0) ig_stop("a barrier in shared memory was not set up");
    return found;
}
static void ig_change_barrier(ig_place place, int arrivals, int bytes)
{
    ig_barrier now = ig_read_barrier(place);
    now.missing = (int16_t)(now.missing - arrivals);
    now.state += 2 * bytes;
    if (now.missing < 0) ig_stop("more threads arrive at a barrier in shared memory than it expects");
    if (!now.missing && now.state >> 1 == 0) now.missing = now.expected, now.state ^= 1;
    std::memcpy(place, &now, sizeof now);
}
static void ig_set_up_barrier(ig_place place, unsigned arrivals)
{
    const ig_barrier made = {(int16_t)arrivals, (int16_t)arrivals, 0};
    std::memcpy(place, &made, sizeof made);
}
static void ig_wait_at_barrier(ig_place place, unsigned parity)
{
    ig_read_barrier(place);
    ig_wait_until([](const ig_fiber &fiber) { return ((unsigned)ig_read_barrier(fiber.where).state & 1) != fiber.phase; }, place, parity);
}

static void ig_send_bytes(ig_place to, const void *from, unsigned bytes, ig_place barrier)
{
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16) ig_stop("a bulk copy is not aligned");
    std::memset(to, 0xFF, bytes);
    ig_sent.push_back([=] {
        std::memcpy(to, from, bytes);
        ig_change_barrier(barrier, 0, -(int)bytes);
    });
}
static void ig_send_floats(ig_place to, const float *values, ig_place barrier)
{
    std::vector<float> kept(values, values + 4);
    ig_sent.push_back([=] {
        std::memcpy(to, kept.data(), 16);
        ig_change_barrier(barrier, 0, -16);
    });
}

/* A tensor's map as the emulated driver makes it: what the host text asks the driver for. */
struct ig_tensor_map {
    uint64_t address, format, sizes[5], steps[4], box[5]; /* format: dtype, rank, swizzle and each dim's stride less one, 8 bits each */
    int every(int d) const { return 1 + (int)(format >> (24 + 8 * d) & 255); }
    int count(int d) const { return ((int)box[d] + every(d) - 1) / every(d); }
};
static void ig_send_box(ig_place to, const ig_tensor_map &map, const int *at, ig_place barrier)
{
    static const int bytes_of[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    const int rank = (int)(map.format >> 8 & 255), element = bytes_of[map.format & 255], swizzle = (int)(map.format >> 16 & 255);
    if (rank < 1 || rank > 5 || map.address % 16) ig_stop("a tensor's map is wrong");
    const int line = (int)map.box[0] * element;
    if ((uintptr_t)to % 128 || line % 16 || (swizzle && line != 16 << swizzle)) ig_stop("a box of a tensor's map does not fit its layout");
    int lines = 1;
    for (int d = 1; d < rank; ++d) lines *= map.count(d);
    std::memset(to, 0xFF, (size_t)(line * lines));
    std::vector<int> first(at, at + rank);
    const ig_tensor_map kept = map;
    ig_sent.push_back([=] {
        for (int l = 0; l < lines; ++l) {
            const char *from = (const char *)kept.address;
            bool there = true;
            int rest = l;
            for (int d = 1; d < rank; ++d) {
                const int64_t place = first[(size_t)d] + rest % kept.count(d) * kept.every(d);
                rest /= kept.count(d);
                there &= place >= 0 && place < (int64_t)kept.sizes[d];
                from += place * (int64_t)kept.steps[d - 1];
            }
            for (int byte = 0; byte < line; byte += element) {
                const int64_t place = first[0] + byte / element;
                uintptr_t target = (uintptr_t)to + (uintptr_t)(l * line + byte);
                if (swizzle) target ^= (target >> 7 & ((1u << swizzle) - 1)) << 4;
                if (there && place >= 0 && place < (int64_t)kept.sizes[0]) std::memcpy((void *)target, from + place * element, (size_t)element);
                else std::memset((void *)target, 0, (size_t)element);
            }
        }
        ig_change_barrier(barrier, 0, -line * lines);
    });
}
