/* What attention multiplies with AMX: numbers of float32 as pairs of bfloat16, in the order in which products read them.

   A block's scores lie as [key][query], 48 queries to a line, whether AMX computes them or not. Depth and the number of
   keys are made multiples of 32 by zeros, so that every register is full. */

#ifdef IG_AMX
/* One word of two terms, the earlier one in its low half. */
__attribute__((unused)) static inline uint32_t ig_amx_pair(float first, float second)
{
    return (uint32_t)ig_f32_to_bf16(first) | (uint32_t)ig_f32_to_bf16(second) << 16;
}

#if defined(__clang__)
#define IG_AMX_MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define IG_AMX_MIX(a, b, ...) __builtin_shuffle(a, b, (ig_vector_u32){__VA_ARGS__})
#endif
#define IG_AMX_SWAP(i, j, low, high) \
    do { \
        const ig_vector_u32 a = line[i], b = line[j]; \
        line[i] = low(a, b); \
        line[j] = high(a, b); \
    } while (0)
#define IG_AMX_LOW_8(a, b) IG_AMX_MIX(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define IG_AMX_HIGH_8(a, b) IG_AMX_MIX(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define IG_AMX_LOW_4(a, b) IG_AMX_MIX(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define IG_AMX_HIGH_4(a, b) IG_AMX_MIX(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define IG_AMX_LOW_2(a, b) IG_AMX_MIX(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define IG_AMX_HIGH_2(a, b) IG_AMX_MIX(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define IG_AMX_LOW_1(a, b) IG_AMX_MIX(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define IG_AMX_HIGH_1(a, b) IG_AMX_MIX(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)

/* Transposes 16 × 16 words; lines lie so many words apart. */
__attribute__((unused)) static void ig_amx_transpose(uint32_t *to, int64_t to_step, const uint32_t *from, int64_t from_step)
{
#if IG_BYTES == 64
    ig_vector_u32 line[16];
    for (int i = 0; i < 16; ++i) memcpy(&line[i], from + i * from_step, 64);
    for (int i = 0; i < 8; ++i) IG_AMX_SWAP(i, i + 8, IG_AMX_LOW_8, IG_AMX_HIGH_8);
    for (int i = 0; i < 16; ++i)
        if (!(i & 4)) IG_AMX_SWAP(i, i + 4, IG_AMX_LOW_4, IG_AMX_HIGH_4);
    for (int i = 0; i < 16; ++i)
        if (!(i & 2)) IG_AMX_SWAP(i, i + 2, IG_AMX_LOW_2, IG_AMX_HIGH_2);
    for (int i = 0; i < 16; i += 2) IG_AMX_SWAP(i, i + 1, IG_AMX_LOW_1, IG_AMX_HIGH_1);
    for (int i = 0; i < 16; ++i) memcpy(to + i * to_step, &line[i], 64);
#else
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[j * to_step + i] = from[i * from_step + j];
#endif
}

/* 48 rows of `words` words, a multiple of 16, as a panel [words][48]. */
__attribute__((unused)) static void ig_amx_pack_queries(uint32_t *packed, const uint32_t *rows, int64_t words)
{
    for (int64_t i = 0; i < 48; i += 16)
        for (int64_t w = 0; w < words; w += 16) ig_amx_transpose(packed + w * 48 + i, 48, rows + i * words + w, words);
}

/* The weights of at most 64 keys, [key][48], as rows of 48 queries, 32 words each. Returns how many terms of a row there
   are, those that are zeros included: 32 or 64. */
__attribute__((unused)) static int64_t ig_amx_weights(uint32_t *rows, const float *weights, int64_t keys)
{
    static const float none[48];
    _Alignas(64) uint32_t pairs[16][48];
    int64_t terms = 0;
    for (; terms < keys; terms += 32) {
        for (int64_t p = 0; p < 16; ++p) {
            const int64_t k = terms + 2 * p;
            const float *const first = k < keys ? weights + k * 48 : none;
            const float *const second = k + 1 < keys ? weights + (k + 1) * 48 : none;
            _Pragma("omp simd") for (int i = 0; i < 48; ++i) pairs[p][i] = ig_amx_pair(first[i], second[i]);
        }
        for (int64_t i = 0; i < 48; i += 16) ig_amx_transpose(rows + i * 32 + terms / 2, 32, &pairs[0][i], 48);
    }
    return terms;
}
#endif
