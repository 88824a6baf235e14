/* What only a GPU has: lanes of a warp, copies to shared memory, tensor cores. The emulator has the same functions.
 *
 * Fragments of a product of 16×k by k×8 (g = lane / 4, t = lane % 4, e elements of 32 / e bits in a register):
 *   a[0]: row g, terms e·t …      a[1]: row g + 8     a[2], a[3]: the same rows, k / 2 terms later
 *   b[0]: column g, terms e·t …   b[1]: k / 2 terms later
 *   d[0], d[1]: row g, columns 2t and 2t + 1          d[2], d[3]: row g + 8
 */
#ifndef IG_EMULATED
#define IG_KERNEL_ENTRY(kernel)
#define IG_GRID_ENTRY(kernel)
#define IG_ALL 0xffffffffu
/* Blocks that a multiprocessor is to have registers for: older ones have no shared memory for as many. */
#if __CUDA_ARCH__ >= 900
#define IG_RESIDENT(blocks) blocks
#else
#define IG_RESIDENT(blocks) 1
#endif

extern __shared__ __align__(1024) char ig_shared_memory[];
static inline char *ig_shared() { return ig_shared_memory; }
static inline int ig_lane() { return (int)(threadIdx.x & 31); }
static inline int ig_warp() { return (int)(threadIdx.x >> 5); }
static inline void ig_syncwarp() { __syncwarp(); }

template <class T> static inline T ig_shuffle(T value, int from) { return __shfl_sync(IG_ALL, value, from); }
template <class T> static inline T ig_shuffle_xor(T value, int mask) { return __shfl_xor_sync(IG_ALL, value, mask); }
template <class T> static inline T ig_shuffle_up(T value, int by) { return __shfl_up_sync(IG_ALL, value, by); }
template <class T> static inline T ig_shuffle_down(T value, int by) { return __shfl_down_sync(IG_ALL, value, by); }
static inline unsigned ig_ballot(int holds) { return __ballot_sync(IG_ALL, holds); }

/* A word of shared memory that some threads read while another one writes it: they get the value before or the one behind.
 * Reading it by an atomic operation, too, makes one token of the Llama 0.8% slower. */
static inline int ig_read_word(const int *from) { return *(const volatile int *)from; }
static inline void ig_write_word(int *to, int value) { atomicExch(to, value); }

static inline unsigned ig_shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* Copies 4, 8 or 16 bytes to shared memory; where `valid` is false, zeros. */
static inline void ig_cp_async16(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ig_shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
static inline void ig_cp_async8(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(ig_shared_address(to)), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
static inline void ig_cp_async4(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(ig_shared_address(to)), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
static inline void ig_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits for all groups of this thread's copies but the last `N`. */
template <int N> static inline void ig_cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* Four (two) 8×8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8. */
static inline void ig_ldmatrix4(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(ig_shared_address(row)) : "memory");
}
static inline void ig_ldmatrix4_transposed(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(ig_shared_address(row)) : "memory");
}
static inline void ig_ldmatrix2(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(ig_shared_address(row)) : "memory");
}
static inline void ig_ldmatrix2_transposed(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(ig_shared_address(row)) : "memory");
}

#define IG_MMA(name, shape, types, sum, letter) \
    static inline void name(sum *d, const uint32_t *a, const uint32_t *b) \
    { \
        asm volatile("mma.sync.aligned." shape ".row.col." types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
IG_MMA(ig_mma_bf16, "m16n8k16", "f32.bf16.bf16.f32", float, "f")
IG_MMA(ig_mma_f16, "m16n8k16", "f32.f16.f16.f32", float, "f")
IG_MMA(ig_mma_tf32, "m16n8k8", "f32.tf32.tf32.f32", float, "f")
IG_MMA(ig_mma_s8, "m16n8k32", "s32.s8.s8.s32", int, "r")

/* A float with 10 bits of fraction, the nearest one, of two the one away from zero. */
static inline uint32_t ig_round_tf32(uint32_t bits)
{
    uint32_t made;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(made) : "f"(__uint_as_float(bits)));
    return made;
}
/* Two floats as halves in one register, the first in the low bits. */
static inline uint32_t ig_pack_bf16(float low, float high)
{
    uint32_t made;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
    return made;
}
static inline uint32_t ig_pack_f16(float low, float high)
{
    uint32_t made;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
    return made;
}
static inline float ig_exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* The larger of two numbers, or nan where one is. */
static inline float ig_max_nan(float a, float b)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
/* The kernel before this one in the stream: wait until what it wrote is there; let the next one begin. */
static inline void ig_wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Asks for the line of memory that an element lies in: a read of it later is fast. */
static inline void ig_prefetch(const void *element) { asm volatile("prefetch.global.L1 [%0];" ::"l"(element)); }
static inline void ig_start_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/* The same number, which the compiler computes again here: it is not kept in a register over the loops around. */
static inline int ig_recompute(int value)
{
    asm volatile("" : "+r"(value));
    return value;
}
/* The first N threads of the block wait for each other. */
template <int N> static inline void ig_wait_for_first() { asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory"); }
/* They wait until those of all blocks of the grid, which run at the same time, are here; what these wrote before is there
 * then. `word` is 0 at first: its last 31 bits are 0 again, and its first one has changed, when all have come. */
template <int N> static inline void ig_wait_for_grid(unsigned *word)
{
    ig_wait_for_first<N>();
    if (threadIdx.x == 0) {
        const unsigned more = blockIdx.x ? 1 : 0x80000000u - (gridDim.x - 1);
        unsigned before, now;
        asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(more) : "memory");
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
        while (!((before ^ now) & 0x80000000u));
    }
    ig_wait_for_first<N>();
}
static inline void ig_fail(const ig_context &context, unsigned status)
{
    atomicCAS(context.status, 0u, status | (unsigned)context.site << 8);
}

#else

static inline void ig_cp_async16(void *to, const void *from, bool valid) { ig_cp_async(to, from, valid ? 16 : 0, 16); }
static inline void ig_cp_async8(void *to, const void *from, bool valid) { ig_cp_async(to, from, valid ? 8 : 0, 8); }
static inline void ig_cp_async4(void *to, const void *from, bool valid) { ig_cp_async(to, from, valid ? 4 : 0, 4); }
template <int N> static inline void ig_cp_async_wait() { ig_cp_async_wait_all_but(N); }
static inline void ig_ldmatrix4(uint32_t *to, const void *row) { ig_ldmatrix(to, 4, row, false); }
static inline void ig_ldmatrix4_transposed(uint32_t *to, const void *row) { ig_ldmatrix(to, 4, row, true); }
static inline void ig_ldmatrix2(uint32_t *to, const void *row) { ig_ldmatrix(to, 2, row, false); }
static inline void ig_ldmatrix2_transposed(uint32_t *to, const void *row) { ig_ldmatrix(to, 2, row, true); }
static inline void ig_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) { ig_mma<float, uint16_t>(d, a, b, 16, ig_brain_value); }
static inline void ig_mma_f16(float *d, const uint32_t *a, const uint32_t *b) { ig_mma<float, uint16_t>(d, a, b, 16, ig_half_value); }
static inline void ig_mma_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    ig_mma<float, uint32_t>(d, a, b, 8, [](uint32_t bits) {
        bits &= 0xffffe000u;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    });
}
static inline uint32_t ig_round_tf32(uint32_t bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fffffff;
    return (bits + 0x1000u) & 0xffffe000u;
}
static inline void ig_mma_s8(int *d, const uint32_t *a, const uint32_t *b) { ig_mma<int, int8_t>(d, a, b, 32, [](int8_t v) { return (int)v; }); }
static inline uint32_t ig_brain_bits(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t ig_half_bits(float value)
{
    const _Float16 half = (_Float16)value;
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
static inline uint32_t ig_pack_bf16(float low, float high) { return ig_brain_bits(low) | ig_brain_bits(high) << 16; }
static inline uint32_t ig_pack_f16(float low, float high) { return ig_half_bits(low) | ig_half_bits(high) << 16; }
static inline float ig_exp2_fast(float x) { return std::exp2(x); }
static inline float ig_max_nan(float a, float b) { return (a > b) | (a != a) ? a : b; }
static inline void ig_wait_for_previous() {}
static inline void ig_prefetch(const void *) {}
static inline void ig_start_next() {}
static inline int ig_recompute(int value) { return value; }
template <int N> static inline void ig_wait_for_first() { ig_wait_for_threads(N, 1); }
template <int N> static inline void ig_wait_for_grid(unsigned *) { ig_wait_for_threads(N, (int)gridDim.x); } /* whose blocks run together */
static inline void ig_fail(const ig_context &context, unsigned status)
{
    if (!*context.status) *context.status = status | (unsigned)context.site << 8;
}
#endif
