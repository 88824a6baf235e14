/* Products of rows by a weight that lies in tiles as shared memory has them: columns of a tile in lines of 128 bytes of
 * terms, swizzled, one tile of 64 terms after another. One thread asks for whole tiles, by maps of the rows and by plain
 * bytes of the weight, a few ahead of those that are multiplied; groups of four warps multiply and have the epilogue.
 *
 *   place(tile)           which rows and columns a tile has, of which product, and where its weight begins
 *   finish(tile, visit)   calls visit(rows, columns, fetch, finish) with the epilogue of the tile's product
 *
 * Blocks take units of `together` tiles in turn: the tiles of a unit are of one place, and computed in order by the same
 * threads. Where the PARTS blocks of a cluster share the terms of a tile, each has a part of the columns' sums in the
 * end, which the others send to it. On other GPUs one block of them computes the tile as gemm.cuh does. Where EACH is 2,
 * blocks of 8 columns of two halves lie in turn, and an epilogue has the sums of both: its columns are half as many.
 */
struct ig_bulk_tile {
    int row, column, product; /* the first of each */
    const char *weight;
};

/* GROUPS of four warps with HIGH · 64 rows each, of one tile or, with TURNS, of tiles in turn. COPIERS: warps besides. */
template <int GROUPS_, int HIGH_, int COLUMNS_, int STAGES_, int PARTS_, bool TURNS_, int COPIERS_, int EACH_> struct ig_bulk_form {
    static constexpr int GROUPS = GROUPS_, HIGH = HIGH_, COLUMNS = COLUMNS_, STAGES = STAGES_, PARTS = PARTS_, COPIERS = COPIERS_, EACH = EACH_;
    static constexpr bool TURNS = TURNS_;
    static constexpr int ROWS = 64 * HIGH * (TURNS ? 1 : GROUPS), THREADS = 128 * GROUPS, ALL = THREADS + 32 * COPIERS;
    static constexpr int A_BYTES = ROWS * 128, B_BYTES = COLUMNS * 128, STAGE = A_BYTES + B_BYTES;
    static constexpr int BLOCKS = COLUMNS / 8, OWN = HIGH * BLOCKS / PARTS; /* of 8 columns: of a thread, and in the end */
    static constexpr int RECEIVED = (PARTS - 1) * THREADS * OWN * 16;
    static_assert(HIGH * BLOCKS % PARTS == 0 && (PARTS == 1 || BLOCKS % OWN == 0) && OWN % 2 == 0, "parts are whole pairs of blocks");
};

/* Four pairs of each lane of a quad, pair i of lane j for pair j of lane i. */
static inline void ig_turn_quad(float (&pairs)[4][2])
{
    const int lane = ig_lane() & 3;
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (!(j & step))
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float other = ig_shuffle_xor(lane & step ? pairs[j][e] : pairs[j | step][e], step);
                    if (lane & step) pairs[j][e] = other;
                    else pairs[j | step][e] = other;
                }
}

/* The epilogue of COUNT blocks of 8 columns, of this lane's row and the one 8 below it, as products leave them: lanes of
   a quad have two columns of each. They turn them into runs of 8 columns of a row each, or of two halves with EACH
   blocks in turn; the epilogue's columns begin at `column`. As many runs' reads are under way at a time as ROOM
   registers hold; the sums are there when `await`, which is called behind the first of them, has returned. */
template <int COUNT, int EACH, int ROOM, class Fetch, class Finish, class Await>
static inline void ig_finish_blocks(const float *sums, int row, int column, int rows, int columns, Fetch fetch, Finish finish, Await await)
{
    typedef decltype(fetch(0, 0)) Loaded;
    constexpr int RUNS = COUNT / EACH, WHOLE = RUNS / 4, REST = RUNS % 4, WORDS = (int)(sizeof(Loaded) + 3) / 4, FIT = ROOM / (2 * WORDS), AHEAD = FIT < WHOLE ? FIT : WHOLE;
    /* The last runs: both rows at once where they are few, else one row after the other, with lanes that have none. */
    constexpr int TIMES = REST == 3 ? 2 : REST ? 1 : 0, LANES = TIMES == 1 ? 2 : 4;
    constexpr bool REST_AHEAD = TIMES == 1 && AHEAD == WHOLE && ROOM - 2 * WORDS * WHOLE >= WORDS;
    const int lane = ig_lane() & 3;
    const auto is_there = [&](int line, int place) { return line < rows && place < columns; };
    Loaded given[AHEAD > 0 ? AHEAD : 1][2];
    const auto read = [&](Loaded(&to)[2], int group) {
        const int place = column + 32 * group + 8 * lane;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (is_there(row + 8 * half, place)) to[half] = fetch(row + 8 * half, place);
    };
#pragma unroll
    for (int group = 0; group < AHEAD; ++group) read(given[group], group);
    Loaded rest;
    const int rest_place = column + 32 * WHOLE + 8 * (lane % LANES);
    if (REST_AHEAD && lane % LANES < REST && is_there(row + 8 * (lane / LANES), rest_place)) rest = fetch(row + 8 * (lane / LANES), rest_place);
    await();
#pragma unroll
    for (int group = 0; group < WHOLE; ++group) {
        const int place = column + 32 * group + 8 * lane, slot = AHEAD > 0 ? group % (AHEAD > 0 ? AHEAD : 1) : 0;
        if (AHEAD <= 0) read(given[0], group);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float pairs[EACH][4][2];
#pragma unroll
            for (int of = 0; of < EACH; ++of) {
#pragma unroll
                for (int j = 0; j < 4; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) pairs[of][j][e] = sums[4 * (EACH * (4 * group + j) + of) + 2 * half + e];
                ig_turn_quad(pairs[of]);
            }
            if (is_there(row + 8 * half, place)) finish(row + 8 * half, place, &pairs[0][0][0], given[slot][half]);
        }
        if (AHEAD > 0 && group + AHEAD < WHOLE) read(given[slot], group + AHEAD);
    }
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
        const int lower = LANES == 2 ? lane / LANES : time, line = row + 8 * lower;
        float pairs[EACH][4][2];
#pragma unroll
        for (int of = 0; of < EACH; ++of) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int block = j % LANES < REST ? j % LANES : REST - 1;
                    pairs[of][j][e] = sums[4 * (EACH * (4 * WHOLE + block) + of) + 2 * (LANES == 2 ? j / LANES : time) + e];
                }
            ig_turn_quad(pairs[of]);
        }
        if (lane % LANES < REST && is_there(line, rest_place)) {
            if (!REST_AHEAD) rest = fetch(line, rest_place);
            finish(line, rest_place, &pairs[0][0][0], rest);
        }
    }
}

#ifdef IG_HOPPER
#ifdef IG_EMULATED
template <class Multiply, int SUMS> static inline void ig_set_product(Multiply multiply, float (&d)[SUMS], uint64_t a, uint64_t b, int more)
{
    if (!more)
        for (float &sum : d) sum = 0;
    ig_add_product(multiply, d, a, b);
}
static inline int ig_value_after(int value) { return value; }
#else
/* The value, of which the compiler knows nothing more: what depends on it stays behind a wait that stands before it. */
static inline int ig_value_after(int value)
{
    asm volatile("" : "+r"(value)::"memory");
    return value;
}
#endif

/* Where the rows of tiles come from: a map of a matrix, or what bulk_window.cuh has for one. */
template <class Form> static inline int ig_count_row_bytes(const ig_tensor_map &) { return Form::A_BYTES; }
static inline const ig_tensor_map &ig_map_of(const ig_tensor_map &map) { return map; }
static inline void ig_copy_rows(const ig_tensor_map &map, ig_place to, int step, int row, ig_place barrier) { ig_copy_box(to, map, step * 64, row, barrier); }

/* The threads that copy: one of the first of their warps. */
template <class Form, class Rows, class Place>
static inline void ig_copy_tiles(const Rows &rows, int units, int together, int steps, Place place, ig_place full, ig_place empty, int part)
{
    constexpr int STAGES = Form::STAGES;
    const ig_place base = ig_place_of(ig_shared());
    const int first = (int)blockIdx.x / Form::PARTS, every = (int)gridDim.x / Form::PARTS;
    const int own = steps / Form::PARTS, begin = part * own, ahead = own < STAGES ? own : STAGES;
    const auto ask_weight = [&](const char *weight, int step, int stage) {
        ig_arrive_expecting(full + 8 * stage, (unsigned)(ig_count_row_bytes<Form>(rows) + Form::B_BYTES));
        ig_copy_bytes(base + stage * Form::STAGE + Form::A_BYTES, weight + (int64_t)(begin + step) * Form::B_BYTES, Form::B_BYTES, full + 8 * stage);
    };
    if (ig_warp() != 4 * Form::GROUPS) {
        if (Form::PARTS > 1) ig_wait_for_cluster();
        return;
    }
    /* No kernel writes the weight: its first tiles need not wait for the kernel before. */
    if (ig_lane() == 0 && first < units) {
        ig_prefetch_map(ig_map_of(rows));
        const ig_bulk_tile tile = place(first * together);
        for (int s = 0; s < ahead; ++s) ask_weight(tile.weight, s, s);
    }
    ig_syncwarp();
    if (Form::PARTS > 1) ig_wait_for_cluster();
    ig_wait_for_previous();
    if (ig_lane() == 0) {
        int stage = 0, count = 0;
        unsigned parity = 1;
        for (int unit = first; unit < units; unit += every)
            for (int one = 0; one < together; ++one) {
                const ig_bulk_tile tile = place(unit * together + one);
                for (int step = 0; step < own; ++step, ++count) {
                    if (count >= ahead) {
                        ig_wait_at_barrier(empty + 8 * stage, parity);
                        ask_weight(tile.weight, step, stage);
                    }
                    ig_copy_rows(rows, base + stage * Form::STAGE, begin + step, tile.row, full + 8 * stage);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
    }
    ig_syncwarp();
}

/* Sends each block of the cluster its part of the sums, and adds what the others sent, in order. */
template <class Form> static inline void ig_share_sums(const float (&sums)[Form::HIGH][Form::COLUMNS / 2], float (&own)[4 * Form::OWN], ig_place received, ig_place added, int part)
{
    constexpr int OWN = Form::OWN, BLOCKS = Form::BLOCKS, THREADS = Form::THREADS;
#pragma unroll
    for (int to = 0; to < Form::PARTS; ++to) {
        const float *const of = &sums[to * OWN / BLOCKS][to * OWN % BLOCKS * 4];
        if (to == part) {
#pragma unroll
            for (int i = 0; i < 4 * OWN; ++i) own[i] = of[i];
        } else {
            const int slot = part < to ? part : part - 1;
            const ig_place barrier = ig_place_in(added, to), there = ig_place_in(received + (slot * OWN * THREADS + (int)threadIdx.x) * 16, to);
#pragma unroll
            for (int i = 0; i < OWN; ++i) ig_send_floats(there + i * THREADS * 16, of + 4 * i, barrier);
        }
    }
    ig_wait_for_blocks(added, 0);
    const char *const from = ig_shared() + Form::STAGES * Form::STAGE;
#pragma unroll
    for (int slot = 0; slot < Form::PARTS - 1; ++slot)
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const auto more = ig_load<4>((const float *)(from + ((slot * OWN + i) * THREADS + (int)threadIdx.x) * 16));
#pragma unroll
            for (int e = 0; e < 4; ++e) own[4 * i + e] += more.at[e];
        }
}

template <class Form, class Multiply, class Rows, class T, class Place, class Finish>
static inline void ig_run_bulk(const Rows &source, const T *, int64_t, int, int units, int together, int steps, Place place, Finish finish)
{
    constexpr int STAGES = Form::STAGES, HIGH = Form::HIGH, COLUMNS = Form::COLUMNS, PARTS = Form::PARTS, OWN = Form::OWN;
    constexpr bool TURNS = Form::TURNS;
    /* Registers that an epilogue has for what it reads, beside the sums and what it computes. */
    constexpr int SUMS = HIGH * COLUMNS / 2;
    constexpr int ROOM = (SUMS > 96 ? 160 : Form::COPIERS == 4 ? 184 : 144) - SUMS - (Form::EACH - 1) * 40;
    const ig_place received = ig_place_of(ig_shared()) + STAGES * Form::STAGE, full = received + Form::RECEIVED;
    const ig_place empty = full + 8 * STAGES, added = empty + 8 * STAGES, turn = added + 8;
    const int part = PARTS > 1 ? (int)ig_cluster_rank() : 0;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            ig_set_up_barrier(full + 8 * s, 1);
            ig_set_up_barrier(empty + 8 * s, TURNS ? 4 : 4 * Form::GROUPS);
        }
        if (PARTS > 1) ig_set_up_barrier(added, 1);
        if (TURNS) ig_set_up_barrier(turn, 4), ig_set_up_barrier(turn + 8, 4);
        ig_show_barriers();
        if (PARTS > 1) ig_arrive_expecting(added, Form::RECEIVED);
    }
    __syncthreads();
    if (PARTS > 1) ig_arrive_at_cluster();
    if (ig_warp() >= 4 * Form::GROUPS) {
        if constexpr (Form::COPIERS == 4) ig_leave_registers<24>();
        ig_copy_tiles<Form>(source, units, together, steps, place, full, empty, part);
        return;
    }
    if constexpr (Form::COPIERS == 4) ig_take_registers<240>();
    if (PARTS > 1) ig_wait_for_cluster();
    ig_wait_for_previous();
    const int group = ig_warp() >> 2, lane = ig_lane(), own_steps = steps / PARTS;
    const int first = (int)blockIdx.x / PARTS, every = (int)gridDim.x / PARTS;
    const int inside = TURNS ? 0 : group * HIGH * 64; /* the first of this group's rows */
    const uint64_t lines_a = ig_describe_tile(ig_shared() + inside * 128), lines_b = ig_describe_tile(ig_shared() + Form::A_BYTES);
    float sums[HIGH][COLUMNS / 2];
    int number = 0;
    for (int unit = first; unit < units; unit += every)
        for (int one = 0; one < together; ++one, ++number) {
            if (TURNS && (number & 1) != group) continue;
            const unsigned before = (unsigned)number * (unsigned)own_steps;
            int stage = (int)(before % STAGES), last = 0;
            unsigned parity = before / STAGES & 1;
            /* In turn: a parity says what a stage holds only to those that saw it filled the time before. */
            if (TURNS && number) ig_wait_at_barrier(turn + 8 * group, (unsigned)((number - 2 + group) / 2 & 1));
            const auto multiply = [&](int step) {
                ig_wait_at_barrier(full + 8 * stage, parity);
                const uint64_t left = ig_move_tile(lines_a, stage * Form::STAGE), right = ig_move_tile(lines_b, stage * Form::STAGE);
                ig_begin_products();
#pragma unroll
                for (int depth = 0; depth < 4; ++depth)
#pragma unroll
                    for (int high = 0; high < HIGH; ++high)
                        ig_set_product(Multiply(), sums[high], ig_move_tile(left, high * 64 * 128 + depth * 32), ig_move_tile(right, depth * 32), depth ? 1 : step);
                ig_commit_products();
                ig_wait_for_products<1>();
                if (step && lane == 0) ig_arrive(empty + 8 * last);
                last = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            };
            for (int step = 0; step + 1 < own_steps; ++step) multiply(step);
            /* What the epilogue reads is asked for before the last step. */
            const auto end_products = [&] {
                multiply(own_steps - 1);
                if (TURNS) {
                    ig_syncwarp();
                    if (lane == 0) ig_arrive(turn + 8 * (1 - group));
                }
                ig_wait_for_products<0>();
                if (lane == 0) ig_arrive(empty + 8 * last);
            };
            ig_bulk_tile tile = place(unit * together + one);
            const int top = ig_value_after(tile.row) + inside + (ig_warp() & 3) * 16 + (lane >> 2), left = ig_value_after(tile.column) / Form::EACH;
            if constexpr (PARTS == 1) {
                finish(tile, [&](int rows, int columns, auto fetch, auto finish_run) {
#pragma unroll
                    for (int high = 0; high < HIGH; ++high)
                        ig_finish_blocks<COLUMNS / 8, Form::EACH, ROOM>(sums[high], top + high * 64, left, rows, columns, fetch, finish_run, [&] {
                            if (high == 0) end_products();
                        });
                });
            } else {
                float own[4 * OWN];
                const int at = part * OWN, first_row = top + at / Form::BLOCKS * 64, first_column = left + at % Form::BLOCKS * 8 / Form::EACH;
                const auto share = [&] {
                    end_products();
                    ig_share_sums<Form>(sums, own, received, added, part);
                };
                finish(tile, [&](int rows, int columns, auto fetch, auto finish_run) {
                    ig_finish_blocks<OWN, Form::EACH, ROOM>(own, first_row, first_column, rows, columns, fetch, finish_run, share);
                });
            }
        }
}
#else

/* A tile of the weight, which lies as shared memory has it. */
template <int COLUMNS, int THREADS> struct ig_packed_tile {
    using T = uint16_t;
    static constexpr int ROWS = COLUMNS, TERMS = 64, BYTES = COLUMNS * 128, LINE = 128;
    static constexpr bool ACROSS = false;
    const char *from;

    inline void copy(char *to, int64_t first, int64_t) const
    {
        for (int at = (int)threadIdx.x * 16; at < BYTES; at += THREADS * 16) ig_cp_async16(to + at, from + first / 64 * BYTES + at, true);
    }
};
/* Sums of the block's first WARPS warps: the others only copy. */
template <class Sums, int WARPS> struct ig_sums_of_some {
    static constexpr int LAG = Sums::LAG;
    Sums sums;
    static inline void show_copies() { Sums::show_copies(); }
    inline void begin(const char *, const char *) {}
    inline void end(const char *a, const char *b)
    {
        if (ig_warp() < WARPS) sums.end(a, b);
    }
    inline void finish() {}
};

/* A tile of the rows, as gemm.cuh copies it. */
template <class Form, class T> static inline auto ig_make_tile(const ig_tensor_map &, const T *a, int64_t row_step, int rows, int row)
{
    return ig_matrix_tile<T, Form::ROWS, 64, 8, false, Form::ALL>{a + row * row_step, row_step, 1, rows - row};
}

template <class Form, class Multiply, class Rows, class T, class Place, class Finish>
static inline void ig_run_bulk(const Rows &source, const T *a, int64_t row_step, int rows, int units, int together, int steps, Place place, Finish finish)
{
    constexpr int COLUMNS = Form::COLUMNS, WARPS = 4 * Form::GROUPS, ALONG = COLUMNS % 32 ? 1 : 2, DOWN = WARPS / ALONG;
    typedef decltype(ig_make_tile<Form>(source, a, row_step, rows, 0)) tile_a;
    typedef ig_packed_tile<COLUMNS, Form::ALL> tile_b;
    typedef ig_tensor_sums<Multiply, tile_a, tile_b, DOWN, ALONG> Sums;
    if ((int)blockIdx.x % Form::PARTS) return;
    for (int unit = (int)blockIdx.x / Form::PARTS; unit < units; unit += (int)gridDim.x / Form::PARTS)
        for (int one = 0; one < together; ++one) {
            const ig_bulk_tile tile = place(unit * together + one);
            const tile_a left = ig_make_tile<Form>(source, a, row_step, rows, tile.row);
            const tile_b right = {tile.weight};
            ig_sums_of_some<Sums, WARPS> some;
            ig_run_pipeline<2, 2>(some, left, right, 0, (int64_t)steps * 64);
            if (ig_warp() >= WARPS) continue;
            const int top = tile.row + ig_warp() / ALONG * Sums::HIGH + (ig_lane() >> 2), begin = (tile.column + ig_warp() % ALONG * Sums::WIDE) / Form::EACH;
            finish(tile, [&](int all_rows, int columns, auto fetch, auto finish_run) {
#pragma unroll
                for (int m = 0; m < Sums::M; ++m)
                    ig_finish_blocks<Sums::N, Form::EACH, 0>(&some.sums.sums[m][0][0], top + m * 16, begin, all_rows, columns, fetch, finish_run, [] {});
            });
        }
}
#endif
