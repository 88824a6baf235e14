/* The places of a row in order, by all threads of a block. Runs are merged, twice as long each time: a thread finds where
 * its element goes by a search in the other run. Sorts are stable; a nan comes after everything. */
template <class T> static inline int ig_comes_before(T x, T y, int descending)
{
    const int less = x < y || (y != y && x == x), more = y < x || (x != x && y == y);
    return descending ? more : less;
}

template <class T>
static inline void ig_sort_row(const T *row, T *values, int64_t *places, int *from, int *to, int n, int descending, int threads)
{
    for (int i = (int)threadIdx.x; i < n; i += threads) from[i] = i;
    __syncthreads();
    for (int64_t width = 1; width < n; width *= 2) {
        for (int i = (int)threadIdx.x; i < n; i += threads) {
            const int first = (int)(i / (2 * width) * (2 * width));
            const int middle = (int)ig_min(first + width, n), last = (int)ig_min(first + 2 * width, n);
            const int mine = from[i], is_left = i < middle;
            const T key = row[mine];
            int low = is_left ? middle : first, high = is_left ? last : middle;
            const int begin = low;
            while (low < high) {
                const int half = low + (high - low) / 2;
                const T other = row[from[half]];
                /* Of equal ones the left run's come first. */
                const int before = is_left ? ig_comes_before(other, key, descending) : !ig_comes_before(key, other, descending);
                if (before) low = half + 1;
                else high = half;
            }
            to[first + (i - (is_left ? first : middle)) + (low - begin)] = mine;
        }
        __syncthreads();
        int *const swap = from;
        from = to;
        to = swap;
    }
    for (int i = (int)threadIdx.x; i < n; i += threads) {
        const int place = from[i];
        values[i] = row[place];
        places[i] = place;
    }
}
