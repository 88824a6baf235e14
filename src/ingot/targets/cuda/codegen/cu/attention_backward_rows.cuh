/* Attention's gradient in any type and depth: an own row to each warp, a row of the other side to each lane. Elements
 * come by functions of a row and a column; the rest is as in attention_backward.cuh. Sums lie in shared memory. */

template <class T, class I, class X, class U> static inline T ig_multiply_elements(const X &x, const U &u, I own, I other, int wide)
{
    T sum = 0;
    for (int d = 0; d < wide; ++d) sum += x(own, (I)d) * u(other, (I)d);
    return sum;
}

/* `sums` has DEPTH numbers, VALUES more with SECOND, and 64 for the weights of one round. */
template <class T, int FLAGS, bool SECOND, class I, class X, class Y, class U, class W, class Pair, class Masked, class Kind>
static inline void ig_differentiate_rows(
    T *sums, const X &x, const Y &y, const U &u, const W &w, int depth, int values, I own, I others, T scale, const Pair &pair,
    const Masked &masked, const Kind &kind)
{
    const int lane = ig_lane();
    T *const gradients = sums + depth + (SECOND ? values : 0), *const weights = gradients + 32;
    for (I at = 0; at < others; at += 32) {
        int shown = 1;
        if constexpr ((FLAGS & IG_BLOCKS) != 0) shown = kind(own / IG_BLOCK, at / IG_BLOCK);
        if (!shown) continue;
        const I other = at + lane;
        T gradient = 0, weight = 0;
        if (other < others) {
            const T product = ig_multiply_elements<T>(x, u, own, other, depth) * scale;
            const T slope = ig_multiply_elements<T>(y, w, own, other, values);
            bool whole = true;
            if constexpr ((FLAGS & IG_MASK) != 0) {
                if (shown == 1) {
                    masked(own, other, product, slope, gradient, weight);
                    whole = false;
                }
            }
            if (whole) pair(own, other, product, slope, gradient, weight);
        }
        gradients[lane] = gradient;
        weights[lane] = weight;
        ig_syncwarp();
        const int count = others - at < 32 ? (int)(others - at) : 32;
        for (int d = lane; d < depth; d += 32) {
            T sum = sums[d];
            for (int n = 0; n < count; ++n) sum += gradients[n] * u(at + n, (I)d);
            sums[d] = sum;
        }
        if (SECOND) {
            for (int d = lane; d < values; d += 32) {
                T sum = sums[depth + d];
                for (int n = 0; n < count; ++n) sum += weights[n] * w(at + n, (I)d);
                sums[depth + d] = sum;
            }
        }
        ig_syncwarp();
    }
}

/* Adds each lane's value to its place of a table. Lanes that share a place add one after another, lowest first. */
static inline void ig_add_in_order(double *table, int64_t place, double value, bool counts)
{
    int before = 0;
    for (int lane = 0; lane < 32; ++lane) {
        const int64_t other = ig_shuffle(counts ? place : (int64_t)-1, lane);
        before += counts && lane < ig_lane() && other == place;
    }
    int rounds = before;
    for (int by = 1; by < 32; by *= 2) {
        const int more = ig_shuffle_xor(rounds, by);
        rounds = more > rounds ? more : rounds;
    }
    for (int round = 0; round <= rounds; ++round) {
        if (counts && before == round) table[place] += value;
        ig_syncwarp();
    }
}
