/* Attention without tensor cores, by the same functions of a step as attention.cuh has, but for `cell(i, column, sum)`,
 * which takes one sum. Elements come by functions too: load_q(i, d), load_k(j, d), load_v(j, column). */

struct __align__(16) ig_float4 {
    float x, y, z, w;
};

/* float32 in tiles: 16 by 16 threads, each has ROWS / 16 queries by KEYS / 16 keys of the scores. The scores of a query
 * lie in half a warp, which turns them into weights and mixes the values. */
template <int ROWS, int KEYS, int DEPTH, int VALUES> struct ig_simt_shape {
    static constexpr int rows = ROWS, keys = KEYS, depth = DEPTH, values = VALUES;
    static constexpr int high = ROWS / 16, wide = KEYS / 16, columns = (VALUES + 15) / 16;
    static constexpr int terms = (DEPTH + 3) / 4, pitch = (terms | 1) * 4, weight_pitch = KEYS + 4;
};

template <class S, int FLAGS, class I, class Q, class K, class V, class Exp, class Score, class Mask, class Kind, class Row, class Cell>
static inline void ig_attend_simt(
    const Q &load_q, const K &load_k, const V &load_v, I queries, I first, I begin, I end, float scale, const Exp &exp,
    const Score &score, const Mask &mask, const Kind &kind, const Row &row, const Cell &cell)
{
    const int thread = (int)threadIdx.x, x = thread % 16, y = thread / 16;
    float *const q_tile = (float *)ig_shared(), *const k_tile = q_tile + S::rows * S::pitch;
    float *const v_tile = k_tile + S::keys * S::pitch, *const weights = v_tile + S::keys * S::columns * 16;
    float sums[S::high][S::columns] = {}, top[S::high], total[S::high] = {};
    IG_UNROLL
    for (int m = 0; m < S::high; ++m) top[m] = -INF_F32;
    for (int n = thread; n < S::rows * S::terms * 4; n += 256) {
        const int r = n / (S::terms * 4), d = n % (S::terms * 4);
        q_tile[r * S::pitch + d] = first + r < queries && d < S::depth ? load_q(first + r, d) : 0;
    }
    for (I at = begin; at < end; at += S::keys) {
        int shown = 1;
        if constexpr ((FLAGS & IG_BLOCKS) != 0) shown = kind(first / IG_BLOCK, at / IG_BLOCK);
        if (!shown) continue;
        __syncthreads();
        for (int n = thread; n < S::keys * S::terms * 4; n += 256) {
            const int r = n / (S::terms * 4), d = n % (S::terms * 4);
            k_tile[r * S::pitch + d] = at + r < end && d < S::depth ? load_k(at + r, d) : 0;
        }
        for (int n = thread; n < S::keys * S::columns * 16; n += 256) {
            const int r = n / (S::columns * 16), c = n % (S::columns * 16);
            v_tile[n] = at + r < end && c < S::values ? load_v(at + r, c) : 0;
        }
        __syncthreads();
        float scores[S::high][S::wide] = {};
        for (int d = 0; d < S::terms * 4; d += 4) {
            ig_float4 a[S::high];
            IG_UNROLL
            for (int m = 0; m < S::high; ++m) a[m] = *(const ig_float4 *)(q_tile + (y + m * 16) * S::pitch + d);
            IG_UNROLL
            for (int n = 0; n < S::wide; ++n) {
                const ig_float4 b = *(const ig_float4 *)(k_tile + (x + n * 16) * S::pitch + d);
                IG_UNROLL
                for (int m = 0; m < S::high; ++m) {
                    float sum = __builtin_fmaf(a[m].x, b.x, scores[m][n]);
                    sum = __builtin_fmaf(a[m].y, b.y, sum);
                    sum = __builtin_fmaf(a[m].z, b.z, sum);
                    scores[m][n] = __builtin_fmaf(a[m].w, b.w, sum);
                }
            }
        }
        IG_UNROLL
        for (int m = 0; m < S::high; ++m) {
            const I r = first + y + m * 16, i = r < queries ? r : queries - 1;
            float best = top[m];
            IG_UNROLL
            for (int n = 0; n < S::wide; ++n) {
                const I c = at + x + n * 16, j = c < end ? c : end - 1;
                float value = scores[m][n] * scale;
                if constexpr ((FLAGS & IG_SCORE) != 0) value = score(i, j, value);
                if constexpr ((FLAGS & IG_MASK) != 0)
                    if ((!(FLAGS & IG_BLOCKS) || shown == 1) && !mask(i, j)) value = -INF_F32;
                if (c >= end || ((FLAGS & IG_CAUSAL) && c > i)) value = -INF_F32;
                scores[m][n] = value;
                best = ig_max_nan(best, value);
            }
            IG_UNROLL
            for (int lane = 1; lane < 16; lane *= 2) best = ig_max_nan(best, ig_shuffle_xor(best, lane));
            const float from = best == -INF_F32 ? 0.0f : best, factor = exp(top[m] - from);
            float added = 0;
            IG_UNROLL
            for (int n = 0; n < S::wide; ++n) {
                const float weight = exp(scores[m][n] - from);
                weights[(y + m * 16) * S::weight_pitch + x + n * 16] = weight;
                added += weight;
            }
            top[m] = best;
            total[m] = total[m] * factor + added;
            IG_UNROLL
            for (int c = 0; c < S::columns; ++c) sums[m][c] *= factor;
        }
        ig_syncwarp();
        for (int n = 0; n < S::keys; n += 4) {
            ig_float4 a[S::high];
            IG_UNROLL
            for (int m = 0; m < S::high; ++m) a[m] = *(const ig_float4 *)(weights + (y + m * 16) * S::weight_pitch + n);
            IG_UNROLL
            for (int c = 0; c < S::columns; ++c) {
                const float *const v = v_tile + n * S::columns * 16 + x + c * 16;
                IG_UNROLL
                for (int m = 0; m < S::high; ++m) {
                    float sum = __builtin_fmaf(a[m].x, v[0], sums[m][c]);
                    sum = __builtin_fmaf(a[m].y, v[S::columns * 16], sum);
                    sum = __builtin_fmaf(a[m].z, v[2 * S::columns * 16], sum);
                    sums[m][c] = __builtin_fmaf(a[m].w, v[3 * S::columns * 16], sum);
                }
            }
        }
    }
    ig_start_next();
    IG_UNROLL
    for (int m = 0; m < S::high; ++m) {
        float whole = total[m];
        IG_UNROLL
        for (int lane = 1; lane < 16; lane *= 2) whole += ig_shuffle_xor(whole, lane);
        const I i = first + y + m * 16;
        if (i >= queries) continue;
        const float share = row(i, top[m], whole, x == 0);
        IG_UNROLL
        for (int c = 0; c < S::columns; ++c)
            if (x + c * 16 < S::values) cell(i, (I)(x + c * 16), sums[m][c] * share);
    }
}

/* Any type and depth: a query to each warp, a key to each lane; the sums lie in shared memory. */
template <class T, int FLAGS, class I, class Q, class K, class V, class Exp, class Score, class Mask, class Kind, class Row, class Cell>
static inline void ig_attend_rows(
    const Q &load_q, const K &load_k, const V &load_v, int depth, int values, I i, I begin, I end, T scale, T infinity, const Exp &exp,
    const Score &score, const Mask &mask, const Kind &kind, const Row &row, const Cell &cell)
{
    const int lane = ig_lane();
    T *const sums = (T *)ig_shared() + ig_warp() * (values + 32), *const weights = sums + values;
    T top = -infinity, total = 0;
    for (int c = lane; c < values; c += 32) sums[c] = 0;
    for (I at = begin; at < end; at += 32) {
        int shown = 1;
        if constexpr ((FLAGS & IG_BLOCKS) != 0) shown = kind(i / IG_BLOCK, at / IG_BLOCK);
        if (!shown) continue;
        const I j = at + lane;
        T value = -infinity;
        if (j < end && !((FLAGS & IG_CAUSAL) && j > i)) {
            T sum = 0;
            for (int d = 0; d < depth; ++d) sum += load_q(i, d) * load_k(j, d);
            value = sum * scale;
            if constexpr ((FLAGS & IG_SCORE) != 0) value = score(i, j, value);
            if constexpr ((FLAGS & IG_MASK) != 0)
                if ((!(FLAGS & IG_BLOCKS) || shown == 1) && !mask(i, j)) value = -infinity;
        }
        T best = ig_larger(top, value);
        for (int by = 1; by < 32; by *= 2) best = ig_larger(best, ig_shuffle_xor(best, by));
        const T from = best == -infinity ? 0 : best, factor = exp(top - from), weight = exp(value - from);
        T added = weight;
        for (int by = 1; by < 32; by *= 2) added += ig_shuffle_xor(added, by);
        top = best;
        total = total * factor + added;
        weights[lane] = weight;
        ig_syncwarp();
        const int count = end - at < 32 ? (int)(end - at) : 32;
        for (int c = lane; c < values; c += 32) {
            T sum = sums[c] * factor;
            for (int n = 0; n < count; ++n) sum += weights[n] * load_v(at + n, c);
            sums[c] = sum;
        }
        ig_syncwarp();
    }
    ig_start_next();
    const T share = row(i, top, total, lane == 0);
    for (int c = lane; c < values; c += 32) cell(i, (I)c, sums[c] * share);
}
