/* Neighbouring elements that one thread loads and stores by 16 bytes at a time. Their first one is aligned to all of
 * them, or to 16 bytes. */
template <class T, int N> struct __align__(sizeof(T) * N < 16 ? sizeof(T) * N : 16) ig_vector {
    T at[N];
};

template <class T, int N> static inline ig_vector<T, N> ig_load_vector(const T *from)
{
#ifdef IG_EMULATED
    if ((uintptr_t)from % alignof(ig_vector<T, N>)) ig_stop("a vector that is loaded is not aligned");
#endif
    return *(const ig_vector<T, N> *)from;
}
template <class T, int N> static inline void ig_store_vector(T *to, const ig_vector<T, N> &value)
{
#ifdef IG_EMULATED
    if ((uintptr_t)to % alignof(ig_vector<T, N>)) ig_stop("a vector that is stored is not aligned");
#endif
    *(ig_vector<T, N> *)to = value;
}
