/* Sorting, and what is asked of sorted rows.

   Order: x before y if x < y; a nan comes after everything, as torch has it. Sorts are stable, so a result is one and
   the same whatever the row was cut into. */

/* Places of a row in order: runs are merged from `from` into `to`, twice as long each time. Values are moved last. */
#define IG_SORT(name, type)                                                                                           \
    static inline int ig_before_##name(type x, type y, int descending)                                                \
    {                                                                                                                 \
        const int less = x < y || (y != y && x == x), more = y < x || (x != x && y == y);                             \
        return descending ? more : less;                                                                              \
    }                                                                                                                 \
    static void ig_sort_##name(                                                                                       \
        const type *row, type *values, int64_t *places, int64_t *spare, int64_t n, int descending)                    \
    {                                                                                                                 \
        int64_t *from = places, *to = spare;                                                                          \
        for (int64_t i = 0; i < n; ++i) from[i] = i;                                                                  \
        for (int64_t width = 1; width < n; width *= 2) {                                                              \
            for (int64_t first = 0; first < n; first += 2 * width) {                                                  \
                const int64_t middle = ig_min(first + width, n), last = ig_min(first + 2 * width, n);                 \
                int64_t a = first, b = middle;                                                                        \
                for (int64_t i = first; i < last; ++i) {                                                              \
                    const int left = a < middle && (b >= last || !ig_before_##name(row[from[b]], row[from[a]], descending)); \
                    to[i] = left ? from[a++] : from[b++];                                                             \
                }                                                                                                     \
            }                                                                                                         \
            int64_t *const swap = from;                                                                               \
            from = to;                                                                                                \
            to = swap;                                                                                                \
        }                                                                                                             \
        for (int64_t i = 0; i < n; ++i) values[i] = row[from[i]];                                                     \
        if (from != places) memcpy(places, from, (size_t)n * sizeof *places);                                         \
    }

/* The value that a sorted row holds most often (the smallest of such), and the last place it came from. */
#define IG_MODE(name, type)                                                                                           \
    static void ig_mode_##name(const type *sorted, const int64_t *places, type *value, int64_t *place, int64_t n)     \
    {                                                                                                                 \
        int64_t best = 0, length = 0, run = 0;                                                                        \
        for (int64_t i = 0; i < n; ++i) {                                                                             \
            run = i && sorted[i] == sorted[i - 1] ? run + 1 : 1;                                                      \
            if (run > length) length = run, best = i;                                                                 \
        }                                                                                                             \
        if (n) *value = sorted[best], *place = places[best];                                                          \
    }

/* How many of n sorted borders lie before x, those equal to it among them if `right`. */
#define IG_SEARCH(name, type)                                                                                         \
    static int64_t ig_search_##name(const type *borders, const int64_t *sorter, int64_t n, type x, int right)         \
    {                                                                                                                 \
        int64_t first = 0, last = n;                                                                                  \
        while (first < last) {                                                                                        \
            const int64_t middle = first + (last - first) / 2;                                                        \
            const type border = borders[sorter ? sorter[middle] : middle];                                            \
            const int before = right ? !(border > x) : !(border >= x);                                                \
            if (before) first = middle + 1;                                                                           \
            else last = middle;                                                                                       \
        }                                                                                                             \
        return first;                                                                                                 \
    }
