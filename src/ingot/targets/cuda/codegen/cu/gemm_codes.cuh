/* Products of few rows with a weight of integers of 4 or 8 bits, which is read once: quantized/layouts.py says how it lies.
 *
 * A block has a tile of 16 lines, and its warps the chunks of their terms in turn. Lanes widen the integers, less their
 * zeros, to bfloat16, in which they are exact, and multiply them on tensor cores: the lines are the rows of the left
 * operand, and what is multiplied with them the columns of the right one. A number of more bits than bfloat16 has is
 * several columns, whose parts add up to it: nothing is rounded but sums. Sums of a group are multiplied with its scales
 * in float32.
 */

#ifndef IG_EMULATED
static inline uint32_t ig_pick_bytes(uint32_t a, uint32_t b, uint32_t places) { return __byte_perm(a, b, places); }
/* (a & mask) | more, in one instruction. */
static inline uint32_t ig_mask_and_add(uint32_t a, uint32_t mask, uint32_t more)
{
    uint32_t made;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(made) : "r"(a), "r"(mask), "r"(more));
    return made;
}
/* a - b of two halves each. */
static inline uint32_t ig_subtract_bf16(uint32_t a, uint32_t b)
{
    uint32_t made;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(0x3f803f80u), "r"(b ^ 0x80008000u));
    return made;
}
#else
static inline uint32_t ig_mask_and_add(uint32_t a, uint32_t mask, uint32_t more) { return (a & mask) | more; }
static inline uint32_t ig_pick_bytes(uint32_t a, uint32_t b, uint32_t places)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t made = 0;
    for (int i = 0; i < 4; ++i) made |= (uint32_t)(bytes >> 8 * (places >> 4 * i & 7) & 255) << 8 * i;
    return made;
}
static inline uint32_t ig_subtract_bf16(uint32_t a, uint32_t b)
{
    const auto value = [](uint32_t bits) { return ig_brain_value((uint16_t)bits); };
    return ig_pack_bf16(value(a) - value(b), value(a >> 16) - value(b >> 16));
}
#endif
static inline uint32_t ig_bits_of(float value)
{
    union { float value; uint32_t bits; } made = {value};
    return made.bits;
}
static inline float ig_float_of(uint32_t bits)
{
    union { uint32_t bits; float value; } made = {bits};
    return made.value;
}

/* Rows that are multiplied, in the order in which codes lie: GROUP terms, then zeros up to PADDED. VECTORS: they are
   neighbours, aligned, and no group is padded before the last one. `widen` makes a float of an element. */
template <class T, int GROUP, int PADDED, int PIECES, bool VECTORS, class Widen> struct ig_code_rows {
    const T *from;
    int64_t row_step, term_step;
    int rows, terms;
    Widen widen;

    /* Part `piece` of a number, of those that add up to it: 8 bits of its fraction each. Infinity is its first part. */
    static inline uint32_t take_piece(float value, int piece)
    {
        const uint32_t first = ig_bits_of(value) & 0xffff0000u;
        const float rest = __builtin_fabsf(value) == INF_F32 ? 0 : value - ig_float_of(first);
        const uint32_t second = ig_bits_of(rest) & 0xffff0000u;
        const uint32_t third = ig_bits_of(rest - ig_float_of(second));
        return piece == 0 ? first : piece == 1 ? second : third;
    }
    /* N neighbours from `place` on, as halves, of column row · PIECES + piece. */
    template <int N> inline void read(uint32_t (&to)[N / 2], int column, int place) const
    {
        const int row = column / PIECES, piece = column % PIECES;
        if constexpr (VECTORS && PIECES == 1) {
            ig_vector<uint32_t, N / 2> pairs = {};
            if (row < rows && place < terms) pairs = ig_load<N / 2>((const uint32_t *)(from + (row * row_step + place)));
#pragma unroll
            for (int i = 0; i < N / 2; ++i) to[i] = pairs.at[i];
            return;
        }
        ig_vector<T, N> found = {};
        if (VECTORS) {
            if (row < rows && place < terms) found = ig_load<N>(from + (row * row_step + place));
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const int group = (place + i) / PADDED, within = (place + i) % PADDED, term = group * GROUP + within;
                if (row < rows && within < GROUP && term < terms) found.at[i] = from[row * row_step + term * term_step];
            }
        }
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            if constexpr (PIECES == 1) {
                to[i] = (uint32_t)found.at[2 * i] | (uint32_t)found.at[2 * i + 1] << 16;
            } else {
                const uint32_t low = take_piece(widen(found.at[2 * i]), piece), high = take_piece(widen(found.at[2 * i + 1]), piece);
                to[i] = ig_pick_bytes(low, high, 0x7632);
            }
        }
    }
};

/* Fragment number `fragment` of a lane's words, less what is taken off lines g and g + 8. What `offset` makes of a zero
   point is subtracted from floats that have the codes as their lowest bits. */
template <int BITS> struct ig_code_words;
template <> struct ig_code_words<4> {
    static inline uint32_t offset(float zero)
    {
        const uint32_t bits = ig_bits_of(128.0f + zero);
        return ig_pick_bytes(bits, bits, 0x3232);
    }
    static inline void widen(uint32_t (&to)[4], const uint32_t (&words)[4], int fragment, const uint32_t (&less)[2])
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = ig_subtract_bf16(ig_mask_and_add(words[fragment] >> 4 * i, 0x000f000fu, 0x43004300u), less[i & 1]);
    }
};
template <> struct ig_code_words<8> {
    static inline uint32_t offset(float zero) { return ig_bits_of(8388608.0f + zero); }
    static inline void widen(uint32_t (&to)[4], const uint32_t (&words)[4], int fragment, const uint32_t (&less)[2])
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t word = words[2 * fragment + i / 2], place = 0x7440u + 2 * (i & 1);
            const float low = ig_float_of(ig_pick_bytes(word, 0x4b000000u, place)) - ig_float_of(less[i & 1]);
            const float high = ig_float_of(ig_pick_bytes(word, 0x4b000000u, place + 1)) - ig_float_of(less[i & 1]);
            to[i] = ig_pick_bytes(ig_bits_of(low), ig_bits_of(high), 0x7632);
        }
    }
};

static constexpr int ig_common_divisor(int a, int b) { return b ? ig_common_divisor(b, a % b) : a; }

/* UNIT: terms of which a lane has neighbours. GROUP: fragments of a group; 0: all terms are one. */
template <int BITS_, int UNIT_, int GROUP_, int ROWS_, int PIECES_, int WARPS_, int AHEAD_> struct ig_code_form {
    static constexpr int BITS = BITS_, UNIT = UNIT_, GROUP = GROUP_, ROWS = ROWS_, PIECES = PIECES_, WARPS = WARPS_, AHEAD = AHEAD_;
    static constexpr int FRAGMENTS = 16 / BITS, TERMS = 16 * FRAGMENTS, PASSES = (ROWS * PIECES + 7) / 8, COLUMNS = 8 * PASSES;
    /* Fragments of a chunk that are of one group, and how many such runs it has. */
    static constexpr int RUN = ig_common_divisor(FRAGMENTS, GROUP), RUNS = GROUP ? FRAGMENTS / RUN : 1;
    static constexpr int EACH = UNIT / 4;
};

/* One tile. `scales` and `zeros` are its own, or null, where all groups have `scale` and `zero`. finish(row, line, sums) is
   called for every row and line of the tile or, with PAIRS, for lines 0 to 7, with the sums of lines `line` and line + 8.
   Weights are read before the kernel before this one has ended. */
template <class Form, bool SCALES, bool ZEROS, bool PAIRS, class Rows, class Finish>
static inline void ig_multiply_codes(const uint32_t *codes, const float *scales, const float *zeros, float scale, float zero,
    int chunks, int groups, const Rows &x, Finish finish)
{
    typedef ig_code_words<Form::BITS> Words;
    constexpr int AHEAD = Form::AHEAD, WARPS = Form::WARPS, RUNS = Form::RUNS, PASSES = Form::PASSES;
    constexpr bool GROUPED = Form::GROUP > 0 && SCALES, ZEROED = Form::GROUP > 0 && ZEROS;
    const int lane = ig_lane(), warp = ig_warp(), g = lane / 4, t = lane % 4;
    ig_vector<uint32_t, 4> ahead[AHEAD] = {};
    ig_vector<float, 2> scales_ahead[AHEAD][RUNS] = {}, zeros_ahead[AHEAD][RUNS] = {};
    const auto ask = [&](int slot, int chunk) {
        if (chunk < chunks) ahead[slot] = ig_load<4>(codes + ((int64_t)chunk * 32 + lane) * 4);
        if constexpr (GROUPED || ZEROED) {
#pragma unroll
            for (int r = 0; r < RUNS; ++r) {
                const int group = (chunk * Form::FRAGMENTS + r * Form::RUN) / Form::GROUP;
                if (group < groups) {
                    if (GROUPED) scales_ahead[slot][r] = ig_load<2>(scales + (group * 8 + g) * 2);
                    if (ZEROED) zeros_ahead[slot][r] = ig_load<2>(zeros + (group * 8 + g) * 2);
                }
            }
        }
    };
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) ask(u, warp + u * WARPS);
    uint32_t less[2] = {Words::offset(zero), Words::offset(zero)};
    if (ZEROS && !ZEROED) {
        const ig_vector<float, 2> own = ig_load<2>(zeros + g * 2);
        less[0] = Words::offset(own.at[0]), less[1] = Words::offset(own.at[1]);
    }
    ig_wait_for_previous();
    float total[PASSES][4] = {}, sums[PASSES][4] = {};
    for (int first = warp; first < chunks; first += AHEAD * WARPS) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int chunk = first + u * WARPS;
            if (chunk >= chunks) break;
            const ig_vector<uint32_t, 4> words = ahead[u];
            ig_vector<float, 2> scales_now[RUNS], zeros_now[RUNS];
            if constexpr (GROUPED || ZEROED) {
#pragma unroll
                for (int r = 0; r < RUNS; ++r) scales_now[r] = scales_ahead[u][r], zeros_now[r] = zeros_ahead[u][r];
            }
            ask(u, chunk + AHEAD * WARPS);
#pragma unroll
            for (int unit = 0; unit < Form::TERMS / Form::UNIT; ++unit) {
                uint32_t right[PASSES][Form::EACH / 2];
#pragma unroll
                for (int p = 0; p < PASSES; ++p)
                    x.template read<Form::EACH>(right[p], p * 8 + g, chunk * Form::TERMS + unit * Form::UNIT + t * Form::EACH);
#pragma unroll
                for (int j = 0; j < Form::UNIT / 16; ++j) {
                    const int fragment = unit * (Form::UNIT / 16) + j, run = GROUPED || ZEROED ? fragment / Form::RUN : 0;
                    uint32_t left[4];
                    if (ZEROED) less[0] = Words::offset(zeros_now[run].at[0]), less[1] = Words::offset(zeros_now[run].at[1]);
                    Words::widen(left, words.at, fragment, less);
#pragma unroll
                    for (int p = 0; p < PASSES; ++p) {
                        ig_mma_bf16(sums[p], left, right[p] + 2 * j);
                        if (GROUPED && (fragment + 1) % Form::RUN == 0) {
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                total[p][i] = ig_multiply_add(scales_now[run].at[i / 2], sums[p][i], total[p][i]);
                                sums[p][i] = 0;
                            }
                        }
                    }
                }
            }
        }
    }
    /* Sums of all warps, and of the parts of a number: [warp][line][column]. */
    float *const shared = (float *)ig_shared();
#pragma unroll
    for (int p = 0; p < PASSES; ++p)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            ig_vector<float, 2> pair;
#pragma unroll
            for (int i = 0; i < 2; ++i) pair.at[i] = GROUPED ? total[p][2 * half + i] : sums[p][2 * half + i];
            ig_store<2>(shared + (warp * 16 + half * 8 + g) * Form::COLUMNS + p * 8 + t * 2, pair);
        }
    __syncthreads();
    constexpr int EACH = PAIRS ? 2 : 1, LINES = 16 / EACH;
    for (int at = (int)threadIdx.x; at < LINES * Form::ROWS; at += 32 * WARPS) {
        const int first = at % LINES, row = at / LINES;
        float found[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int line = first + 8 * i;
            float sum = 0;
#pragma unroll
            for (int piece = Form::PIECES - 1; piece >= 0; --piece)
#pragma unroll
                for (int w = 0; w < WARPS; ++w) sum += shared[(w * 16 + line) * Form::COLUMNS + row * Form::PIECES + piece];
            found[i] = GROUPED ? sum : sum * (SCALES ? scales[line % 8 * 2 + line / 8] : scale);
        }
        finish(row, first, found);
    }
}
