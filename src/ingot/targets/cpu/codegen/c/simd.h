/* Vectors of 16 lanes by hand, where integers of 8 bits come in or go out: compilers that are left to vectorize a loop
   of bytes and floats take the bytes' lanes, and cut the floats to fit. See codegen/lanes.py. */

#if IG_BYTES == 64
#define IG_BY_LANES 1
typedef float ig_lanes_f32 __attribute__((vector_size(64)));
typedef int32_t ig_lanes_i32 __attribute__((vector_size(64)));
typedef uint8_t ig_lanes_u8 __attribute__((vector_size(16)));
#define IG_LANE_FN __attribute__((unused)) static inline __attribute__((always_inline))

IG_LANE_FN ig_lanes_f32 ig_lanes_get_f32(const float *place)
{
    ig_lanes_f32 x;
    memcpy(&x, place, 64);
    return x;
}
IG_LANE_FN ig_lanes_i32 ig_lanes_get_i32(const int32_t *place)
{
    ig_lanes_i32 x;
    memcpy(&x, place, 64);
    return x;
}
IG_LANE_FN ig_lanes_i32 ig_lanes_get_u8(const uint8_t *place)
{
    ig_lanes_u8 bytes;
    ig_lanes_i32 x;
    memcpy(&bytes, place, 16);
    __asm__("vpmovzxbd %1, %0" : "=v"(x) : "vm"(bytes));
    return x;
}
IG_LANE_FN ig_lanes_i32 ig_lanes_get_i8(const int8_t *place)
{
    ig_lanes_u8 bytes;
    ig_lanes_i32 x;
    memcpy(&bytes, place, 16);
    __asm__("vpmovsxbd %1, %0" : "=v"(x) : "vm"(bytes));
    return x;
}
IG_LANE_FN void ig_lanes_put_f32(float *place, ig_lanes_f32 x) { memcpy(place, &x, 64); }
IG_LANE_FN void ig_lanes_put_i32(int32_t *place, ig_lanes_i32 x) { memcpy(place, &x, 64); }
IG_LANE_FN void ig_lanes_put_u8(void *place, ig_lanes_i32 x)
{
    ig_lanes_u8 bytes;
    __asm__("vpmovdb %1, %0" : "=v"(bytes) : "v"(x));
    memcpy(place, &bytes, 16);
}
IG_LANE_FN ig_lanes_f32 ig_lanes_same_f32(float x) { return x - (ig_lanes_f32){0}; }
IG_LANE_FN ig_lanes_i32 ig_lanes_same_i32(int32_t x) { return x - (ig_lanes_i32){0}; }
/* a > b ? a : b, and a < b ? a : b: where either is nan, b. */
IG_LANE_FN ig_lanes_f32 ig_lanes_more_f32(ig_lanes_f32 a, ig_lanes_f32 b)
{
    __asm__("vmaxps %2, %1, %0" : "=v"(a) : "v"(a), "v"(b));
    return a;
}
IG_LANE_FN ig_lanes_f32 ig_lanes_less_f32(ig_lanes_f32 a, ig_lanes_f32 b)
{
    __asm__("vminps %2, %1, %0" : "=v"(a) : "v"(a), "v"(b));
    return a;
}
/* The same for numbers that may be larger than bytes are: those become 255. None is negative, unless it was no int32. */
IG_LANE_FN void ig_lanes_put_least_u8(void *place, ig_lanes_i32 x)
{
    ig_lanes_u8 bytes;
    __asm__("vpmovusdb %1, %0" : "=v"(bytes) : "v"(x));
    memcpy(place, &bytes, 16);
}
/* As ig_round_to_int_f32: the nearest integer, ties to even. */
IG_LANE_FN ig_lanes_i32 ig_lanes_near_f32(ig_lanes_f32 x)
{
    ig_lanes_i32 whole;
    __asm__("vcvtps2dq %1, %0" : "=v"(whole) : "v"(x));
    return whole;
}
IG_LANE_FN ig_lanes_f32 ig_lanes_round_f32(ig_lanes_f32 x)
{
    __asm__("vrndscaleps $8, %1, %0" : "=v"(x) : "v"(x));
    return x;
}
IG_LANE_FN ig_lanes_f32 ig_lanes_horner_f32(ig_lanes_f32 p, ig_lanes_f32 x, float next)
{
    IG_CONTRACTED return IG_FMA_f32(p, x, ig_lanes_same_f32(next));
}
/* erf where a few more than six digits do: x·p(x²)/q(x²), which is 1 from 3.95 on. */
IG_LANE_FN ig_lanes_f32 ig_lanes_near_erf_f32(ig_lanes_f32 x)
{
    x = ig_lanes_less_f32(ig_lanes_more_f32(x, ig_lanes_same_f32(-3.95f)), ig_lanes_same_f32(3.95f));
    const ig_lanes_f32 z = x * x;
    ig_lanes_f32 p = ig_lanes_same_f32(0.00031716408f), q = ig_lanes_same_f32(1.837432e-05f);
    p = ig_lanes_horner_f32(p, z, 0.008936857f), q = ig_lanes_horner_f32(q, z, 0.0022525077f);
    p = ig_lanes_horner_f32(p, z, 0.06872818f), q = ig_lanes_horner_f32(q, z, 0.02550364f);
    p = ig_lanes_horner_f32(p, z, 0.32258064f), q = ig_lanes_horner_f32(q, z, 0.16735708f);
    p = ig_lanes_horner_f32(p, z, 1.1283788f), q = ig_lanes_horner_f32(q, z, 0.61920354f);
    q = ig_lanes_horner_f32(q, z, 1.0f);
    return x * p / q;
}
#else
#define IG_BY_LANES 0
#endif
