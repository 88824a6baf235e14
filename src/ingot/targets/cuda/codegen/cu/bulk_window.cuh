/* Convolutions by tiles of their weights (bulk_gemm.cuh): the rows of a tile are a box of output pixels, neighbours along
 * the columns first, then lines, then images; its terms are 64 channels of one tap. What a tap of the box reads is a box of
 * the image, and zeros where that leaves the image.
 *
 * A row's number is tile · ROWS + its place in the tile. Rows behind the box hold anything: no pixel is theirs.
 */
struct ig_window_rows {
    const ig_tensor_map &map;
    int rows, images, lines, columns; /* of a tile; output pixels */
    int box[3];                       /* images, lines, columns */
    int chunks, taps;                 /* stages of a tap, taps of a line */
    int stride[2], padding[2], dilation[2];
    int size[2];     /* of an image */
    int64_t step[3]; /* from an image, a line, a column to the next */

    /* The first pixel of a tile. */
    inline void begin(int tile, int (&at)[3]) const
    {
        const int across = (columns + box[2] - 1) / box[2], down = (lines + box[1] - 1) / box[1];
        at[2] = tile % across * box[2];
        at[1] = tile / across % down * box[1];
        at[0] = tile / across / down * box[0];
    }
    /* The pixel of a row, or false. */
    inline bool find(int row, int (&at)[3]) const
    {
        const int inside = row % rows, image = inside / (box[1] * box[2]);
        begin(row / rows, at);
        at[2] += inside % box[2];
        at[1] += inside / box[2] % box[1];
        at[0] += image;
        return image < box[0] && at[0] < images && at[1] < lines && at[2] < columns;
    }
    /* The number of a row's pixel, or -1. */
    inline int number(int row) const
    {
        int at[3];
        return find(row, at) ? (at[0] * lines + at[1]) * columns + at[2] : -1;
    }
    /* Where the tap of a stage reads for an output pixel: line and column of the image. */
    inline int line(int step, int at) const { return at * stride[0] + step / chunks / taps * dilation[0] - padding[0]; }
    inline int column(int step, int at) const { return at * stride[1] + step / chunks % taps * dilation[1] - padding[1]; }
};

#ifdef IG_HOPPER
template <class Form> static inline int ig_count_row_bytes(const ig_window_rows &of) { return of.box[0] * of.box[1] * of.box[2] * 128; }
static inline const ig_tensor_map &ig_map_of(const ig_window_rows &of) { return of.map; }
static inline void ig_copy_rows(const ig_window_rows &of, ig_place to, int step, int row, ig_place barrier)
{
    int at[3];
    of.begin(row / of.rows, at);
    ig_copy_box(to, of.map, step % of.chunks * 64, of.column(step, at[2]), of.line(step, at[1]), at[0], barrier);
}
#else
template <class T_, int ROWS_, int THREADS> struct ig_boxed_tile {
    using T = T_;
    static constexpr int ROWS = ROWS_, TERMS = 64, BYTES = ROWS * 128, LINE = 128;
    static constexpr bool ACROSS = false;
    const ig_window_rows &of;
    const T *from;
    int row;

    inline void copy(char *to, int64_t first, int64_t) const
    {
        const int step = (int)(first / 64);
        for (int piece = (int)threadIdx.x; piece < ROWS * 8; piece += THREADS) {
            int at[3];
            const bool found = of.find(row + piece / 8, at);
            const int line = of.line(step, at[1]), column = of.column(step, at[2]);
            const bool valid = found && (unsigned)line < (unsigned)of.size[0] && (unsigned)column < (unsigned)of.size[1];
            const int64_t offset = at[0] * of.step[0] + line * of.step[1] + column * of.step[2] + step % of.chunks * 64 + piece % 8 * 8;
            ig_cp_async16(to + ig_swizzle<LINE>(piece / 8, piece % 8 * 16), from + (valid ? offset : 0), valid);
        }
    }
};
template <class Form, class T> static inline auto ig_make_tile(const ig_window_rows &of, const T *a, int64_t, int, int row)
{
    return ig_boxed_tile<T, Form::ROWS, Form::ALL>{of, a, row};
}
#endif
