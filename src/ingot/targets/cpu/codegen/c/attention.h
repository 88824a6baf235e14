/* Attention, 48 queries at a time: scores lie as [key][query], so that softmax runs along queries, in vectors.

   ig_scores gives the sums of products of `high` rows with the 48 that are packed. ig_mix adds Σ_key weight[key][query] ·
   v[key] to the sums of some queries, `wide` values each, `step` from one key to the next. Both have one shape of tile for
   everything, for each shape takes the C compiler as long as a user's whole function. Rows that fill no tile are
   computed once more together with some before them. Sums of queries come by eight: there are 48 in any case, and what
   those past the last gain from weights, which are numbers, are never read. */

#define IG_MIX_ROWS(kind, real, vector, rows, vectors) \
    static inline __attribute__((always_inline)) void ig_mix_##kind##_##rows##_##vectors( \
        const real *weight, const real *v, int64_t step, int64_t keys, real *sums, int64_t wide) \
    { \
        enum { lanes = IG_LANES(real) }; \
        vector sum[rows][vectors]; \
        for (int i = 0; i < rows; ++i) \
            for (int j = 0; j < vectors; ++j) memcpy(&sum[i][j], sums + i * wide + j * lanes, sizeof(vector)); \
        for (int64_t k = 0; k < keys; ++k) { \
            vector line[vectors]; \
            for (int j = 0; j < vectors; ++j) memcpy(&line[j], v + k * step + j * lanes, sizeof(vector)); \
            for (int i = 0; i < rows; ++i) \
                for (int j = 0; j < vectors; ++j) \
                    sum[i][j] = ig_fma_same_##kind(weight[k * 48 + i], line[j], sum[i][j]); \
        } \
        for (int i = 0; i < rows; ++i) \
            for (int j = 0; j < vectors; ++j) memcpy(sums + i * wide + j * lanes, &sum[i][j], sizeof(vector)); \
    }

#define IG_MIX_WIDE(kind, real, rows) \
    IG_MIX_ROWS(kind, real, ig_vector_##kind, rows, 1) \
    IG_MIX_ROWS(kind, real, ig_vector_##kind, rows, 2) \
    static __attribute__((noinline)) void ig_mix_##kind##_##rows( \
        const real *weight, const real *v, int64_t step, int64_t keys, real *sums, int64_t wide) \
    { \
        enum { lanes = IG_LANES(real) }; \
        int64_t at = 0; \
        for (; at + 2 * lanes <= wide; at += 2 * lanes) \
            ig_mix_##kind##_##rows##_2(weight, v + at, step, keys, sums + at, wide); \
        for (; at + lanes <= wide; at += lanes) \
            ig_mix_##kind##_##rows##_1(weight, v + at, step, keys, sums + at, wide); \
        for (; at < wide; ++at) \
            for (int i = 0; i < rows; ++i) { \
                real sum = 0; \
                for (int64_t k = 0; k < keys; ++k) sum += weight[k * 48 + i] * v[k * step + at]; \
                sums[i * wide + at] += sum; \
            } \
    }

#define IG_SCORES_HEAD(kind, real) \
    IG_SHARED void ig_scores_##kind( \
        const real *rows, int64_t distance, const real *packed, int64_t depth, real *scores, int64_t high);
#define IG_SCORES(kind, real) \
    IG_TILE_ROWS(ig_scores_##kind##_1, kind, 48, 1) \
    IG_TILE_ROWS(ig_scores_##kind##_all, kind, 48, IG_HIGH(real, 48)) \
    void ig_scores_##kind( \
        const real *rows, int64_t distance, const real *packed, int64_t depth, real *scores, int64_t high) \
    { \
        enum { all = IG_HIGH(real, 48) }; \
        for (int64_t next = 0; next < high; next += high < all ? 1 : all) { \
            const int64_t i = high < all ? next : ig_min(next, high - all); \
            int64_t begin = 0, terms; \
            do { \
                const real *const from = rows + i * distance + begin, *const run = packed + begin * 48; \
                terms = ig_min(depth - begin, IG_RUN_##kind); \
                if (high < all) \
                    ig_scores_##kind##_1(from, distance, run, terms, scores + i * 48, begin > 0, (const char *)run, 0); \
                else \
                    ig_scores_##kind##_all(from, distance, run, terms, scores + i * 48, begin > 0, (const char *)run, 0); \
            } while ((begin += terms) < depth); \
        } \
    }

#define IG_ATTENTION_HEAD(kind, real) \
    IG_SHARED void ig_mix_##kind( \
        const real *weight, const real *v, int64_t step, int64_t keys, real *sums, int64_t wide, int64_t queries); \
    IG_SHARED void ig_soften_##kind( \
        real *scores, int64_t keys, real *top, real *total, real *sums, int64_t wide, int64_t queries);
#define IG_ATTENTION(kind, real, INF, EXP) \
    IG_MIX_WIDE(kind, real, 8) \
    void ig_mix_##kind( \
        const real *weight, const real *v, int64_t step, int64_t keys, real *sums, int64_t wide, int64_t queries) \
    { \
        for (int64_t i = 0; i < queries; i += 8) \
            ig_mix_##kind##_8(weight + i, v, step, keys, sums + i * wide, wide); \
    } \
    /* Scores of one block of keys become weights; what was summed before is scaled to the new maximum. */ \
    void ig_soften_##kind( \
        real *scores, int64_t keys, real *top, real *total, real *sums, int64_t wide, int64_t queries) \
    { \
        _Alignas(64) real best[48], scale[48], added[48]; \
        for (int i = 0; i < 48; ++i) best[i] = top[i], added[i] = 0; \
        for (int64_t k = 0; k < keys; ++k) { \
            const real *const line = scores + k * 48; \
            _Pragma("omp simd") for (int i = 0; i < 48; ++i) \
                best[i] = ((line[i] > best[i]) | (line[i] != line[i]))   ? line[i] : best[i]; \
        } \
        _Pragma("omp simd") for (int i = 0; i < 48; ++i) { \
            /* While every score is -inf there is nothing to scale, and exp(-inf - -inf) would be nan. */ \
            const real from = best[i] == -INF ? 0 : best[i]; \
            scale[i] = ig_exp_##kind(top[i] - from); \
            top[i] = best[i]; \
            best[i] = from; \
        } \
        for (int64_t k = 0; k < keys; ++k) { \
            real *const line = scores + k * 48; \
            _Pragma("omp simd") for (int i = 0; i < 48; ++i) { \
                /* Beside the largest weight, which is 1, e^-80 is nothing. */ \
                const real power = line[i] - best[i], weight = EXP(power); \
                line[i] = power < -80 ? 0 : weight; \
                added[i] += line[i]; \
            } \
        } \
        for (int i = 0; i < 48; ++i) total[i] = total[i] * scale[i] + added[i]; \
        for (int64_t i = 0; i < queries; ++i) \
            if (scale[i] != 1) \
                for (int64_t d = 0; d < wide; ++d) sums[i * wide + d] *= scale[i]; \
    }
