/* Products in which one side, x, has a few rows, and the other, the lines, is read once, as fast as memory gives it.
 *
 * A warp takes LINES neighbouring lines, then those a grid further; its lanes take EACH neighbouring terms each. AHEAD
 * reads of each line are under way at any time, those of the next lines while the sums of these are added up; the first
 * are so before the kernel before this one has ended, where no kernel writes the lines.
 */

/* Lane's terms of a line, or zeros behind its end. */
template <int EACH, class T> static inline ig_vector<T, EACH> ig_read_terms(const T *from, int64_t term, int64_t terms, bool valid)
{
    ig_vector<T, EACH> found = {};
    if (valid && term < terms) found = ig_load<EACH>(from + term);
    return found;
}

/* sums of all lanes, and of PARTS warps that share lines: warp 0 of them gives each to finish(row, line, sum). `shared`
   is memory of these warps. */
template <int ROWS, int LINES, int PARTS, class Finish>
static inline void ig_finish_lines(float (&sums)[ROWS][LINES], float *shared, int part, Finish finish)
{
    const int lane = ig_lane();
    float mine = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int l = 0; l < LINES; ++l) {
            float sum = sums[r][l];
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) sum += ig_shuffle_xor(sum, mask);
            if (lane == r * LINES + l) mine = sum;
        }
    if (PARTS > 1) {
        if (lane < ROWS * LINES) shared[part * ROWS * LINES + lane] = mine;
        __syncthreads();
        if (part == 0 && lane < ROWS * LINES)
#pragma unroll
            for (int other = 1; other < PARTS; ++other) mine += shared[other * ROWS * LINES + lane];
    }
    if (part == 0 && lane < ROWS * LINES) finish(lane / LINES, lane % LINES, mine);
}

/* Lines of a block: TOGETHER groups of LINES, of PARTS warps each, from `first` on, then `stride` further, as long as
   there are any: all warps take as many turns. finish(row, line, sum) is called for each that there is. */
template <int ROWS, int LINES, int AHEAD, int EACH, int PARTS, int TOGETHER, bool EARLY, class T, class Widen, class Finish>
static inline void ig_stream_lines(const T *x, int64_t x_step, const T *lines, int64_t line_step, int64_t count, int64_t terms,
    int64_t first, int64_t stride, Widen widen, Finish finish)
{
    constexpr int STEP = PARTS * 32 * EACH;
    const int part = ig_warp() % PARTS, group = ig_warp() / PARTS;
    const int64_t begin = (int64_t)(part * 32 + ig_lane()) * EACH, steps = (terms + STEP - 1) / STEP;
    float *const shared = (float *)ig_shared();
    ig_vector<T, EACH> ahead[AHEAD][LINES];
    if (!EARLY) ig_wait_for_previous();
    int64_t line = first + group * LINES;
#pragma unroll
    for (int u = 0; u < AHEAD; ++u)
#pragma unroll
        for (int l = 0; l < LINES; ++l)
            ahead[u][l] = ig_read_terms<EACH>(lines + (line + l) * line_step, begin + u * STEP, terms, line + l < count);
    if (EARLY) ig_wait_for_previous();
    int turn = 0;
    for (int64_t from = first; from < count; from += stride, line += stride, turn ^= 1) {
        float sums[ROWS][LINES];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int l = 0; l < LINES; ++l) sums[r][l] = 0;
        for (int64_t s = 0; s < steps; s += AHEAD) {
            const bool last = s + AHEAD >= steps; /* then the next reads are those of the next lines */
            const int64_t next = last ? line + stride : line, after = last ? begin : begin + (s + AHEAD) * STEP;
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const int64_t term = begin + (s + u) * STEP;
                float factors[LINES][EACH];
#pragma unroll
                for (int l = 0; l < LINES; ++l)
#pragma unroll
                    for (int e = 0; e < EACH; ++e) factors[l][e] = widen(ahead[u][l].at[e]);
#pragma unroll
                for (int l = 0; l < LINES; ++l)
                    ahead[u][l] = ig_read_terms<EACH>(lines + (next + l) * line_step, after + u * STEP, terms, next + l < count);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const ig_vector<T, EACH> row = ig_read_terms<EACH>(x + r * x_step, term, terms, true);
#pragma unroll
                    for (int e = 0; e < EACH; ++e) {
                        const float value = widen(row.at[e]);
#pragma unroll
                        for (int l = 0; l < LINES; ++l) sums[r][l] = ig_multiply_add(value, factors[l][e], sums[r][l]);
                    }
                }
            }
        }
        /* Two halves of the shared memory in turn: one is read while the other is written. */
        float *const mine = shared + (turn * TOGETHER + group) * PARTS * ROWS * LINES;
        ig_finish_lines<ROWS, LINES, PARTS>(sums, mine, part, [&](int row, int l, float sum) {
            if (line + l < count) finish(row, (int)(line + l - first), sum);
        });
    }
}
