/* Sorting rows: digit by digit from the lowest one, and the first few of a row without sorting the rest.

   Order and results are those of sort.h: x before y if x < y, a nan after everything, equals in the order of their
   places. A number becomes a key, an unsigned integer that is ordered as the numbers are: both zeros have the same, and
   so have all nans. */

typedef struct {
    uint64_t key;
    int64_t place;
} ig_sort_entry;

enum { IG_INSERTED = 40 }; /* entries up to which insertion is faster than counting digits */

static inline uint64_t ig_sort_key_float32(float x) {
    uint32_t bits;
    if (x != x) return UINT32_MAX;
    memcpy(&bits, &x, sizeof bits);
    if (bits == 0x80000000u) bits = 0;
    return bits & 0x80000000u ? (uint32_t)~bits : bits | 0x80000000u;
}
static inline uint64_t ig_sort_key_float64(double x) {
    const uint64_t sign = (uint64_t)1 << 63;
    uint64_t bits;
    if (x != x) return UINT64_MAX;
    memcpy(&bits, &x, sizeof bits);
    if (bits == sign) bits = 0;
    return bits & sign ? ~bits : bits | sign;
}
static inline uint64_t ig_sort_key_int64(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }
static inline uint64_t ig_sort_key_int32(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
static inline uint64_t ig_sort_key_int16(int16_t x) { return (uint16_t)(x ^ INT16_MIN); }
static inline uint64_t ig_sort_key_int8(int8_t x) { return (uint8_t)(x ^ INT8_MIN); }
static inline uint64_t ig_sort_key_uint8(uint8_t x) { return x; }
#define ig_sort_key_bool ig_sort_key_uint8

/* The entries in order of their keys of so many bytes: in one of the two arrays, which is returned. */
static inline const ig_sort_entry *ig_sort_entries(ig_sort_entry *from, ig_sort_entry *to, int64_t n, int bytes) {
    if (n <= IG_INSERTED) {
        for (int64_t i = 1; i < n; ++i) {
            const ig_sort_entry entry = from[i];
            int64_t j = i;
            for (; j > 0 && from[j - 1].key > entry.key; --j) from[j] = from[j - 1];
            from[j] = entry;
        }
        return from;
    }
    int64_t counts[8][256] = {{0}};
    for (int64_t i = 0; i < n; ++i)
        for (int byte = 0; byte < bytes; ++byte) ++counts[byte][from[i].key >> 8 * byte & 255];
    for (int byte = 0; byte < bytes; ++byte) {
        int64_t *const next = counts[byte];
        int64_t first = 0;
        if (next[from[0].key >> 8 * byte & 255] == n) continue; /* all have the same digit */
        for (int digit = 0; digit < 256; ++digit) {
            const int64_t count = next[digit];
            next[digit] = first;
            first += count;
        }
        for (int64_t i = 0; i < n; ++i) to[next[from[i].key >> 8 * byte & 255]++] = from[i];
        ig_sort_entry *const swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* Values and places of the first `count` of a row in order; `spare` holds 2·n entries. */
#define IG_RADIX_SORT(name, type)                                                                                     \
    static void ig_radix_sort_##name(                                                                                 \
        const type *row, type *values, int64_t *places, void *spare, int64_t n, int64_t count, int descending)        \
    {                                                                                                                 \
        ig_sort_entry *const entries = spare;                                                                         \
        const uint64_t flip = descending ? UINT64_MAX >> (64 - 8 * (int)sizeof(type)) : 0;                            \
        for (int64_t i = 0; i < n; ++i) entries[i] = (ig_sort_entry){ig_sort_key_##name(row[i]) ^ flip, i};           \
        const ig_sort_entry *const sorted = ig_sort_entries(entries, entries + n, n, (int)sizeof(type));              \
        for (int64_t i = 0; i < count; ++i) values[i] = row[sorted[i].place], places[i] = sorted[i].place;            \
    }

/* The same where `count` is small. The first ones so far stand in order in `best`; another one comes in where its key is
   less than the last one's, after those that are equal. Most do not, which is found for a block at a time. */
#define IG_SORT_FIRST(name, type)                                                                                     \
    static void ig_sort_first_##name(                                                                                 \
        const type *row, type *values, int64_t *places, void *spare, int64_t n, int64_t count, int descending)        \
    {                                                                                                                 \
        enum { BLOCK = 32 };                                                                                          \
        ig_sort_entry *const best = spare;                                                                            \
        const uint64_t flip = descending ? UINT64_MAX >> (64 - 8 * (int)sizeof(type)) : 0;                            \
        int64_t found = 0;                                                                                            \
        for (int64_t i = 0; i < n; i += BLOCK) {                                                                      \
            const int64_t end = ig_min(i + BLOCK, n);                                                                 \
            if (found == count) {                                                                                     \
                const uint64_t last = best[count - 1].key;                                                            \
                int less = 0;                                                                                         \
                for (int64_t j = i; j < end; ++j) less |= (ig_sort_key_##name(row[j]) ^ flip) < last;                 \
                if (!less) continue;                                                                                  \
            }                                                                                                         \
            for (int64_t j = i; j < end; ++j) {                                                                       \
                const ig_sort_entry entry = {ig_sort_key_##name(row[j]) ^ flip, j};                                   \
                if (found == count && entry.key >= best[count - 1].key) continue;                                     \
                int64_t at = found < count ? found++ : count - 1;                                                     \
                for (; at > 0 && best[at - 1].key > entry.key; --at) best[at] = best[at - 1];                         \
                best[at] = entry;                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        for (int64_t i = 0; i < found; ++i) values[i] = row[best[i].place], places[i] = best[i].place;                \
    }
