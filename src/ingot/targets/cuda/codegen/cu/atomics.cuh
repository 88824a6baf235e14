/* Accumulation that several threads do at once, where its result does not depend on their order: of integers. */
#ifndef IG_EMULATED
#define IG_ATOMIC(mode, function, type, wide)                                                                         \
    static inline void ig_atomic_##mode(type *to, type value) { function((wide *)to, (wide)value); }
IG_ATOMIC(add, atomicAdd, int32_t, int)
IG_ATOMIC(max, atomicMax, int32_t, int)
IG_ATOMIC(min, atomicMin, int32_t, int)
IG_ATOMIC(add, atomicAdd, int64_t, unsigned long long)
IG_ATOMIC(max, atomicMax, int64_t, long long)
IG_ATOMIC(min, atomicMin, int64_t, long long)
#else
template <class T> static inline void ig_atomic_add(T *to, T value) { *to += value; }
template <class T> static inline void ig_atomic_max(T *to, T value) { *to = value > *to ? value : *to; }
template <class T> static inline void ig_atomic_min(T *to, T value) { *to = value < *to ? value : *to; }
#endif
