/* Math of generated code, 3 of 7: logarithms, powers, inverse hyperbolic functions.
 *
 * x = 2^e·(1 + f) with 1 + f from sqrt(1/2) to sqrt(2). In float log(1 + f) is a polynomial in f; in double it is
 * 2·atanh(s) with s = f / (2 + f), of which f itself is taken apart first: 2s = f - f²/2 + s·f²/2.
 */

/* ig_log_parts_f32: needs ig_bits_f32, ig_from_bits_f32 */
typedef struct { float f; int32_t e; } ig_log_parts_f32_t;

IG_FN ig_log_parts_f32_t ig_log_parts_f32(float x)
{
    int denormal = x < 0x1p-126f;
    uint32_t bits = ig_bits_f32(denormal ? x * 0x1p25f : x) - 0x3f3504f3u;
    ig_log_parts_f32_t parts;
    parts.f = ig_from_bits_f32((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    parts.e = ((int32_t)bits >> 23) - (denormal ? 25 : 0);
    return parts;
}

/* ig_log_parts_f64: needs ig_bits_f64, ig_from_bits_f64 */
typedef struct { double f; int32_t e; } ig_log_parts_f64_t;

IG_FN ig_log_parts_f64_t ig_log_parts_f64(double x)
{
    int denormal = x < 0x1p-1022;
    uint64_t bits = ig_bits_f64(denormal ? x * 0x1p54 : x) - 0x3fe6a09e667f3bcdu;
    ig_log_parts_f64_t parts;
    parts.f = ig_from_bits_f64((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    parts.e = (int32_t)((int64_t)bits >> 52) - (denormal ? 54 : 0);
    return parts;
}

/* ig_log_rest_f32: needs ig_fma_f32
   log(1 + f) - f. */
IG_FN float ig_log_rest_f32(float f)
{
    /* poly q(f): log_f32 */
    float q = 0.06969754f;
    q = ig_fma_f32(q, f, -0.11479188f);
    q = ig_fma_f32(q, f, 0.11685796f);
    q = ig_fma_f32(q, f, -0.124257766f);
    q = ig_fma_f32(q, f, 0.14249033f);
    q = ig_fma_f32(q, f, -0.16667798f);
    q = ig_fma_f32(q, f, 0.20000717f);
    q = ig_fma_f32(q, f, -0.24999997f);
    q = ig_fma_f32(q, f, 0.3333333f);
    /* end */
    return f * f * ig_fma_f32(f, q, -0.5f);
}

/* ig_log_rest_f64: needs ig_fma_f64
   log(1 + f) - f. */
IG_FN double ig_log_rest_f64(double f)
{
    double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    /* poly q(z): log_f64 */
    double q = 0.1461703754879165;
    q = ig_fma_f64(q, z, 0.1533167403016786);
    q = ig_fma_f64(q, z, 0.18182890556695602);
    q = ig_fma_f64(q, z, 0.2222221111514416);
    q = ig_fma_f64(q, z, 0.2857142862609589);
    q = ig_fma_f64(q, z, 0.3999999999989924);
    q = ig_fma_f64(q, z, 0.666666666666667);
    /* end */
    return ig_fma_f64(s, ig_fma_f64(z, q, half), -half);
}

/* ig_log_ends_f32: needs nothing
   The logarithm of x where x is not positive and finite, else `inside`. */
IG_FN float ig_log_ends_f32(float x, float inside)
{
    float low = x == 0.0f ? -IG_INF_F32 : IG_NAN_F32;
    float high = x == IG_INF_F32 ? x : inside;
    return x > 0.0f ? high : low;
}

/* ig_log_ends_f64: needs nothing
   The logarithm of x where x is not positive and finite, else `inside`. */
IG_FN double ig_log_ends_f64(double x, double inside)
{
    double low = x == 0.0 ? -IG_INF_F64 : IG_NAN_F64;
    double high = x == IG_INF_F64 ? x : inside;
    return x > 0.0 ? high : low;
}

/* ig_log_f32: needs ig_fma_f32, ig_log_parts_f32, ig_log_rest_f32, ig_log_ends_f32 */
IG_FN float ig_log_f32(float x)
{
    ig_log_parts_f32_t parts = ig_log_parts_f32(x);
    float e = (float)parts.e;
    float rest = ig_fma_f32(e, 1.428606820e-06f, ig_log_rest_f32(parts.f));
    return ig_log_ends_f32(x, ig_fma_f32(e, 0.693145751953125f, parts.f + rest));
}

/* ig_log_f64: needs ig_fma_f64, ig_log_parts_f64, ig_log_rest_f64, ig_log_ends_f64 */
IG_FN double ig_log_f64(double x)
{
    ig_log_parts_f64_t parts = ig_log_parts_f64(x);
    double e = (double)parts.e;
    double rest = ig_fma_f64(e, 7.371002565167799e-13, ig_log_rest_f64(parts.f));
    return ig_log_ends_f64(x, ig_fma_f64(e, 0.6931471805592082, parts.f + rest));
}

/* ig_log_based_f32: needs ig_log_parts_f32, ig_log_rest_f32, ig_log_ends_f32, ig_product_rest_f32
   e·(unit + unit_rest) + log(1 + f)·(base + base_rest): e times unit must be exact. */
IG_FN float ig_log_based_f32(float x, float unit, float unit_rest, float base, float base_rest)
{
    ig_log_parts_f32_t parts = ig_log_parts_f32(x);
    float e = (float)parts.e, whole = e * unit;
    float first = parts.f * base;
    float rest = ig_product_rest_f32(parts.f, base, first) + (parts.f * base_rest + ig_log_rest_f32(parts.f) * base);
    float sum = whole + first;
    float lost = (whole - sum) + first;
    return ig_log_ends_f32(x, sum + (lost + (rest + e * unit_rest)));
}

/* ig_log_based_f64: needs ig_log_parts_f64, ig_log_rest_f64, ig_log_ends_f64, ig_product_rest_f64
   e·(unit + unit_rest) + log(1 + f)·(base + base_rest): e times unit must be exact. */
IG_FN double ig_log_based_f64(double x, double unit, double unit_rest, double base, double base_rest)
{
    ig_log_parts_f64_t parts = ig_log_parts_f64(x);
    double e = (double)parts.e, whole = e * unit;
    double first = parts.f * base;
    double rest = ig_product_rest_f64(parts.f, base, first) + (parts.f * base_rest + ig_log_rest_f64(parts.f) * base);
    double sum = whole + first;
    double lost = (whole - sum) + first;
    return ig_log_ends_f64(x, sum + (lost + (rest + e * unit_rest)));
}

/* ig_log2_f32: needs ig_log_based_f32 */
IG_FN float ig_log2_f32(float x) { return ig_log_based_f32(x, 1.0f, 0.0f, 1.442695022f, 1.925963033e-08f); }

/* ig_log2_f64: needs ig_log_based_f64 */
IG_FN double ig_log2_f64(double x)
{
    return ig_log_based_f64(x, 1.0, 0.0, 1.4426950408889634, 2.0355273740931033e-17);
}

/* ig_log10_f32: needs ig_log_based_f32 */
IG_FN float ig_log10_f32(float x)
{
    return ig_log_based_f32(x, 0.301025390625f, 4.605038981e-06f, 0.4342944920f, -1.010305e-08f);
}

/* ig_log10_f64: needs ig_log_based_f64 */
IG_FN double ig_log10_f64(double x)
{
    return ig_log_based_f64(x, 0.30102999566361177, 3.694239077158931e-13, 0.4342944819032518, 1.098319650216765e-17);
}

/* ig_log1p_f32: needs ig_fma_f32, ig_log_parts_f32, ig_log_rest_f32, ig_log_ends_f32, ig_pow2_f32 */
IG_FN float ig_log1p_f32(float x)
{
    float u = 1.0f + x;
    ig_log_parts_f32_t parts = ig_log_parts_f32(u);
    /* (1 + x)·2^-e - 1 from x itself, so that nothing of x is lost; a large x loses nothing that counts. */
    int32_t n = parts.e < -60 ? -60 : (parts.e > 60 ? 60 : parts.e);
    float unit = ig_pow2_f32(-n);
    float near = n == 0 ? x : x * unit + (unit - 1.0f);
    float f = n == 60 ? parts.f : near;
    float e = (float)parts.e;
    float rest = ig_fma_f32(e, 1.428606820e-06f, ig_log_rest_f32(f));
    float result = ig_fma_f32(e, 0.693145751953125f, f + rest);
    return x == 0.0f ? x : ig_log_ends_f32(u, result);
}

/* ig_log1p_f64: needs ig_fma_f64, ig_log_parts_f64, ig_log_rest_f64, ig_log_ends_f64, ig_pow2_f64 */
IG_FN double ig_log1p_f64(double x)
{
    double u = 1.0 + x;
    ig_log_parts_f64_t parts = ig_log_parts_f64(u);
    int32_t n = parts.e < -100 ? -100 : (parts.e > 100 ? 100 : parts.e);
    double unit = ig_pow2_f64(-n);
    double near = n == 0 ? x : x * unit + (unit - 1.0);
    double f = n == 100 ? parts.f : near;
    double e = (double)parts.e;
    double rest = ig_fma_f64(e, 7.371002565167799e-13, ig_log_rest_f64(f));
    double result = ig_fma_f64(e, 0.6931471805592082, f + rest);
    return x == 0.0 ? x : ig_log_ends_f64(u, result);
}

/* ig_asinh_f64: needs ig_log1p_f64, ig_log_f64 */
IG_FN double ig_asinh_f64(double x)
{
    double size = __builtin_fabs(x);
    double bounded = size > 1e9 ? 1e9 : size, square = bounded * bounded;
    double small = ig_log1p_f64(bounded + square / (1.0 + __builtin_sqrt(1.0 + square)));
    double big = ig_log_f64(size) + 0.6931471805599453;
    return __builtin_copysign(size >= 1e9 ? big : small, x);
}

/* ig_asinh_f32: needs ig_asinh_f64 */
IG_FN float ig_asinh_f32(float x) { return (float)ig_asinh_f64(x); }

/* ig_acosh_f64: needs ig_log1p_f64, ig_log_f64 */
IG_FN double ig_acosh_f64(double x)
{
    double t = (x > 1e9 ? 1e9 : x) - 1.0;
    double small = ig_log1p_f64(t + __builtin_sqrt(2.0 * t + t * t));
    double big = ig_log_f64(x) + 0.6931471805599453;
    double result = x >= 1e9 ? big : small;
    return x < 1.0 ? IG_NAN_F64 : result;
}

/* ig_acosh_f32: needs ig_acosh_f64 */
IG_FN float ig_acosh_f32(float x) { return (float)ig_acosh_f64(x); }

/* ig_atanh_f64: needs ig_log1p_f64 */
IG_FN double ig_atanh_f64(double x)
{
    double size = __builtin_fabs(x);
    double result = 0.5 * ig_log1p_f64(2.0 * size / (1.0 - size));
    return __builtin_copysign(size < 1e-9 ? size : result, x);
}

/* ig_atanh_f32: needs ig_atanh_f64 */
IG_FN float ig_atanh_f32(float x) { return (float)ig_atanh_f64(x); }

/* ig_pow_ends_f64: needs ig_trunc_f64
   x^y given |x|^y: the sign, and the powers that are 1 or no number. */
IG_FN double ig_pow_ends_f64(double x, double y, double size)
{
    double half = 0.5 * y;
    int whole = ig_trunc_f64(y) == y, odd = whole & (ig_trunc_f64(half) != half);
    double signed_size = odd ? __builtin_copysign(size, x) : size;
    double result = ((x < 0.0) & (x > -IG_INF_F64) & !whole) ? IG_NAN_F64 : signed_size;
    result = ((x != x) | (y != y)) ? IG_NAN_F64 : result;
    int one = (x == 1.0) | (y == 0.0) | ((x == -1.0) & (__builtin_fabs(y) == IG_INF_F64));
    return one ? 1.0 : result;
}

/* ig_pow_f32: needs ig_fma_f64, ig_log_parts_f64, ig_bits_f64, ig_pow2_f64, ig_pow_ends_f64
   In double, with polynomials no longer than a float needs: shorter than the same in pairs of floats. */
IG_FN float ig_pow_f32(float x, float y)
{
    double base = __builtin_fabsf(x);
    ig_log_parts_f64_t parts = ig_log_parts_f64(base);
    double s = parts.f / (2.0 + parts.f), z = s * s;
    /* poly q(z): pow_log_short */
    double q = 0.19363186932161763;
    q = ig_fma_f64(q, z, 0.22191373380944632);
    q = ig_fma_f64(q, z, 0.2857175496835035);
    q = ig_fma_f64(q, z, 0.39999998795219155);
    q = ig_fma_f64(q, z, 0.6666666666737665);
    /* end */
    double log = (double)parts.e * 0.6931471805599453 + (2.0 * s + s * z * q);
    log = base == 0.0 ? -IG_INF_F64 : (base == (double)IG_INF_F32 ? IG_INF_F64 : log);
    double t = log * (double)y;
    t = t < -200.0 ? -200.0 : t;
    t = t > 200.0 ? 200.0 : t;
    double shifted = ig_fma_f64(t, 1.4426950408889634, 6755399441055744.0);
    int64_t n = (int64_t)(ig_bits_f64(shifted) - 0x4338000000000000u);
    double r = t - (shifted - 6755399441055744.0) * 0.6931471805599453;
    /* poly p(r): pow_exp_short */
    double p = 2.485958707111089e-05;
    p = ig_fma_f64(p, r, 0.00019899282811157944);
    p = ig_fma_f64(p, r, 0.0013888854038986407);
    p = ig_fma_f64(p, r, 0.008333298473121765);
    p = ig_fma_f64(p, r, 0.041666666719004784);
    p = ig_fma_f64(p, r, 0.16666666719021456);
    p = ig_fma_f64(p, r, 0.5);
    /* end */
    return (float)ig_pow_ends_f64(x, y, (1.0 + ig_fma_f64(r * r, p, r)) * ig_pow2_f64(n));
}

/* ig_pow_f64: needs ig_fma_f64, ig_log_parts_f64, ig_product_rest_f64, ig_exp_sum_f64, ig_pow_ends_f64
   The logarithm as a sum of two doubles: y multiplies its error by up to 2^10 times the size of the logarithm. */
IG_FN double ig_pow_f64(double x, double y)
{
    double base = __builtin_fabs(x);
    ig_log_parts_f64_t parts = ig_log_parts_f64(base);
    double f = parts.f, e = (double)parts.e;
    /* s = f / (2 + f): 2 + f and its rounding, then the remainder of the division. */
    double low = 2.0 + f, low_rest = f - (low - 2.0);
    double s = f / low;
    double product = s * low;
    double s_rest = (((f - product) - ig_product_rest_f64(s, low, product)) - s * low_rest) / low;
    double z = s * s;
    double z_rest = ig_product_rest_f64(s, s, z) + 2.0 * s * s_rest;
    /* poly q(z): pow_log */
    double q = 0.11723603622905411;
    q = ig_fma_f64(q, z, 0.11706195689881364);
    q = ig_fma_f64(q, z, 0.13334806212100603);
    q = ig_fma_f64(q, z, 0.15384594934597917);
    q = ig_fma_f64(q, z, 0.1818181833565416);
    q = ig_fma_f64(q, z, 0.22222222221654733);
    q = ig_fma_f64(q, z, 0.2857142857142937);
    q = ig_fma_f64(q, z, 0.4);
    /* end */
    /* w = z·(2/3 + z·q), its first term in two doubles. */
    double third = z * 0.6666666666666666;
    double third_rest = ig_product_rest_f64(z, 0.6666666666666666, third)
        + (z_rest * 0.6666666666666666 + z * 3.700743415417188e-17);
    double tail = z * z * q;
    double w = third + tail;
    double w_rest = ((third - w) + tail) + third_rest;
    /* log(1 + f) = 2s + s·w */
    double sw = s * w;
    double sw_rest = ig_product_rest_f64(s, w, sw) + (s * w_rest + s_rest * w);
    double twice = 2.0 * s;
    double near = twice + sw;
    double near_rest = ((twice - near) + sw) + (sw_rest + 2.0 * s_rest);
    /* plus e·ln2, whose first part times e is exact. */
    double whole = e * 0.6931471805592082;
    double sum = whole + near;
    double sum_rest = ((whole - sum) + near) + (near_rest + e * 7.371002565167799e-13);
    double log = sum + sum_rest;
    double log_rest = (sum - log) + sum_rest;
    log = base == 0.0 ? -IG_INF_F64 : (base == IG_INF_F64 ? base : log);
    log_rest = ((base == 0.0) | (base == IG_INF_F64)) ? 0.0 : log_rest;
    /* A power beyond these is inf or 0 for every log but 0, and the product below must not overflow. */
    double t = y * log;
    int ordinary = __builtin_fabs(t) < 1000.0;
    double exponent = ordinary ? y : 0.0;
    double t_rest = ordinary ? ig_product_rest_f64(exponent, log, t) + exponent * log_rest : 0.0;
    return ig_pow_ends_f64(x, y, ig_exp_sum_f64(t, t_rest, 0));
}
