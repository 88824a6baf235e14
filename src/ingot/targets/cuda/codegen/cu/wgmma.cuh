/* Products by groups of four warps on Hopper's tensor cores, both operands in shared memory. The emulator has the same
 * functions. Elsewhere the sums are those of single warps.
 *
 * A tile's lines are 128 bytes of terms, swizzled as ig_swizzle does it, which is one of the layouts that the hardware
 * knows; the tile begins at a multiple of 1024 bytes. A group has 64 rows of sums, thread t of it those of rows
 * 16 · (t / 32) + t % 32 / 4 and 8 below: d[4 j + i] is column 8 j + 2 (t % 4) + i % 2, of the lower row where i > 1.
 */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(IG_EMULATED)

#ifndef IG_EMULATED
#define IG_NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define IG_NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define IG_NAMES_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define IG_OPERANDS_8(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7])
#define IG_OPERANDS_32(d) IG_OPERANDS_8(d), IG_OPERANDS_8((d) + 8), IG_OPERANDS_8((d) + 16), IG_OPERANDS_8((d) + 24)
#define IG_OPERANDS_64(d) IG_OPERANDS_32(d), IG_OPERANDS_32((d) + 32)
#define IG_OPERANDS_128(d) IG_OPERANDS_64(d), IG_OPERANDS_64((d) + 64)
#define IG_WGMMA(name, columns, types, names, left, right, ...) \
    static inline void name(float (&d)[columns / 2], uint64_t a, uint64_t b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" names "}, " left ", " right ", 1, 1, 1, 0, 0;" \
                     : __VA_ARGS__ : "l"(a), "l"(b) : "memory"); \
    }
#define IG_WGMMA_TYPES(name, types) \
    IG_WGMMA(name, 64, types, IG_NAMES_32, "%32", "%33", IG_OPERANDS_32(d)) \
    IG_WGMMA(name, 128, types, IG_NAMES_64, "%64", "%65", IG_OPERANDS_64(d)) \
    IG_WGMMA(name, 256, types, IG_NAMES_128, "%128", "%129", IG_OPERANDS_128(d))
IG_WGMMA_TYPES(ig_wgmma_bf16, "bf16.bf16")
IG_WGMMA_TYPES(ig_wgmma_f16, "f16.f16")

/* Where a tile's lines begin: lines of 128 bytes along the terms, swizzled, 8 of them 1024 bytes. */
static inline uint64_t ig_describe_tile(const void *tile)
{
    return (uint64_t)(ig_shared_address(tile) & 0x3ffff) >> 4 | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
static inline uint64_t ig_move_tile(uint64_t tile, int bytes) { return tile + (uint64_t)(bytes >> 4); }
/* Sums may be used by products from here on; what was copied to shared memory may be read by them. */
static inline void ig_begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static inline void ig_commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static inline void ig_wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
static inline void ig_show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#else

static inline uint64_t ig_describe_tile(const void *tile) { return (uint64_t)((const char *)tile - ig_shared()); }
static inline uint64_t ig_move_tile(uint64_t tile, int bytes) { return tile + (uint64_t)bytes; }
static inline void ig_begin_products() {}
static inline void ig_commit_products() {}
template <int N> static inline void ig_wait_for_products() { ig_syncwarp(); } /* a warp has them together */
static inline void ig_show_copies() {}
template <int SUMS, class Read> static void ig_emulate_wgmma(float (&d)[SUMS], uint64_t a, uint64_t b, Read read)
{
    auto element = [&](uint64_t tile, int line, int term) {
        uint64_t at = tile + (uint64_t)(line * 128 + term * 2);
        at ^= (at >> 7 & 7) << 4;
        uint16_t bits;
        std::memcpy(&bits, ig_shared() + at, 2);
        return read(bits);
    };
    for (int i = 0; i < SUMS; ++i) {
        const int row = ig_warp() % 4 * 16 + ig_lane() / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + ig_lane() % 4 * 2 + i % 2;
        float sum = 0;
        for (int term = 0; term < 16; ++term) sum += element(a, row, term) * element(b, column, term);
        d[i] += sum;
    }
}
template <int SUMS> static inline void ig_wgmma_bf16(float (&d)[SUMS], uint64_t a, uint64_t b) { ig_emulate_wgmma(d, a, b, ig_brain_value); }
template <int SUMS> static inline void ig_wgmma_f16(float (&d)[SUMS], uint64_t a, uint64_t b) { ig_emulate_wgmma(d, a, b, ig_half_value); }
#endif

template <int SUMS> static inline void ig_add_product(ig_multiply_bf16, float (&d)[SUMS], uint64_t a, uint64_t b) { ig_wgmma_bf16(d, a, b); }
template <int SUMS> static inline void ig_add_product(ig_multiply_f16, float (&d)[SUMS], uint64_t a, uint64_t b) { ig_wgmma_f16(d, a, b); }

/* DOWN · ALONG warps, four of which have their part of the rows and all columns. The products of a tile may still be
   under way when the next one's begin. */
template <class Multiply, class A, class B, int DOWN, int ALONG, int STAGES> struct ig_warpgroup_sums {
    using Sum = float;
    static constexpr int HIGH = A::ROWS / (DOWN * ALONG / 4), M = HIGH / 64, N = B::ROWS, LAG = STAGES > 3 ? 1 : 0;
    static_assert(A::LINE == 128 && B::LINE == 128 && !A::ACROSS && !B::ACROSS && HIGH % 64 == 0, "lines that the hardware reads");
    float sums[M][N / 2];

    inline ig_warpgroup_sums()
    {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[m][i] = 0;
    }
    static inline void show_copies() { ig_show_copies(); }
    inline void begin(const char *a, const char *b)
    {
        const uint64_t left = ig_describe_tile(a + ig_warp() / 4 * HIGH * 128), right = ig_describe_tile(b);
        ig_begin_products();
#pragma unroll
        for (int depth = 0; depth < 4; ++depth)
#pragma unroll
            for (int m = 0; m < M; ++m)
                ig_add_product(Multiply(), sums[m], ig_move_tile(left, m * 64 * 128 + depth * 32), ig_move_tile(right, depth * 32));
        ig_commit_products();
    }
    inline void end(const char *, const char *) { ig_wait_for_products<LAG>(); }
    inline void finish() { ig_wait_for_products<0>(); }
    /* Into rows of COLUMNS + 8 sums. */
    inline void spread(float *tile) const
    {
        const int lane = ig_lane(), top = ig_warp() / 4 * HIGH + ig_warp() % 4 * 16 + lane / 4, first = lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const ig_vector<float, 2> pair = {{sums[m][4 * n + 2 * half], sums[m][4 * n + 2 * half + 1]}};
                    ig_store<2>(tile + (top + m * 64 + half * 8) * (N + 8) + first + n * 8, pair);
                }
    }
};

#else
template <class Multiply, class A, class B, int DOWN, int ALONG, int STAGES> using ig_warpgroup_sums = ig_tensor_sums<Multiply, A, B, DOWN, ALONG>;
#endif
