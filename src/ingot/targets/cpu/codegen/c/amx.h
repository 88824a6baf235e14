/* The products of gemm.h on AMX: tile registers of 16 lines by 64 bytes, sums of 16 rows by 16 columns in each.

   ig_tile_amx_bf16_48 and ig_window_amx_bf16_48 compute what ig_tile_bf16_48 and ig_window_bf16_48 do, of the same
   operands, and call those where the library is for a machine without AMX or Linux does not let the process use it.
   A panel's 16 lines by 16 columns are a tile register as they lie. So are 16 rows by 64 bytes of a matrix. What a
   window reads lies anywhere: 32 rows of a run of taps are gathered, and are a matrix then.

   Two tiles of rows by two of columns share their loads. Where there are at most 16 rows, all columns go through
   at once. The bytes of a row that fill no tile register are copied beside zeros. Registers 0 to 3 hold sums, 4 and
   5 rows, 6 and 7 the panel; a sum goes to memory after each run of IG_AMX_RUN bytes, and goes on from there. */

#if !defined(IG_AMX) && defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define IG_AMX
#define IG_AMX_CONFIGURE(shape) __asm__ volatile("ldtilecfg %0" : : "m"(*(shape)))
#define IG_AMX_RELEASE() __asm__ volatile("tilerelease" : : : "memory")
#define IG_AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define IG_AMX_LOAD(t, from, step) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((int64_t)(step)) : "memory")
#define IG_AMX_STORE(t, to, step) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(step)) : "memory")
#define IG_AMX_DOT_bf16(sum, row, line) __asm__ volatile("tdpbf16ps %%tmm" #line ", %%tmm" #row ", %%tmm" #sum : :)
#define IG_AMX_DOT_u8(sum, row, line) __asm__ volatile("tdpbusd %%tmm" #line ", %%tmm" #row ", %%tmm" #sum : :)

/* A process must ask Linux before the first tile register is used, once for all its threads. */
IG_SHARED int ig_amx_allowed(void);
#if IG_IN(0)
int ig_amx_allowed(void)
{
    enum { ASK_PERMISSION = 0x1023, TILE_DATA = 18, YES = 1, NO = 2 };
    static _Atomic int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        answer = syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0 ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
}
#endif
#define IG_AMX_ALLOWED() ig_amx_allowed()
#endif

#ifdef IG_AMX
enum { IG_AMX_RUN = 1024, IG_AMX_ROWS = 32 };

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} ig_amx_shape;

/* Shapes the registers for `top` rows, and `bottom` more in the second tile of rows. */
__attribute__((unused)) static void ig_amx_configure(ig_amx_shape *shape, int64_t top, int64_t bottom)
{
    if (shape->rows[4] == top && shape->rows[5] == bottom) return;
    *shape = (ig_amx_shape){.palette = 1};
    for (int t = 0; t < 8; ++t) {
        const int64_t rows = t >= 6 ? 16 : t == 4 ? top : t == 5 ? bottom : t >= 2 && bottom ? bottom : top;
        shape->rows[t] = (uint8_t)rows;
        shape->bytes[t] = rows ? 64 : 0;
    }
    IG_AMX_CONFIGURE(shape);
}

/* One step: 64 bytes of every row by 16 lines of the panel. */
#define IG_AMX_SQUARE(kind, a, distance, b) \
    do { \
        IG_AMX_LOAD(6, b, line); \
        IG_AMX_LOAD(4, a, distance); \
        IG_AMX_DOT_##kind(0, 4, 6); \
        IG_AMX_LOAD(5, (a) + 16 * (distance), distance); \
        IG_AMX_DOT_##kind(2, 5, 6); \
        if (both) { \
            IG_AMX_LOAD(7, (b) + 64, line); \
            IG_AMX_DOT_##kind(1, 4, 7); \
            IG_AMX_DOT_##kind(3, 5, 7); \
        } \
    } while (0)
#define IG_AMX_STRIP(kind, a, distance, b) \
    do { \
        IG_AMX_LOAD(4, a, distance); \
        IG_AMX_LOAD(6, b, line); \
        IG_AMX_DOT_##kind(0, 4, 6); \
        if (wide > 1) { \
            IG_AMX_LOAD(7, (b) + 64, line); \
            IG_AMX_DOT_##kind(1, 4, 7); \
        } \
        if (wide > 2) { \
            IG_AMX_LOAD(6, (b) + 128, line); \
            IG_AMX_DOT_##kind(2, 4, 6); \
        } \
        if (wide > 3) { \
            IG_AMX_LOAD(7, (b) + 192, line); \
            IG_AMX_DOT_##kind(3, 4, 7); \
        } \
    } while (0)
#define IG_AMX_STEPS(kind, STEP) \
    for (int64_t k = 0; k < steps; ++k) { \
        for (int64_t p = 0; p < pace; ++p, ahead += 64) IG_ASK(ahead); \
        STEP(kind, a + k * 64, distance, b + k * 16 * line); \
    } \
    if (rest_of_rows) STEP(kind, rest_of_rows, 64, rest_of_panel);

/* The sums of a run for two tiles of rows by one or two of columns, and for one tile of rows by all columns. `line` is
   both a panel's line and a row of sums, in bytes. */
#define IG_AMX_ARGUMENTS \
    const char *a, int64_t distance, const char *b, int64_t steps, const char *rest_of_rows, \
        const char *rest_of_panel, char *sums, int begun, const char *ahead, int64_t pace
#define IG_AMX_BLOCKS(kind) \
    static inline __attribute__((always_inline, unused)) void ig_amx_square_##kind( \
        IG_AMX_ARGUMENTS, const int64_t line, const int both) \
    { \
        if (begun) { \
            IG_AMX_LOAD(0, sums, line); \
            IG_AMX_LOAD(2, sums + 16 * line, line); \
            if (both) { \
                IG_AMX_LOAD(1, sums + 64, line); \
                IG_AMX_LOAD(3, sums + 16 * line + 64, line); \
            } \
        } else { \
            IG_AMX_ZERO(0); \
            IG_AMX_ZERO(1); \
            IG_AMX_ZERO(2); \
            IG_AMX_ZERO(3); \
        } \
        IG_AMX_STEPS(kind, IG_AMX_SQUARE) \
        IG_AMX_STORE(0, sums, line); \
        IG_AMX_STORE(2, sums + 16 * line, line); \
        if (both) { \
            IG_AMX_STORE(1, sums + 64, line); \
            IG_AMX_STORE(3, sums + 16 * line + 64, line); \
        } \
    } \
    static inline __attribute__((always_inline, unused)) void ig_amx_strip_##kind( \
        IG_AMX_ARGUMENTS, const int64_t line, const int wide) \
    { \
        if (begun) { \
            IG_AMX_LOAD(0, sums, line); \
            if (wide > 1) IG_AMX_LOAD(1, sums + 64, line); \
            if (wide > 2) IG_AMX_LOAD(2, sums + 128, line); \
            if (wide > 3) IG_AMX_LOAD(3, sums + 192, line); \
        } else { \
            IG_AMX_ZERO(0); \
            IG_AMX_ZERO(1); \
            IG_AMX_ZERO(2); \
            IG_AMX_ZERO(3); \
        } \
        IG_AMX_STEPS(kind, IG_AMX_STRIP) \
        IG_AMX_STORE(0, sums, line); \
        if (wide > 1) IG_AMX_STORE(1, sums + 64, line); \
        if (wide > 2) IG_AMX_STORE(2, sums + 128, line); \
        if (wide > 3) IG_AMX_STORE(3, sums + 192, line); \
    }

/* `high` rows by a run of `bytes` bytes of each, which lie `distance` bytes apart. What is asked for ahead is what lies
   behind the run's part of the panel; all steps share it. */
#define IG_AMX_RUN_OF(kind, width) \
    __attribute__((unused)) static void ig_amx_run_##kind##_##width( \
        const char *a, int64_t distance, const char *b, int64_t bytes, char *sums, int64_t high, int begun, \
        ig_amx_shape *shape) \
    { \
        enum { line = width * 4, wide = width / 16, pairs = (wide + 1) / 2 }; \
        _Alignas(64) char rows[IG_AMX_ROWS * 64], panel[16 * line]; \
        const int64_t steps = bytes / 64, rest = bytes % 64; \
        if (rest) { \
            const int64_t lines = (rest + 3) / 4; \
            memcpy(panel, b + steps * 16 * line, (size_t)(lines * line)); \
            memset(panel + lines * line, 0, (size_t)((16 - lines) * line)); \
            memset(rows, 0, sizeof rows); \
        } \
        const char *ahead = b + (bytes + 3) / 4 * line; \
        const int64_t blocks = (high + IG_AMX_ROWS - 1) / IG_AMX_ROWS; \
        for (int64_t i = 0, count; i < high; i += count) { \
            count = ig_min(high - i, IG_AMX_ROWS); \
            const int64_t top = ig_min(count, 16), shares = blocks * (count > 16 ? pairs : 1); \
            const int64_t pace = (width + shares - 1) / shares; \
            const char *const from = a + i * distance, *const rest_of_rows = rest ? rows : NULL; \
            char *const to = sums + i * line; \
            for (int64_t r = 0; rest && r < count; ++r) \
                memcpy(rows + r * 64, from + r * distance + steps * 64, (size_t)rest); \
            ig_amx_configure(shape, top, count - top); \
            if (count <= 16) { \
                ig_amx_strip_##kind(from, distance, b, steps, rest_of_rows, panel, to, begun, ahead, pace, line, wide); \
                ahead += steps * pace * 64; \
                continue; \
            } \
            int j = 0; \
            for (; j + 2 <= wide; j += 2, ahead += steps * pace * 64) \
                ig_amx_square_##kind( \
                    from, distance, b + j * 64, steps, rest_of_rows, panel + j * 64, to + j * 64, begun, ahead, pace, \
                    line, 1); \
            if (j < wide) { \
                ig_amx_square_##kind( \
                    from, distance, b + j * 64, steps, rest_of_rows, panel + j * 64, to + j * 64, begun, ahead, pace, \
                    line, 0); \
                ahead += steps * pace * 64; \
            } \
        } \
    }
#else
#define IG_AMX_BLOCKS(kind)
#define IG_AMX_RUN_OF(kind, width)
#endif

#define IG_TILE_AMX_HEAD(kind, width) \
    IG_SHARED void ig_tile_amx_##kind##_##width( \
        const ig_factor_##kind *a, int64_t distance, const ig_weight_##kind *b, int64_t depth, ig_sum_##kind *sums, \
        int64_t high);
#define IG_WINDOW_AMX_HEAD(kind, width) \
    IG_SHARED void ig_window_amx_##kind##_##width( \
        const ig_factor_##kind **rows, int64_t apart, const ig_window *w, const ig_factor_##kind *image, \
        const ig_factor_##kind *outside, int64_t run, int64_t channels, const ig_weight_##kind *b, \
        ig_sum_##kind *sums, int64_t first, int64_t high);

#ifdef IG_AMX
#define IG_TILE_AMX(kind, width) \
    void ig_tile_amx_##kind##_##width( \
        const ig_factor_##kind *a, int64_t distance, const ig_weight_##kind *b, int64_t depth, ig_sum_##kind *sums, \
        int64_t high) \
    { \
        enum { size = sizeof(ig_factor_##kind), most = IG_AMX_RUN / size }; \
        if (!IG_AMX_ALLOWED()) { \
            ig_tile_##kind##_##width(a, distance, b, depth, sums, high); \
            return; \
        } \
        ig_amx_shape shape = {0}; \
        int64_t begin = 0; \
        do { \
            const int64_t terms = ig_min(depth - begin, most); \
            ig_amx_run_##kind##_##width( \
                (const char *)(a + begin), distance * size, (const char *)(b + begin * width), terms * size, \
                (char *)sums, high, begin > 0, &shape); \
            begin += terms; \
        } while (begin < depth); \
        IG_AMX_RELEASE(); \
    }
#define IG_WINDOW_AMX(kind, width) \
    void ig_window_amx_##kind##_##width( \
        const ig_factor_##kind **rows, int64_t apart, const ig_window *w, const ig_factor_##kind *image, \
        const ig_factor_##kind *outside, int64_t run, int64_t channels, const ig_weight_##kind *b, \
        ig_sum_##kind *sums, int64_t first, int64_t high) \
    { \
        enum { side = IG_SIDE_##kind, size = sizeof(ig_factor_##kind), most = IG_AMX_RUN / size }; \
        if (!IG_AMX_ALLOWED()) { \
            ig_window_##kind##_##width(rows, apart, w, image, outside, run, channels, b, sums, first, high); \
            return; \
        } \
        _Alignas(64) char gathered[IG_AMX_ROWS * IG_AMX_RUN]; \
        ig_amx_shape shape = {0}; \
        const int64_t taps = w->taps_high * w->taps_wide, whole = IG_WHOLE(channels, side); \
        const int64_t together = whole <= most ? most / whole : 1; \
        for (int64_t begin = 0, count; begin < taps; begin += count) { \
            count = ig_min(taps - begin, run); \
            ig_windows_##kind(rows, apart, w, image, outside, first, high, begin, begin + count); \
            for (int64_t tap = 0; tap < count; tap += together) \
                for (int64_t c = 0; c < channels; c += most) { \
                    const int64_t several = ig_min(count - tap, together), here = ig_min(channels - c, most); \
                    const int64_t part = IG_WHOLE(here, side) * size; \
                    const ig_weight_##kind *const panel = b + ((begin + tap) * whole + c) * width; \
                    for (int64_t i = 0, lines; i < high; i += lines) { \
                        lines = ig_min(high - i, IG_AMX_ROWS); \
                        for (int64_t t = 0; t < several; ++t) \
                            for (int64_t r = 0; r < lines; ++r) { \
                                char *const to = gathered + r * IG_AMX_RUN + t * part; \
                                memcpy(to, rows[(tap + t) * apart + i + r] + c, (size_t)(here * size)); \
                                for (int64_t z = here * size; z < part; ++z) to[z] = 0; \
                            } \
                        ig_amx_run_##kind##_##width( \
                            gathered, IG_AMX_RUN, (const char *)panel, several * part, (char *)(sums + i * width), \
                            lines, begin + tap + c > 0, &shape); \
                    } \
                } \
        } \
        IG_AMX_RELEASE(); \
    }
#else
#define IG_TILE_AMX(kind, width) \
    void ig_tile_amx_##kind##_##width( \
        const ig_factor_##kind *a, int64_t distance, const ig_weight_##kind *b, int64_t depth, ig_sum_##kind *sums, \
        int64_t high) \
    { \
        ig_tile_##kind##_##width(a, distance, b, depth, sums, high); \
    }
#define IG_WINDOW_AMX(kind, width) \
    void ig_window_amx_##kind##_##width( \
        const ig_factor_##kind **rows, int64_t apart, const ig_window *w, const ig_factor_##kind *image, \
        const ig_factor_##kind *outside, int64_t run, int64_t channels, const ig_weight_##kind *b, \
        ig_sum_##kind *sums, int64_t first, int64_t high) \
    { \
        ig_window_##kind##_##width(rows, apart, w, image, outside, run, channels, b, sums, first, high); \
    }
#endif
