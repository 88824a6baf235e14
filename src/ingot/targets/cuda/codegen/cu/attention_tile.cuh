/* What attention and its gradient share: tiles of rows in shared memory, their fragments, products of 16-bit elements.
 *
 * A tile has rows of WIDE elements, padded with zeros to a multiple of 16, then by 8 more: a row then begins an odd
 * number of 16-byte pieces behind the one before it, so eight rows of ldmatrix, and the pieces of one row, lie in
 * different banks, and every address is a lane's own plus a constant. */
#define IG_UNROLL _Pragma("unroll")

enum { IG_PIECES, IG_ALONG_ROW, IG_ACROSS_ROWS }; /* how a tile is loaded */
/* What a step has besides its products: bodies, a table of blocks, keys hidden behind the query. */
enum { IG_SCORE = 1, IG_MASK = 2, IG_BLOCKS = 4, IG_CAUSAL = 8 };
/* Bodies that may be computed for places past the last query or key. */
enum { IG_FREE_SCORE = 16, IG_FREE_MASK = 32 };
enum { IG_BLOCK = 64 }; /* queries, and keys, of a block of the table */

template <class I> struct ig_matrix16 {
    const uint16_t *at;
    I rows, columns; /* from one to the next */
};
struct ig_unused {};

constexpr int ig_padded(int wide) { return (wide + 15) / 16 * 16; }
constexpr int ig_pitch(int wide) { return ig_padded(wide) + 8; }

/* Rows first … of a matrix to a tile of ROWS: zeros from the row `last` on. */
template <int THREADS, int ROWS, int WIDE, int MODE, class I>
static inline void ig_load_tile(uint16_t *to, const ig_matrix16<I> &from, I first, I last)
{
    constexpr int padded = ig_padded(WIDE), pitch = ig_pitch(WIDE);
    const int thread = (int)threadIdx.x;
    if constexpr (MODE == IG_PIECES) {
        constexpr int pieces = padded / 8, total = ROWS * pieces;
        IG_UNROLL
        for (int n = 0; n < (total + THREADS - 1) / THREADS; ++n) {
            /* Where a row's pieces divide the threads, each thread keeps its column. */
            const int row = THREADS % pieces == 0 ? thread / pieces + n * (THREADS / pieces) : (n * THREADS + thread) / pieces;
            const int column = (THREADS % pieces == 0 ? thread % pieces : (n * THREADS + thread) % pieces) * 8;
            if (total % THREADS != 0 && row >= ROWS) break;
            const bool valid = first + row < last && column < WIDE;
            ig_cp_async16(to + row * pitch + column, from.at + (valid ? (first + row) * from.rows + column : 0), valid);
        }
    } else {
        for (int n = thread; n < ROWS * padded; n += THREADS) {
            const int row = MODE == IG_ACROSS_ROWS ? n % ROWS : n / padded;
            const int column = MODE == IG_ACROSS_ROWS ? n / ROWS : n % padded;
            const bool valid = first + row < last && column < WIDE;
            to[row * pitch + column] = valid ? from.at[(first + row) * from.rows + column * from.columns] : (uint16_t)0;
        }
    }
}

/* A lane's part of the addresses that ldmatrix takes, as an offset in a tile of this pitch.
 *   own: 16 rows by 16 columns as fragment `a`; other: 16 rows as two fragments `b` of 8 columns of the product;
 *   mixed: 16 rows as terms of the product, 16 columns as two fragments `b` (transposed). */
static inline int ig_own_offset(int pitch) { return (ig_lane() & 15) * pitch + (ig_lane() >> 4) * 8; }
static inline int ig_other_offset(int pitch) { return ((ig_lane() >> 4) * 8 + (ig_lane() & 7)) * pitch + (ig_lane() >> 3 & 1) * 8; }
static inline int ig_mixed_offset(int pitch) { return ig_own_offset(pitch); }

template <bool BRAIN> static inline void ig_mma16(float *d, const uint32_t *a, const uint32_t *b)
{
    if (BRAIN) ig_mma_bf16(d, a, b);
    else ig_mma_f16(d, a, b);
}
template <bool BRAIN> static inline uint32_t ig_pack16(float low, float high)
{
    return BRAIN ? ig_pack_bf16(low, high) : ig_pack_f16(low, high);
}
/* Sums of 16 rows by 16 columns, two accumulators, as a fragment `a`. */
template <bool BRAIN> static inline void ig_pack_fragment(uint32_t *to, const float (*sums)[4])
{
    IG_UNROLL
    for (int half = 0; half < 2; ++half) {
        to[2 * half] = ig_pack16<BRAIN>(sums[half][0], sums[half][1]);
        to[2 * half + 1] = ig_pack16<BRAIN>(sums[half][2], sums[half][3]);
    }
}

/* sums[m][n] += own rows · other rows, along WIDE. Fragments of the own rows lie in registers, or in the tile `own`. */
template <bool BRAIN, int TILES, int COLUMNS, int WIDE, bool KEPT>
static inline void ig_multiply_rows(
    float (*sums)[COLUMNS / 8][4], const uint32_t (*kept)[KEPT ? ig_padded(WIDE) / 16 : 1][4], const uint16_t *own, const uint16_t *other)
{
    constexpr int pitch = ig_pitch(WIDE);
    IG_UNROLL
    for (int d = 0; d < ig_padded(WIDE) / 16; ++d) {
        uint32_t a[TILES][4];
        IG_UNROLL
        for (int m = 0; m < TILES; ++m) {
            if (KEPT) {
                IG_UNROLL
                for (int e = 0; e < 4; ++e) a[m][e] = kept[m][KEPT ? d : 0][e];
            } else {
                ig_ldmatrix4(a[m], own + m * 16 * pitch + d * 16);
            }
        }
        IG_UNROLL
        for (int n = 0; n < COLUMNS / 16; ++n) {
            uint32_t b[4];
            ig_ldmatrix4(b, other + n * 16 * pitch + d * 16);
            IG_UNROLL
            for (int m = 0; m < TILES; ++m) {
                ig_mma16<BRAIN>(sums[m][2 * n], a[m], b);
                ig_mma16<BRAIN>(sums[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* sums[m][n] += weights[m] · rows: a weight for each of ROWS rows of the tile, WIDE columns. */
template <bool BRAIN, int TILES, int ROWS, int WIDE>
static inline void ig_mix_rows(float (*sums)[ig_padded(WIDE) / 8][4], const float (*weights)[ROWS / 8][4], const uint16_t *rows)
{
    constexpr int pitch = ig_pitch(WIDE);
    IG_UNROLL
    for (int k = 0; k < ROWS / 16; ++k) {
        uint32_t a[TILES][4];
        IG_UNROLL
        for (int m = 0; m < TILES; ++m) ig_pack_fragment<BRAIN>(a[m], weights[m] + 2 * k);
        IG_UNROLL
        for (int n = 0; n < ig_padded(WIDE) / 16; ++n) {
            uint32_t b[4];
            ig_ldmatrix4_transposed(b, rows + k * 16 * pitch + n * 16);
            IG_UNROLL
            for (int m = 0; m < TILES; ++m) {
                ig_mma16<BRAIN>(sums[m][2 * n], a[m], b);
                ig_mma16<BRAIN>(sums[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* The fragments of a warp's own rows, to keep. */
template <int TILES, int WIDE, bool KEPT>
static inline void ig_keep_fragments(uint32_t (*to)[KEPT ? ig_padded(WIDE) / 16 : 1][4], const uint16_t *own)
{
    if (!KEPT) return;
    IG_UNROLL
    for (int m = 0; m < TILES; ++m)
        IG_UNROLL
        for (int d = 0; d < ig_padded(WIDE) / 16; ++d)
            ig_ldmatrix4(to[m][KEPT ? d : 0], own + m * 16 * ig_pitch(WIDE) + d * 16);
}

/* The larger of two numbers, or nan where one is. */
template <class T> static inline T ig_larger(T a, T b) { return (a > b) | (a != a) ? a : b; }
