/* Math of generated code, 4 of 7: circular functions and their inverses.
 *
 * A large argument is reduced in integers: the bits of 2/π that make up whole turns of x are skipped, the next
 * ones times x's significand give x as a fraction of a turn, exact enough for the float nearest to a multiple of π/2.
 */

/* ig_turn_f32: needs ig_fma_f32, ig_bits_f32 */
typedef struct { float r; int32_t quadrant; } ig_turn_f32_t;

/* x = quadrant·π/2 + r for a finite x not below 0, the quadrant modulo 4; below 1 an x is its own r. */
IG_FN ig_turn_f32_t ig_turn_f32(float x)
{
    uint32_t bits = ig_bits_f32(x);
    uint32_t skip = ((bits >> 23) - 127u) & 127u, significand = (bits & 0x7fffffu) | 0x800000u;
    /* Words of 2/π·2^-25, chosen by two bits of `skip` with blends where a table would need gathers. */
    int far = (skip & 64u) != 0, odd = (skip & 32u) != 0;
    uint32_t a0 = far ? 0x220a94feu : 0x00000051u, a1 = far ? 0x13abe8fau : 0x7cc1b727u;
    uint32_t a2 = far ? 0x9a6ee06du : 0x220a94feu, a3 = far ? 0xb14acc9eu : 0x13abe8fau;
    uint32_t a4 = far ? 0x21c820ffu : 0x9a6ee06du;
    uint32_t b0 = odd ? a1 : a0, b1 = odd ? a2 : a1, b2 = odd ? a3 : a2, b3 = odd ? a4 : a3;
    uint32_t left = skip & 31u, right = 31u - left;
    uint32_t c0 = b0 << left | b1 >> 1 >> right, c1 = b1 << left | b2 >> 1 >> right, c2 = b2 << left | b3 >> 1 >> right;
    /* The fraction of a turn, in units of 2^-64. */
    uint64_t turn = ((uint64_t)(significand * c0) << 32) + (uint64_t)significand * c1;
    turn += (uint64_t)significand * c2 >> 32;
    uint32_t quadrant = ((uint32_t)(turn >> 32) + 0x20000000u) >> 30;
    uint64_t rest = turn - ((uint64_t)quadrant << 62);
    int negative = (int32_t)(rest >> 32) < 0;
    uint64_t size = negative ? 0u - rest : rest;
    int32_t high = (int32_t)(size >> 32), low = (int32_t)((uint32_t)size >> 1);
    float top = (float)high, top_rest = (float)(high - (int32_t)top);
    /* 2π/2^32 in two parts; `low` counts 2^-63. */
    float r_rest = top_rest * 0x1.921fb6p-30f + (float)low * 0x1.921fb6p-61f + top * -0x1.777a5cp-55f;
    float r = ig_fma_f32(top, 0x1.921fb6p-30f, r_rest);
    ig_turn_f32_t result;
    int near = x < 1.0f;
    result.r = near ? x : (negative ? -r : r);
    result.quadrant = near ? 0 : (int32_t)quadrant;
    return result;
}

/* ig_sin_turned_f32: needs ig_fma_f32
   sin(quadrant·π/2 + r) for r from -1 to 1. */
IG_FN float ig_sin_turned_f32(float r, int32_t quadrant)
{
    float z = r * r;
    /* poly s(z): sin_f32 */
    float s = 2.7060669e-06f;
    s = ig_fma_f32(s, z, -0.00019838175f);
    s = ig_fma_f32(s, z, 0.008333327f);
    s = ig_fma_f32(s, z, -0.16666667f);
    /* end */
    /* poly c(z): cos_f32 */
    float c = -2.7142923e-07f;
    c = ig_fma_f32(c, z, 2.4799003e-05f);
    c = ig_fma_f32(c, z, -0.0013888883f);
    c = ig_fma_f32(c, z, 0.041666668f);
    /* end */
    float sine = ig_fma_f32(r * z, s, r), cosine = ig_fma_f32(z, ig_fma_f32(z, c, -0.5f), 1.0f);
    float size = quadrant & 1 ? cosine : sine;
    return quadrant & 2 ? -size : size;
}

/* ig_sin_f32: needs ig_turn_f32, ig_sin_turned_f32 */
IG_FN float ig_sin_f32(float x)
{
    float size = __builtin_fabsf(x);
    ig_turn_f32_t turn = ig_turn_f32(size);
    float result = ig_sin_turned_f32(turn.r, turn.quadrant);
    result = __builtin_copysignf(1.0f, x) < 0.0f ? -result : result;
    return size < IG_INF_F32 ? result : IG_NAN_F32;
}

/* ig_cos_f32: needs ig_turn_f32, ig_sin_turned_f32 */
IG_FN float ig_cos_f32(float x)
{
    float size = __builtin_fabsf(x);
    ig_turn_f32_t turn = ig_turn_f32(size);
    float result = ig_sin_turned_f32(turn.r, turn.quadrant + 1);
    return size < IG_INF_F32 ? result : IG_NAN_F32;
}

/* ig_turn_f64: needs ig_bits_f64, ig_product_rest_f64 */
typedef struct { double r, rest; int32_t quadrant; } ig_turn_f64_t;

/* 2/π·2^-54, most significant word first. */
static const uint64_t ig_two_over_pi[20] = {
    0x000000000000028bu, 0xe60db9391054a7f0u, 0x9d5f47d4d377036du, 0x8a5664f10e4107f9u, 0x458eaf7aef1586dcu,
    0x91b8e909374b8019u, 0x24bba827464873f8u, 0x77ac72c4a69cfba2u, 0x08d7d4baed1213a6u, 0x71c09ad17df904e6u,
    0x4758e60d4ce7d272u, 0x117e2ef7e4a0ec7fu, 0xe25fff7816603fbcu, 0xbc462d6829b47db4u, 0xd9fb3c9f2c26dd3du,
    0x18fd9a797fa8b5d4u, 0x9eeb1faf97c5ecf4u, 0x1ce7de294a4ba9afu, 0xed7ec47e35742158u, 0x0cc11bf1edaeafc3u,
};

/* x = quadrant·π/2 + r + rest for a finite x not below 0; below π/4 an x is its own r. Does not vectorize: products
   of 64 bits by 64. */
IG_SCALAR ig_turn_f64_t ig_turn_f64(double x)
{
    uint64_t bits = ig_bits_f64(x);
    uint32_t exponent = (uint32_t)(bits >> 52);
    uint32_t skip = exponent < 1023u ? 0u : (exponent > 2046u ? 1023u : exponent - 1023u);
    uint64_t significand = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    const uint64_t *word = ig_two_over_pi + (skip >> 6);
    uint32_t left = skip & 63u, right = 63u - left;
    uint64_t c0 = word[0] << left | word[1] >> 1 >> right, c1 = word[1] << left | word[2] >> 1 >> right;
    uint64_t c2 = word[2] << left | word[3] >> 1 >> right;
    /* The fraction of a turn, in units of 2^-128. */
    unsigned __int128 turn = ((unsigned __int128)(significand * c0) << 64) + (unsigned __int128)significand * c1
        + (uint64_t)((unsigned __int128)significand * c2 >> 64);
    /* From 1/2 to 1 the significand counts for half as much. */
    turn = exponent < 1023u ? turn >> 1 : turn;
    uint32_t quadrant = (uint32_t)(((uint64_t)(turn >> 64) + 0x2000000000000000u) >> 62);
    unsigned __int128 part = turn - ((unsigned __int128)quadrant << 126);
    int negative = (int64_t)(part >> 64) < 0;
    unsigned __int128 size = negative ? 0u - part : part;
    int64_t high = (int64_t)(size >> 64);
    double top = (double)high;
    double below = (double)(high - (int64_t)top) + (double)(int64_t)((uint64_t)size >> 1) * 0x1p-63;
    double sum = top + below;
    double sum_rest = (top - sum) + below;
    /* 2π/2^64 in two parts. */
    double r = sum * 0x1.921fb54442d18p-62;
    double rest = ig_product_rest_f64(sum, 0x1.921fb54442d18p-62, r)
        + (sum_rest * 0x1.921fb54442d18p-62 + sum * 0x1.1a62633145c07p-116);
    ig_turn_f64_t result;
    int near = x < 0.78;
    result.r = near ? x : (negative ? -r : r);
    result.rest = near ? 0.0 : (negative ? -rest : rest);
    result.quadrant = near ? 0 : (int32_t)quadrant;
    return result;
}

/* ig_sin_part_f64: needs ig_fma_f64
   sin(r + rest) for |r| up to π/4. */
IG_FN double ig_sin_part_f64(double r, double rest)
{
    double z = r * r;
    /* poly s(z): sin_f64 */
    double s = 1.5918117983848815e-10;
    s = ig_fma_f64(s, z, -2.5051131688000297e-08);
    s = ig_fma_f64(s, z, 2.755731610179909e-06);
    s = ig_fma_f64(s, z, -0.0001984126983675712);
    s = ig_fma_f64(s, z, 0.008333333333330948);
    s = ig_fma_f64(s, z, -0.16666666666666666);
    /* end */
    return r + (r * z * s + rest * (1.0 - 0.5 * z));
}

/* ig_cos_part_f64: needs ig_fma_f64
   cos(r + rest) for |r| up to π/4. */
IG_FN double ig_cos_part_f64(double r, double rest)
{
    double z = r * r, half = 0.5 * z;
    /* poly c(z): cos_f64 */
    double c = -1.1382625349447592e-11;
    c = ig_fma_f64(c, z, 2.0876146170183976e-09);
    c = ig_fma_f64(c, z, -2.7557317271258515e-07);
    c = ig_fma_f64(c, z, 2.4801587298764778e-05);
    c = ig_fma_f64(c, z, -0.0013888888888887398);
    c = ig_fma_f64(c, z, 0.041666666666666664);
    /* end */
    double near = 1.0 - half;
    return near + (((1.0 - near) - half) + (z * z * c - r * rest));
}

/* ig_sin_turned_f64: needs ig_turn_f64, ig_sin_part_f64, ig_cos_part_f64
   sin(|x| + ahead·π/2). */
IG_FN double ig_sin_turned_f64(double x, int32_t ahead)
{
    double size = __builtin_fabs(x);
    ig_turn_f64_t turn = ig_turn_f64(size);
    int32_t quadrant = turn.quadrant + ahead;
    double sine = ig_sin_part_f64(turn.r, turn.rest), cosine = ig_cos_part_f64(turn.r, turn.rest);
    double result = quadrant & 1 ? cosine : sine;
    result = quadrant & 2 ? -result : result;
    return size < IG_INF_F64 ? result : IG_NAN_F64;
}

/* ig_sin_f64: needs ig_sin_turned_f64 */
IG_FN double ig_sin_f64(double x)
{
    double result = ig_sin_turned_f64(x, 0);
    return __builtin_copysign(1.0, x) < 0.0 ? -result : result;
}

/* ig_cos_f64: needs ig_sin_turned_f64 */
IG_FN double ig_cos_f64(double x) { return ig_sin_turned_f64(x, 1); }

/* ig_tan_f64: needs ig_turn_f64, ig_sin_part_f64, ig_cos_part_f64 */
IG_FN double ig_tan_f64(double x)
{
    double size = __builtin_fabs(x);
    ig_turn_f64_t turn = ig_turn_f64(size);
    double sine = ig_sin_part_f64(turn.r, turn.rest), cosine = ig_cos_part_f64(turn.r, turn.rest);
    double result = turn.quadrant & 1 ? -cosine / sine : sine / cosine;
    result = __builtin_copysign(1.0, x) < 0.0 ? -result : result;
    return size < IG_INF_F64 ? result : IG_NAN_F64;
}

/* ig_tan_f32: needs ig_fma_f32, ig_turn_f32 */
IG_FN float ig_tan_f32(float x)
{
    float size = __builtin_fabsf(x);
    ig_turn_f32_t turn = ig_turn_f32(size);
    float r = turn.r, z = r * r;
    /* poly s(z): sin_f32 */
    float s = 2.7060669e-06f;
    s = ig_fma_f32(s, z, -0.00019838175f);
    s = ig_fma_f32(s, z, 0.008333327f);
    s = ig_fma_f32(s, z, -0.16666667f);
    /* end */
    /* poly c(z): cos_f32 */
    float c = -2.7142923e-07f;
    c = ig_fma_f32(c, z, 2.4799003e-05f);
    c = ig_fma_f32(c, z, -0.0013888883f);
    c = ig_fma_f32(c, z, 0.041666668f);
    /* end */
    float sine = ig_fma_f32(r * z, s, r), cosine = ig_fma_f32(z, ig_fma_f32(z, c, -0.5f), 1.0f);
    float result = (turn.quadrant & 1 ? -cosine : sine) / (turn.quadrant & 1 ? sine : cosine);
    result = __builtin_copysignf(1.0f, x) < 0.0f ? -result : result;
    return size < IG_INF_F32 ? result : IG_NAN_F32;
}

/* ig_asin_rest_f64: needs ig_fma_f64
   asin(y)/y - 1 for z = y² up to 1/4. */
IG_FN double ig_asin_rest_f64(double z)
{
    /* poly q(z): asin_f64 */
    double q = 0.02961201126495512;
    q = ig_fma_f64(q, z, -0.01924167174674304);
    q = ig_fma_f64(q, z, 0.019554513336123378);
    q = ig_fma_f64(q, z, 0.0030448799094556773);
    q = ig_fma_f64(q, z, 0.009319560794767446);
    q = ig_fma_f64(q, z, 0.009621842970100282);
    q = ig_fma_f64(q, z, 0.011566459612121669);
    q = ig_fma_f64(q, z, 0.01396378001220357);
    q = ig_fma_f64(q, z, 0.017352816540325496);
    q = ig_fma_f64(q, z, 0.02237215744350722);
    q = ig_fma_f64(q, z, 0.03038194447553234);
    q = ig_fma_f64(q, z, 0.044642857142551895);
    q = ig_fma_f64(q, z, 0.07500000000000118);
    q = ig_fma_f64(q, z, 0.16666666666666666);
    /* end */
    return z * q;
}

/* ig_asin_f64: needs ig_fma_f64, ig_asin_rest_f64 */
IG_FN double ig_asin_f64(double x)
{
    double size = __builtin_fabs(x);
    int inner = size <= 0.5;
    double z = inner ? size * size : 0.5 * (1.0 - size);
    double y = inner ? size : __builtin_sqrt(z);
    double near = ig_fma_f64(y, ig_asin_rest_f64(z), y);
    double far = (1.5707963267948966 - 2.0 * near) + 6.123233995736766e-17;
    return __builtin_copysign(inner ? near : far, x);
}

/* ig_asin_f32: needs ig_asin_f64 */
IG_FN float ig_asin_f32(float x) { return (float)ig_asin_f64(x); }

/* ig_acos_f64: needs ig_fma_f64, ig_asin_rest_f64 */
IG_FN double ig_acos_f64(double x)
{
    double size = __builtin_fabs(x);
    int inner = size <= 0.5;
    double z = inner ? size * size : 0.5 * (1.0 - size);
    double y = inner ? x : __builtin_sqrt(z);
    double near = ig_fma_f64(y, ig_asin_rest_f64(z), y);
    double middle = (1.5707963267948966 - near) + 6.123233995736766e-17;
    double left = (3.141592653589793 - 2.0 * near) + 1.2246467991473532e-16;
    double outer = x < 0.0 ? left : 2.0 * near;
    return inner ? middle : outer;
}

/* ig_acos_f32: needs ig_acos_f64 */
IG_FN float ig_acos_f32(float x) { return (float)ig_acos_f64(x); }

/* ig_atan_ratio_f64: needs ig_fma_f64
   The angle of (x, y), or of (-x, y) if left, for x and y not negative and not both 0, whose sum is finite. */
IG_FN double ig_atan_ratio_f64(double y, double x, int left)
{
    /* atan(t) = π/4 + atan((t - 1) / (t + 1)) = π/2 + atan(-1 / t) */
    int low = y <= 0.41421356 * x, high = y > 2.41421356 * x;
    double top = low ? y : (high ? -x : y - x), bottom = low ? x : (high ? y : y + x);
    double t = top / bottom, z = t * t;
    /* poly q(z): atan_f64 */
    double q = 0.01628357235648259;
    q = ig_fma_f64(q, z, -0.0345685906686069);
    q = ig_fma_f64(q, z, 0.045515165635903104);
    q = ig_fma_f64(q, z, -0.052304374642516874);
    q = ig_fma_f64(q, z, 0.05878926715756726);
    q = ig_fma_f64(q, z, -0.066664246872465);
    q = ig_fma_f64(q, z, 0.07692296363979952);
    q = ig_fma_f64(q, z, -0.09090908753118594);
    q = ig_fma_f64(q, z, 0.11111111105147764);
    q = ig_fma_f64(q, z, -0.14285714285659748);
    q = ig_fma_f64(q, z, 0.19999999999999804);
    q = ig_fma_f64(q, z, -0.3333333333333333);
    /* end */
    double base = low ? (left ? 3.141592653589793 : 0.0) : (left ? 2.356194490192345 : 0.7853981633974483);
    double base_rest = low ? (left ? 1.2246467991473532e-16 : 0.0)
                           : (left ? 9.184850993605148e-17 : 3.061616997868383e-17);
    base = high ? 1.5707963267948966 : base;
    base_rest = high ? 6.123233995736766e-17 : base_rest;
    double sign = left ? -1.0 : 1.0;
    return base + (sign * t + (sign * t * z * q + base_rest));
}

/* ig_atan_f64: needs ig_atan_ratio_f64 */
IG_FN double ig_atan_f64(double x)
{
    double size = __builtin_fabs(x);
    double bounded = size > 1e300 ? 1e300 : size;
    return __builtin_copysign(ig_atan_ratio_f64(bounded, 1.0, 0), x);
}

/* ig_atan_f32: needs ig_atan_f64 */
IG_FN float ig_atan_f32(float x) { return (float)ig_atan_f64(x); }

/* ig_atan2_f64: needs ig_atan_ratio_f64 */
IG_FN double ig_atan2_f64(double y, double x)
{
    double a = __builtin_fabs(y), b = __builtin_fabs(x);
    double big = a < b ? b : a;
    /* Both inf is the diagonal; both 0 is the axis that the sign of x names. */
    int diagonal = (a == IG_INF_F64) & (b == IG_INF_F64);
    double scale = big > 1e300 ? 0x1p-100 : (big < 1e-250 ? 0x1p100 : 1.0);
    double up = diagonal ? 1.0 : (a == IG_INF_F64 ? 0x1p1000 : (b == IG_INF_F64 ? 0.0 : a * scale));
    double side = diagonal ? 1.0 : (b == IG_INF_F64 ? 1.0 : (a == IG_INF_F64 ? 0.0 : (big == 0.0 ? 1.0 : b * scale)));
    double result = __builtin_copysign(ig_atan_ratio_f64(up, side, __builtin_copysign(1.0, x) < 0.0), y);
    return ((x != x) | (y != y)) ? IG_NAN_F64 : result;
}

/* ig_atan2_f32: needs ig_atan2_f64 */
IG_FN float ig_atan2_f32(float y, float x) { return (float)ig_atan2_f64(y, x); }
