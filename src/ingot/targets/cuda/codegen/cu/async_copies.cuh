/* Asynchronous copies that complete on barriers in shared memory, and clusters of blocks: what Hopper has beside
 * ptx.cuh. The emulator has the same functions.
 *
 * A barrier is 8 bytes of shared memory. A phase of it ends when as many threads have arrived as it was set up for, and
 * the bytes that they said would come have come. The phases' parities are 0, 1, 0, …: to wait for parity p is to wait
 * for the end of a phase of that parity; before the first phase has ended, parity 1 is over already.
 *
 * IG_HOPPER is defined where a text may use them: a kernel has another text for other GPUs.
 */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || (defined(IG_EMULATED) && !defined(IG_EMULATED_PLAIN))
#define IG_HOPPER 1
#endif

#ifndef IG_EMULATED
struct __align__(64) ig_tensor_map {
    uint64_t words[16];
};
#ifdef IG_HOPPER
#define IG_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define IG_CLUSTER(blocks)
#endif
#define IG_CLUSTER_ENTRY(kernel, blocks)
#else
#define IG_CLUSTER(blocks)
#ifndef IG_HOPPER
#undef IG_CLUSTER_ENTRY
#define IG_CLUSTER_ENTRY(kernel, blocks) IG_KERNEL_ENTRY(kernel)
#endif
#endif

#ifdef IG_HOPPER
#ifndef IG_EMULATED
typedef unsigned ig_place; /* an address in the shared memory of a block of the cluster */

static inline ig_place ig_place_of(const void *shared) { return ig_shared_address(shared); }
/* The same place in another block of the cluster. */
static inline ig_place ig_place_in(ig_place place, unsigned rank)
{
    ig_place found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(place), "r"(rank));
    return found;
}

static inline void ig_set_up_barrier(ig_place barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/* Shows barriers that were set up to the other blocks of the cluster and to copies; __syncthreads shows them to the block. */
static inline void ig_show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
static inline void ig_arrive(ig_place barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
/* Arrives, and says that so many more bytes will come in this phase. */
static inline void ig_arrive_expecting(ig_place barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
static inline void ig_wait_at_barrier(ig_place barrier, unsigned parity)
{
    unsigned over;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    } while (!over);
}
/* The same, where other blocks of the cluster sent what the barrier counts. */
static inline void ig_wait_for_blocks(ig_place barrier, unsigned parity)
{
    unsigned over;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    } while (!over);
}

/* Copies bytes, a multiple of 16 from a multiple of 16 to one; the barrier, of this block, counts them. */
static inline void ig_copy_bytes(ig_place to, const void *from, unsigned bytes, ig_place barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier) : "memory");
}
/* The same for data that is read only once. */
static inline void ig_copy_once(ig_place to, const void *from, unsigned bytes, ig_place barrier)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
/* Copies a box of a tensor from its element (x, y, …) on, x being the innermost dim. What lies outside is 0. */
static inline void ig_copy_box(ig_place to, const ig_tensor_map &map, int x, int y, ig_place barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
static inline void ig_copy_box(ig_place to, const ig_tensor_map &map, int x, int y, int z, ig_place barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}
static inline void ig_copy_box(ig_place to, const ig_tensor_map &map, int x, int y, int z, int w, ig_place barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier) : "memory");
}
static inline void ig_prefetch_map(const ig_tensor_map &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

static inline unsigned ig_cluster_rank()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* A barrier of all threads of the cluster, in two halves. */
static inline void ig_arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
static inline void ig_wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* Four floats to a place of any block of the cluster, whose barrier counts them. */
static inline void ig_send_floats(ig_place to, const float *values, ig_place barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(values[0]),
                 "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier) : "memory");
}

/* Registers of a thread from here on, for all warps of a group of four: fewer, which others then may take. */
template <int N> static inline void ig_leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> static inline void ig_take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

#else

static inline ig_place ig_place_of(const void *shared) { return (char *)shared; }
static inline void ig_show_barriers() {}
static inline void ig_arrive(ig_place barrier) { ig_change_barrier(barrier, 1, 0); }
static inline void ig_arrive_expecting(ig_place barrier, unsigned bytes) { ig_change_barrier(barrier, 1, (int)bytes); }
static inline void ig_wait_for_blocks(ig_place barrier, unsigned parity) { ig_wait_at_barrier(barrier, parity); }
static inline void ig_copy_bytes(ig_place to, const void *from, unsigned bytes, ig_place barrier) { ig_send_bytes(to, from, bytes, barrier); }
static inline void ig_copy_once(ig_place to, const void *from, unsigned bytes, ig_place barrier) { ig_send_bytes(to, from, bytes, barrier); }
template <class... Rest> static inline void ig_copy_box(ig_place to, const ig_tensor_map &map, int x, int y, Rest... rest)
{
    const auto send = [&](int z, int w, ig_place barrier) {
        const int at[] = {x, y, z, w};
        ig_send_box(to, map, at, barrier);
    };
    if constexpr (sizeof...(rest) == 1) send(0, 0, rest...);
    else if constexpr (sizeof...(rest) == 2) [&](int z, ig_place barrier) { send(z, 0, barrier); }(rest...);
    else send(rest...);
}
static inline void ig_prefetch_map(const ig_tensor_map &) {}
static inline unsigned ig_cluster_rank() { return (unsigned)ig_current->rank; }
template <int N> static inline void ig_leave_registers() {}
template <int N> static inline void ig_take_registers() {}
#endif
#endif
