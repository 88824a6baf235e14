/* Math of generated code, 2 of 7: e^x and what is made of it.
 *
 * e^x = 2^n·e^r with n whole and |r| at most ln2 / 2. n comes from adding a number so large that the sum's last bit
 * counts ones; its bits are then n plus a constant. ln2 is split so that n times the first part is exact.
 */

/* ig_exp_f32: needs ig_fma_f32, ig_bits_f32, ig_scale_f32 */
IG_FN float ig_exp_f32(float x)
{
    float t = x < -110.0f ? -110.0f : x;
    t = t > 110.0f ? 110.0f : t;
    float shifted = ig_fma_f32(t, 1.442695041f, 12582912.0f);
    int32_t n = (int32_t)(ig_bits_f32(shifted) - 0x4b400000u);
    float whole = shifted - 12582912.0f;
    float r = ig_fma_f32(whole, -1.428606820e-06f, ig_fma_f32(whole, -0.693145751953125f, t));
    /* poly q(r): exp_f32 */
    float q = 0.0013926182f;
    q = ig_fma_f32(q, r, 0.008363178f);
    q = ig_fma_f32(q, r, 0.041666556f);
    q = ig_fma_f32(q, r, 0.16666576f);
    q = ig_fma_f32(q, r, 0.5f);
    /* end */
    return ig_scale_f32(1.0f + ig_fma_f32(r * r, q, r), n);
}

/* ig_exp_narrow_f32: needs ig_fma_f32, ig_bits_f32, ig_pow2_f32
   e^x for x from -80 to 80, or nan. */
IG_FN float ig_exp_narrow_f32(float x)
{
    float shifted = ig_fma_f32(x, 1.442695041f, 12582912.0f);
    int32_t n = (int32_t)(ig_bits_f32(shifted) - 0x4b400000u);
    float whole = shifted - 12582912.0f;
    float r = ig_fma_f32(whole, -1.428606820e-06f, ig_fma_f32(whole, -0.693145751953125f, x));
    /* poly q(r): exp_f32 */
    float q = 0.0013926182f;
    q = ig_fma_f32(q, r, 0.008363178f);
    q = ig_fma_f32(q, r, 0.041666556f);
    q = ig_fma_f32(q, r, 0.16666576f);
    q = ig_fma_f32(q, r, 0.5f);
    /* end */
    return (1.0f + ig_fma_f32(r * r, q, r)) * ig_pow2_f32(n);
}

/* ig_exp_sum_f64: needs ig_fma_f64, ig_bits_f64, ig_scale_f64
   e^(x + rest)·2^k for a rest far smaller than 1 and k from -100 to 100. */
IG_FN double ig_exp_sum_f64(double x, double rest, int64_t k)
{
    double t = x < -800.0 ? -800.0 : x;
    t = t > 800.0 ? 800.0 : t;
    double shifted = ig_fma_f64(t, 1.4426950408889634, 6755399441055744.0);
    int64_t n = (int64_t)(ig_bits_f64(shifted) - 0x4338000000000000u);
    double whole = shifted - 6755399441055744.0;
    double r = ig_fma_f64(whole, -0.6931471805592082, t) - ig_fma_f64(whole, 7.371002565167799e-13, -rest);
    /* poly q(r): exp_f64 */
    double q = 2.510038319586702e-08;
    q = ig_fma_f64(q, r, 2.7620085455018414e-07);
    q = ig_fma_f64(q, r, 2.7557268464831627e-06);
    q = ig_fma_f64(q, r, 2.4801521302241082e-05);
    q = ig_fma_f64(q, r, 0.00019841269863050506);
    q = ig_fma_f64(q, r, 0.001388888891720967);
    q = ig_fma_f64(q, r, 0.008333333333330063);
    q = ig_fma_f64(q, r, 0.041666666666624136);
    q = ig_fma_f64(q, r, 0.16666666666666669);
    q = ig_fma_f64(q, r, 0.5000000000000001);
    /* end */
    /* n of a nan is any number: it must not be added to as a signed one. */
    return ig_scale_f64(1.0 + ig_fma_f64(r * r, q, r), (int64_t)((uint64_t)n + (uint64_t)k));
}

/* ig_exp_f64: needs ig_exp_sum_f64 */
IG_FN double ig_exp_f64(double x) { return ig_exp_sum_f64(x, 0.0, 0); }

/* ig_exp2_f32: needs ig_fma_f32, ig_bits_f32, ig_scale_f32 */
IG_FN float ig_exp2_f32(float x)
{
    float t = x < -160.0f ? -160.0f : x;
    t = t > 160.0f ? 160.0f : t;
    float shifted = t + 12582912.0f;
    int32_t n = (int32_t)(ig_bits_f32(shifted) - 0x4b400000u);
    float r = (t - (shifted - 12582912.0f)) * 0.6931471806f;
    /* poly q(r): exp_f32 */
    float q = 0.0013926182f;
    q = ig_fma_f32(q, r, 0.008363178f);
    q = ig_fma_f32(q, r, 0.041666556f);
    q = ig_fma_f32(q, r, 0.16666576f);
    q = ig_fma_f32(q, r, 0.5f);
    /* end */
    return ig_scale_f32(1.0f + ig_fma_f32(r * r, q, r), n);
}

/* ig_exp2_f64: needs ig_fma_f64, ig_bits_f64, ig_scale_f64 */
IG_FN double ig_exp2_f64(double x)
{
    double t = x < -1200.0 ? -1200.0 : x;
    t = t > 1200.0 ? 1200.0 : t;
    double shifted = t + 6755399441055744.0;
    int64_t n = (int64_t)(ig_bits_f64(shifted) - 0x4338000000000000u);
    double r = (t - (shifted - 6755399441055744.0)) * 0.6931471805599453;
    /* poly q(r): exp_f64 */
    double q = 2.510038319586702e-08;
    q = ig_fma_f64(q, r, 2.7620085455018414e-07);
    q = ig_fma_f64(q, r, 2.7557268464831627e-06);
    q = ig_fma_f64(q, r, 2.4801521302241082e-05);
    q = ig_fma_f64(q, r, 0.00019841269863050506);
    q = ig_fma_f64(q, r, 0.001388888891720967);
    q = ig_fma_f64(q, r, 0.008333333333330063);
    q = ig_fma_f64(q, r, 0.041666666666624136);
    q = ig_fma_f64(q, r, 0.16666666666666669);
    q = ig_fma_f64(q, r, 0.5000000000000001);
    /* end */
    return ig_scale_f64(1.0 + ig_fma_f64(r * r, q, r), n);
}

/* ig_expm1_f32: needs ig_fma_f32, ig_bits_f32, ig_pow2_f32 */
IG_FN float ig_expm1_f32(float x)
{
    float t = x < -20.0f ? -20.0f : x;
    t = t > 89.0f ? 89.0f : t;
    float shifted = ig_fma_f32(t, 1.442695041f, 12582912.0f);
    int32_t n = (int32_t)(ig_bits_f32(shifted) - 0x4b400000u);
    float whole = shifted - 12582912.0f;
    float r = ig_fma_f32(whole, -1.428606820e-06f, ig_fma_f32(whole, -0.693145751953125f, t));
    /* poly q(r): exp_f32 */
    float q = 0.0013926182f;
    q = ig_fma_f32(q, r, 0.008363178f);
    q = ig_fma_f32(q, r, 0.041666556f);
    q = ig_fma_f32(q, r, 0.16666576f);
    q = ig_fma_f32(q, r, 0.5f);
    /* end */
    float p = ig_fma_f32(r * r, q, r);
    /* Half of 2^n: 2^128 is not a float. */
    float half = ig_pow2_f32(n - 1);
    return whole == 0.0f ? (x == 0.0f ? x : p) : 2.0f * ig_fma_f32(half, p, half - 0.5f);
}

/* ig_expm1_f64: needs ig_fma_f64, ig_bits_f64, ig_pow2_f64 */
IG_FN double ig_expm1_f64(double x)
{
    double t = x < -40.0 ? -40.0 : x;
    t = t > 710.0 ? 710.0 : t;
    double shifted = ig_fma_f64(t, 1.4426950408889634, 6755399441055744.0);
    int64_t n = (int64_t)(ig_bits_f64(shifted) - 0x4338000000000000u);
    double whole = shifted - 6755399441055744.0;
    double r = ig_fma_f64(whole, -7.371002565167799e-13, ig_fma_f64(whole, -0.6931471805592082, t));
    /* poly q(r): exp_f64 */
    double q = 2.510038319586702e-08;
    q = ig_fma_f64(q, r, 2.7620085455018414e-07);
    q = ig_fma_f64(q, r, 2.7557268464831627e-06);
    q = ig_fma_f64(q, r, 2.4801521302241082e-05);
    q = ig_fma_f64(q, r, 0.00019841269863050506);
    q = ig_fma_f64(q, r, 0.001388888891720967);
    q = ig_fma_f64(q, r, 0.008333333333330063);
    q = ig_fma_f64(q, r, 0.041666666666624136);
    q = ig_fma_f64(q, r, 0.16666666666666669);
    q = ig_fma_f64(q, r, 0.5000000000000001);
    /* end */
    double p = ig_fma_f64(r * r, q, r);
    double half = ig_pow2_f64(n - 1);
    return whole == 0.0 ? (x == 0.0 ? x : p) : 2.0 * ig_fma_f64(half, p, half - 0.5);
}

/* ig_sigmoid_f32: needs ig_exp_f32
   1 / (1 + e^-x), from e^-|x| so that the small results of a large negative x are kept. */
IG_FN float ig_sigmoid_f32(float x)
{
    float e = ig_exp_f32(-__builtin_fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* ig_sigmoid_f64: needs ig_exp_f64 */
IG_FN double ig_sigmoid_f64(double x)
{
    double e = ig_exp_f64(-__builtin_fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* ig_tanh_f32: needs ig_expm1_f32 */
IG_FN float ig_tanh_f32(float x)
{
    float m = ig_expm1_f32(-2.0f * __builtin_fabsf(x));
    return __builtin_copysignf(-m / (2.0f + m), x);
}

/* ig_tanh_f64: needs ig_expm1_f64 */
IG_FN double ig_tanh_f64(double x)
{
    double m = ig_expm1_f64(-2.0 * __builtin_fabs(x));
    return __builtin_copysign(-m / (2.0 + m), x);
}

/* ig_sinh_f64: needs ig_expm1_f64, ig_exp_sum_f64 */
IG_FN double ig_sinh_f64(double x)
{
    double size = __builtin_fabs(x);
    double m = ig_expm1_f64(size);
    double small = 0.5 * (m + m / (m + 1.0));
    /* e^x / 2, which is finite a little further than e^x; for x below 1e-300 halving would lose a bit. */
    double big = ig_exp_sum_f64(size, 0.0, -1);
    double result = size < 22.0 ? small : big;
    return __builtin_copysign(size < 1e-9 ? size : result, x);
}

/* ig_sinh_f32: needs ig_sinh_f64 */
IG_FN float ig_sinh_f32(float x) { return (float)ig_sinh_f64(x); }

/* ig_cosh_f64: needs ig_exp_sum_f64 */
IG_FN double ig_cosh_f64(double x)
{
    double half = ig_exp_sum_f64(__builtin_fabs(x), 0.0, -1);
    return half + 0.25 / half;
}

/* ig_cosh_f32: needs ig_cosh_f64 */
IG_FN float ig_cosh_f32(float x) { return (float)ig_cosh_f64(x); }
