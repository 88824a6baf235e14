/* The products of gemm.h on AMX: tile registers of 16 lines by 64 bytes, sums of 16 rows by 16 columns in each.

   ig_tile_amx_bf16_48 and ig_window_amx_bf16_48 compute what ig_tile_bf16_48 and ig_window_bf16_48 do, of the same
   operands, and call those where the library is for a machine without AMX or Linux does not let the process use it.
   A panel's 16 lines by 16 columns are a tile register as they lie. So are 16 rows by 64 bytes of a matrix. What a
   window reads lies anywhere: rows of a tap that lie a distance apart are read there, others are gathered first.

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
/* Bytes of a run, rows of a block, and how far rows that are gathered lie apart: a copy may reach beyond a run. */
enum { IG_AMX_RUN = 1024, IG_AMX_ROWS = 32, IG_AMX_APART = IG_AMX_RUN + 64 };

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
#define IG_AMX_SQUARE(kind, step, b) \
    do { \
        IG_AMX_LOAD(6, b, line); \
        IG_AMX_LOAD(4, (step).top, (step).top_distance); \
        IG_AMX_DOT_##kind(0, 4, 6); \
        IG_AMX_LOAD(5, (step).bottom, (step).bottom_distance); \
        IG_AMX_DOT_##kind(2, 5, 6); \
        if (both) { \
            IG_AMX_LOAD(7, (b) + 64, line); \
            IG_AMX_DOT_##kind(1, 4, 7); \
            IG_AMX_DOT_##kind(3, 5, 7); \
        } \
    } while (0)
#define IG_AMX_STRIP(kind, step, b) \
    do { \
        IG_AMX_LOAD(4, (step).top, (step).top_distance); \
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
        STEP(kind, from[k], b + k * 16 * line); \
    } \
    if (rest) STEP(kind, (*rest), rest_of_panel);

/* Where a step finds the 64 bytes of the rows: those of either tile lie a distance apart. */
typedef struct {
    const char *top, *bottom;
    int64_t top_distance, bottom_distance;
} ig_amx_step;

/* The sums of a run for two tiles of rows by one or two of columns, and for one tile of rows by all columns. `line` is
   both a panel's line and a row of sums, in bytes. */
#define IG_AMX_ARGUMENTS \
    const ig_amx_step *from, const char *b, int64_t steps, const ig_amx_step *rest, const char *rest_of_panel, \
        char *sums, int begun, const char *ahead, int64_t pace
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

/* At most 64 bytes, and zeros up to 64. */
__attribute__((unused)) static inline void ig_amx_copy(char *to, const char *from, int64_t bytes)
{
#if defined(__AVX512BW__) && IG_BYTES == 64
    ig_vector_u32 value;
    if (bytes == 64) {
        memcpy(&value, from, 64);
    } else {
        const uint64_t some = ((uint64_t)1 << bytes) - 1;
        __asm__("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(value) : "m"(*(const char(*)[64])from), "Yk"(some));
    }
    memcpy(to, &value, 64);
#else
    memcpy(to, from, (size_t)bytes);
    memset(to + bytes, 0, (size_t)(64 - bytes));
#endif
}

/* The lines of a panel that fill no register, and zeros behind them. */
__attribute__((unused)) static void ig_amx_end_panel(char *to, const char *b, int64_t bytes, int64_t line)
{
    const int64_t lines = (bytes % 64 + 3) / 4;
    memcpy(to, b + bytes / 64 * 16 * line, (size_t)(lines * line));
    memset(to + lines * line, 0, (size_t)((16 - lines) * line));
}

/* Steps over rows that lie a distance apart; what is left of the rows is copied into `rest`. */
__attribute__((unused)) static void ig_amx_steps(
    ig_amx_step *steps, char *rest, const char *a, int64_t distance, int64_t bytes, int64_t count)
{
    for (int64_t k = 0; k < bytes / 64; ++k)
        steps[k] = (ig_amx_step){a + k * 64, a + 16 * distance + k * 64, distance, distance};
    if (bytes % 64)
        for (int64_t r = 0; r < count; ++r) ig_amx_copy(rest + r * 64, a + r * distance + bytes / 64 * 64, bytes % 64);
}

/* At most 32 rows by a run of `bytes` bytes of each. What is asked for ahead lies behind the run's part of the panel;
   the steps of all `blocks` of rows share it, this is number `block`. */
#define IG_AMX_BLOCK(kind, width) \
    __attribute__((unused)) static void ig_amx_block_##kind##_##width( \
        const ig_amx_step *from, char *rest_of_rows, const char *b, const char *rest_of_panel, int64_t bytes, \
        char *sums, int64_t count, int begun, int64_t block, int64_t blocks, ig_amx_shape *shape) \
    { \
        enum { line = width * 4, wide = width / 16, pairs = (wide + 1) / 2 }; \
        const int64_t steps = bytes / 64, shares = count > 16 ? pairs : 1; \
        const int64_t pace = (width + blocks * shares - 1) / (blocks * shares); \
        const char *ahead = b + (bytes + 3) / 4 * line + block * shares * steps * pace * 64; \
        const ig_amx_step last = {rest_of_rows, rest_of_rows + 16 * 64, 64, 64}; \
        const ig_amx_step *const rest = bytes % 64 ? &last : NULL; \
        ig_amx_configure(shape, ig_min(count, 16), count > 16 ? count - 16 : 0); \
        if (count <= 16) { \
            ig_amx_strip_##kind(from, b, steps, rest, rest_of_panel, sums, begun, ahead, pace, line, wide); \
            return; \
        } \
        int j = 0; \
        for (; j + 2 <= wide; j += 2, ahead += steps * pace * 64) \
            ig_amx_square_##kind( \
                from, b + j * 64, steps, rest, rest_of_panel + j * 64, sums + j * 64, begun, ahead, pace, line, 1); \
        if (j < wide) \
            ig_amx_square_##kind( \
                from, b + j * 64, steps, rest, rest_of_panel + j * 64, sums + j * 64, begun, ahead, pace, line, 0); \
    }

/* Steps over a part of what `count` windows read: bytes [begin, begin + bytes) of `taps` taps. Where rows of a tile lie
   a distance apart and a tap fills whole registers they are read as they lie; others are gathered. */
__attribute__((unused)) static void ig_amx_gather(
    ig_amx_step *steps, char *gathered, char *rest, const char *const *rows, int64_t apart, int64_t taps,
    int64_t begin, int64_t bytes, int64_t count)
{
    const int64_t part = (bytes + 3) / 4 * 4;
    if (bytes % 64) {
        for (int64_t r = 0; r < count; ++r)
            for (int64_t t = 0; t < taps; ++t)
                for (int64_t at = 0; at < bytes; at += 64)
                    ig_amx_copy(
                        gathered + r * IG_AMX_APART + t * part + at, rows[t * apart + r] + begin + at,
                        ig_min(bytes - at, 64));
        ig_amx_steps(steps, rest, gathered, IG_AMX_APART, taps * part, count);
        return;
    }
    for (int64_t t = 0; t < taps; ++t)
        for (int64_t first = 0; first < count; first += 16) {
            const char *const *const from = rows + t * apart + first;
            const int64_t high = ig_min(count - first, 16);
            int64_t distance = high > 1 ? (intptr_t)from[1] - (intptr_t)from[0] : 0, off = 0;
            for (int64_t r = 0; r < high; ++r) off |= (intptr_t)from[r] - (intptr_t)from[0] - r * distance;
            const char *start = from[0] + begin;
            if (off) {
                char *const to = gathered + first * IG_AMX_APART + t * bytes;
                for (int64_t r = 0; r < high; ++r)
                    for (int64_t at = 0; at < bytes; at += 64)
                        ig_amx_copy(to + r * IG_AMX_APART + at, from[r] + begin + at, 64);
                start = to, distance = IG_AMX_APART;
            }
            for (int64_t at = 0; at < bytes; at += 64) {
                ig_amx_step *const step = &steps[(t * bytes + at) / 64];
                if (first == 0) step->top = start + at, step->top_distance = distance;
                else step->bottom = start + at, step->bottom_distance = distance;
            }
        }
}
#else
#define IG_AMX_BLOCKS(kind)
#define IG_AMX_BLOCK(kind, width)
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
        _Alignas(64) char rest[IG_AMX_ROWS * 64], end[16 * width * 4]; \
        ig_amx_step steps[IG_AMX_RUN / 64]; \
        ig_amx_shape shape = {0}; \
        const int64_t blocks = (high + IG_AMX_ROWS - 1) / IG_AMX_ROWS; \
        int64_t begin = 0; \
        do { \
            const int64_t bytes = ig_min(depth - begin, most) * size; \
            const char *const panel = (const char *)(b + begin * width); \
            if (bytes % 64) ig_amx_end_panel(end, panel, bytes, width * 4); \
            for (int64_t block = 0; block < blocks; ++block) { \
                const int64_t i = block * IG_AMX_ROWS, count = ig_min(high - i, IG_AMX_ROWS); \
                ig_amx_steps(steps, rest, (const char *)(a + i * distance + begin), distance * size, bytes, count); \
                ig_amx_block_##kind##_##width( \
                    steps, rest, panel, end, bytes, (char *)(sums + i * width), count, begin > 0, block, blocks, &shape); \
            } \
            begin += most; \
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
        _Alignas(64) char gathered[IG_AMX_ROWS * IG_AMX_APART], rest[IG_AMX_ROWS * 64], end[16 * width * 4]; \
        ig_amx_step steps[IG_AMX_RUN / 64]; \
        ig_amx_shape shape = {0}; \
        const int64_t taps = w->taps_high * w->taps_wide, whole = IG_WHOLE(channels, side); \
        const int64_t together = whole <= most ? most / whole : 1; \
        const int64_t blocks = (high + IG_AMX_ROWS - 1) / IG_AMX_ROWS; \
        for (int64_t begin = 0, count; begin < taps; begin += count) { \
            count = ig_min(taps - begin, run); \
            ig_windows_##kind(rows, apart, w, image, outside, first, high, begin, begin + count); \
            for (int64_t tap = 0; tap < count; tap += together) \
                for (int64_t c = 0; c < channels; c += most) { \
                    const int64_t several = ig_min(count - tap, together), here = ig_min(channels - c, most); \
                    const int64_t bytes = several * IG_WHOLE(here, side) * size; \
                    const char *const panel = (const char *)(b + ((begin + tap) * whole + c) * width); \
                    if (bytes % 64) ig_amx_end_panel(end, panel, bytes, width * 4); \
                    for (int64_t block = 0; block < blocks; ++block) { \
                        const int64_t i = block * IG_AMX_ROWS, lines = ig_min(high - i, IG_AMX_ROWS); \
                        ig_amx_gather( \
                            steps, gathered, rest, (const char *const *)(rows + tap * apart + i), apart, several, \
                            c * size, here * size, lines); \
                        ig_amx_block_##kind##_##width( \
                            steps, rest, panel, end, bytes, (char *)(sums + i * width), lines, begin + tap + c > 0, \
                            block, blocks, &shape); \
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
