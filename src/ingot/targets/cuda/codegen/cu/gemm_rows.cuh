/* Products in which one side, x, has a few rows, and the other, the lines, is read once, as fast as memory gives it.
 *
 * A warp takes LINES neighbouring lines; its lanes take EACH neighbouring terms each. AHEAD reads of each line are under
 * way at any time; the first are so before the kernel before this one has ended, where no kernel writes the lines.
 */

/* Lane's terms of a line, or zeros behind its end. */
template <int EACH, class T> static inline ig_vector<T, EACH> ig_read_terms(const T *from, int64_t term, int64_t terms, bool valid)
{
    ig_vector<T, EACH> found = {};
    if (valid && term < terms) found = ig_load<EACH>(from + term);
    return found;
}

/* sums[row][line] of the lanes' own terms: those that begin at `begin`, then every `step` of them. */
template <int ROWS, int LINES, int AHEAD, int EACH, bool EARLY, class T, class Widen>
static inline void ig_add_lines(float (&sums)[ROWS][LINES], const T *x, int64_t x_step, const T *lines, int64_t line_step, int valid,
    int64_t begin, int64_t step, int64_t terms, Widen widen)
{
    ig_vector<T, EACH> ahead[AHEAD][LINES];
    if (!EARLY) {
        ig_wait_for_previous();
        lines = ig_pointer_after(lines);
    }
#pragma unroll
    for (int u = 0; u < AHEAD; ++u)
#pragma unroll
        for (int l = 0; l < LINES; ++l) ahead[u][l] = ig_read_terms<EACH>(lines + l * line_step, begin + u * step, terms, l < valid);
    if (EARLY) ig_wait_for_previous();
    x = ig_pointer_after(x);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int l = 0; l < LINES; ++l) sums[r][l] = 0;
    for (int64_t first = begin; first < terms; first += AHEAD * step) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int64_t term = first + u * step;
            float factors[LINES][EACH];
#pragma unroll
            for (int l = 0; l < LINES; ++l)
#pragma unroll
                for (int e = 0; e < EACH; ++e) factors[l][e] = widen(ahead[u][l].at[e]);
#pragma unroll
            for (int l = 0; l < LINES; ++l)
                ahead[u][l] = ig_read_terms<EACH>(lines + l * line_step, term + AHEAD * step, terms, l < valid);
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
}

/* The sums of all lanes, of PARTS warps that share lines: warp 0 of them gives each to finish(row, line, sum). `group`
   is the number of the warps' lines in the block. */
template <int ROWS, int LINES, int PARTS, class Fetch, class Finish>
static inline void ig_finish_lines(float (&sums)[ROWS][LINES], int group, int part, int valid, Fetch fetch, Finish finish)
{
    float *const shared = (float *)ig_shared() + group * PARTS * ROWS * LINES;
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
    if (part == 0 && lane < ROWS * LINES && lane % LINES < valid) finish(lane / LINES, lane % LINES, &mine, fetch(lane / LINES, lane % LINES));
}
