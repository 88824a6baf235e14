/* Random draws of generated code: each a pure function of a seed, the number of the draw and the element's index, so
 * that a result depends neither on threads nor on the order in which elements are computed. They are branch-free and
 * vectorize in a loop under `#pragma omp simd`.
 *
 * The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
 * ten rounds of multiplication turn a counter of 128 bits and a key of 64 into 128 random bits. One element takes one
 * counter, whatever its dtype.
 *
 * Same form as the math headers, whose functions it names: a comment says what the function after it needs.
 */

/* ig_philox_round: needs nothing */
typedef struct { uint32_t a, b, c, d; } ig_u32x4;

IG_FN ig_u32x4 ig_philox_round(ig_u32x4 x, uint64_t key)
{
    uint64_t first = (uint64_t)0xd2511f53u * x.a, second = (uint64_t)0xcd9e8d57u * x.c;
    ig_u32x4 y = {
        (uint32_t)(second >> 32) ^ x.b ^ (uint32_t)key,
        (uint32_t)second,
        (uint32_t)(first >> 32) ^ x.d ^ (uint32_t)(key >> 32),
        (uint32_t)first,
    };
    return y;
}

/* ig_philox_key: needs nothing
   The key of a round: both halves step by the paper's constants, each on its own. */
IG_FN uint64_t ig_philox_key(uint64_t key, uint32_t round)
{
    uint32_t low = (uint32_t)key + round * 0x9e3779b9u, high = (uint32_t)(key >> 32) + round * 0xbb67ae85u;
    return (uint64_t)high << 32 | low;
}

/* ig_philox: needs ig_philox_round, ig_philox_key
   128 random bits for element `i` of draw `draw`. Written out: a loop in here would keep the one around it from being
   vectorized. */
IG_FN ig_u32x4 ig_philox(uint64_t key, uint64_t draw, uint64_t i)
{
    ig_u32x4 x = {(uint32_t)i, (uint32_t)(i >> 32), (uint32_t)draw, (uint32_t)(draw >> 32)};
    x = ig_philox_round(x, key);
    x = ig_philox_round(x, ig_philox_key(key, 1));
    x = ig_philox_round(x, ig_philox_key(key, 2));
    x = ig_philox_round(x, ig_philox_key(key, 3));
    x = ig_philox_round(x, ig_philox_key(key, 4));
    x = ig_philox_round(x, ig_philox_key(key, 5));
    x = ig_philox_round(x, ig_philox_key(key, 6));
    x = ig_philox_round(x, ig_philox_key(key, 7));
    x = ig_philox_round(x, ig_philox_key(key, 8));
    return ig_philox_round(x, ig_philox_key(key, 9));
}

/* ig_uniform_f32: needs ig_philox
   A multiple of 2^-24 in [0, 1). Through int32: unsigned conversions are not instructions before AVX-512. */
IG_FN float ig_uniform_f32(uint64_t key, uint64_t draw, uint64_t i)
{
    return (float)(int32_t)(ig_philox(key, draw, i).a >> 8) * 0x1p-24f;
}

/* ig_unit_f64: needs nothing
   53 bits as an integer below 2^53, of two words. */
IG_FN double ig_unit_f64(uint32_t high, uint32_t low)
{
    return (double)(int32_t)(high >> 5) * 0x1p26 + (double)(int32_t)(low >> 6);
}

/* ig_uniform_f64: needs ig_philox, ig_unit_f64
   A multiple of 2^-53 in [0, 1). */
IG_FN double ig_uniform_f64(uint64_t key, uint64_t draw, uint64_t i)
{
    ig_u32x4 x = ig_philox(key, draw, i);
    return ig_unit_f64(x.a, x.b) * 0x1p-53;
}

/* ig_normal_f32: needs ig_philox, ig_log_f32, ig_sqrt_f32, ig_cos_f32
   Mean 0, variance 1, by Box and Muller. The radius is drawn from (0, 1] in steps of 2^-31, for tails up to 6.6; the
   angle from [-π, π), where the cosine is at its best. */
IG_FN float ig_normal_f32(uint64_t key, uint64_t draw, uint64_t i)
{
    ig_u32x4 x = ig_philox(key, draw, i);
    float radius = ((float)(int32_t)(x.a >> 1) + 0.5f) * 0x1p-31f;
    float angle = (float)((int32_t)x.b >> 8) * (6.2831853f * 0x1p-24f);
    return ig_sqrt_f32(-2.0f * ig_log_f32(radius)) * ig_cos_f32(angle);
}

/* ig_normal_f64: needs ig_philox, ig_unit_f64, ig_log_f64, ig_sqrt_f64, ig_cos_f64
   The same with a radius in steps of 2^-53, for tails up to 8.6. */
IG_FN double ig_normal_f64(uint64_t key, uint64_t draw, uint64_t i)
{
    ig_u32x4 x = ig_philox(key, draw, i);
    double radius = (ig_unit_f64(x.a, x.b) + 0.5) * 0x1p-53;
    double angle = (ig_unit_f64(x.c, x.d) - 0x1p52) * (6.283185307179586 * 0x1p-53);
    return ig_sqrt_f64(-2.0 * ig_log_f64(radius)) * ig_cos_f64(angle);
}

/* ig_high_u64: needs nothing
   The upper half of a product of 128 bits; of 32-bit factors, which vectors can multiply. */
IG_FN uint64_t ig_high_u64(uint64_t x, uint64_t y)
{
    uint64_t x0 = x & 0xffffffffu, x1 = x >> 32, y0 = y & 0xffffffffu, y1 = y >> 32;
    uint64_t low = x1 * y0 + (x0 * y0 >> 32), middle = x0 * y1 + (low & 0xffffffffu);
    return x1 * y1 + (low >> 32) + (middle >> 32);
}

/* ig_randint_i64: needs ig_philox, ig_high_u64
   An integer in [low, high), for low < high. All 128 bits are scaled to the range, so that no value is likelier
   than another by more than one part in 2^64, and no draw has to be thrown away. */
IG_FN int64_t ig_randint_i64(uint64_t key, uint64_t draw, uint64_t i, int64_t low, int64_t high)
{
    ig_u32x4 x = ig_philox(key, draw, i);
    uint64_t range = (uint64_t)high - (uint64_t)low;
    uint64_t upper = (uint64_t)x.a << 32 | x.b, lower = (uint64_t)x.c << 32 | x.d;
    uint64_t rest = upper * range, carried = rest + ig_high_u64(lower, range);
    return (int64_t)((uint64_t)low + ig_high_u64(upper, range) + (carried < rest));
}
