/* Functions for results that are rounded to bfloat16: their errors are a small part of that rounding's. */

/* 1 + erf(x), to 2e-6 of itself down to x = -4: 2^p(|x|) is 1 - erf(|x|), for a polynomial p that goes on to -inf. */
static inline float ig_erf_plus_one(float x)
{
    const float a = __builtin_fabsf(x);
    float p = -1.5561496e-05f;
    p = __builtin_fmaf(p, a, 0.00018611531f);
    p = __builtin_fmaf(p, a, -0.00059430976f);
    p = __builtin_fmaf(p, a, -0.0023420928f);
    p = __builtin_fmaf(p, a, 0.029731274f);
    p = __builtin_fmaf(p, a, -0.14921169f);
    p = __builtin_fmaf(p, a, -0.9182487f);
    p = __builtin_fmaf(p, a, -1.6279213f);
    const float rest = ig_exp2_fast(p * a);
    return x < 0.0f ? rest : 2.0f - rest;
}

/* 1 / (1 + e^-x) to 1e-5 of itself; what is smaller than the smallest normal number is 0. */
static inline float ig_sigmoid_near(float x)
{
    const float all = 1.0f + ig_exp2_fast(-1.44269504f * x);
#ifdef IG_EMULATED
    return 1.0f / all;
#else
    float made;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(all));
    return made;
#endif
}
