/* Math of generated code, 5 of 7: error functions, gamma functions, Bessel functions. */

/* ig_erf_f32: needs ig_fma_f32, ig_exp_narrow_f32
   A polynomial below 1; from 1 on 1 - e^p, p near log(erfc), whose error counts little there. */
IG_FN float ig_erf_f32(float x)
{
    float size = __builtin_fabsf(x);
    float a = size > 4.0f ? 4.0f : size, z = a * a;
    /* poly near(z): erf_f32 */
    float near = 7.875875e-05f;
    near = ig_fma_f32(near, z, -0.00080168643f);
    near = ig_fma_f32(near, z, 0.0051890872f);
    near = ig_fma_f32(near, z, -0.026854211f);
    near = ig_fma_f32(near, z, 0.11283594f);
    near = ig_fma_f32(near, z, -0.37612626f);
    near = ig_fma_f32(near, z, 0.12837917f);
    /* end */
    /* poly tail(a): erf_f32_tail */
    float tail = 1.639938e-06f;
    tail = ig_fma_f32(tail, a, -4.6112913e-05f);
    tail = ig_fma_f32(tail, a, 0.00059726444f);
    tail = ig_fma_f32(tail, a, -0.0047617173f);
    tail = ig_fma_f32(tail, a, 0.026427044f);
    tail = ig_fma_f32(tail, a, -0.110090196f);
    tail = ig_fma_f32(tail, a, -0.6318157f);
    tail = ig_fma_f32(tail, a, -1.1302392f);
    tail = ig_fma_f32(tail, a, 0.00032147102f);
    /* end */
    float inner = ig_fma_f32(a, near, a), outer = 1.0f - ig_exp_narrow_f32(tail);
    return __builtin_copysignf(a < 1.0f ? inner : outer, x);
}

/* ig_erf_rest_f64: needs ig_fma_f64
   erf(x)/x - 1 for z = x² up to 1. */
IG_FN double ig_erf_rest_f64(double z)
{
    /* poly q(z): erf_f64 */
    double q = -4.230945824295338e-12;
    q = ig_fma_f64(q, z, 8.709045129053106e-11);
    q = ig_fma_f64(q, z, -1.216456005728345e-09);
    q = ig_fma_f64(q, z, 1.4792401209404813e-08);
    q = ig_fma_f64(q, z, -1.6364642158167616e-07);
    q = ig_fma_f64(q, z, 1.6462045441468418e-06);
    q = ig_fma_f64(q, z, -1.4925647567519332e-05);
    q = ig_fma_f64(q, z, 0.00012055332902888736);
    q = ig_fma_f64(q, z, -0.000854832702193483);
    q = ig_fma_f64(q, z, 0.0052239776254232985);
    q = ig_fma_f64(q, z, -0.02686617064512984);
    q = ig_fma_f64(q, z, 0.1128379167095512);
    q = ig_fma_f64(q, z, -0.37612638903183754);
    q = ig_fma_f64(q, z, 0.1283791670955126);
    /* end */
    return q;
}

/* ig_erfc_tail_f64: needs ig_fma_f64, ig_exp_sum_f64, ig_product_rest_f64
   erfc(a) for a from 0.5 on: e^(-a²), the square in two doubles, times a polynomial in a variable that goes from
   -0.78 to 0.76 as a goes from 0.5 to 28, where erfc has vanished. */
IG_FN double ig_erfc_tail_f64(double a)
{
    double bounded = a > 28.0 ? 28.0 : a;
    double square = bounded * bounded, square_rest = ig_product_rest_f64(bounded, bounded, square);
    double t = (bounded - 4.0) / (bounded + 4.0);
    /* poly q(t): erfcx_f64 */
    double q = 2.0848005137277172e-09;
    q = ig_fma_f64(q, t, -9.554151677556293e-09);
    q = ig_fma_f64(q, t, -1.8738290193279695e-08);
    q = ig_fma_f64(q, t, 1.0297359443843089e-07);
    q = ig_fma_f64(q, t, 7.582367825183789e-08);
    q = ig_fma_f64(q, t, -8.191589341551399e-07);
    q = ig_fma_f64(q, t, 2.9283349743905523e-07);
    q = ig_fma_f64(q, t, 5.706253605486592e-06);
    q = ig_fma_f64(q, t, -1.1221537377297103e-05);
    q = ig_fma_f64(q, t, -2.4397955606753217e-05);
    q = ig_fma_f64(q, t, 0.00015062151873458402);
    q = ig_fma_f64(q, t, -0.0001992569925681613);
    q = ig_fma_f64(q, t, -0.0007577732567716298);
    q = ig_fma_f64(q, t, 0.005031970023051904);
    q = ig_fma_f64(q, t, -0.01619773406181613);
    q = ig_fma_f64(q, t, 0.037167515533348405);
    q = ig_fma_f64(q, t, -0.06633036581191834);
    q = ig_fma_f64(q, t, 0.09373283499855864);
    q = ig_fma_f64(q, t, -0.10103906603631597);
    q = ig_fma_f64(q, t, 0.06809705425468784);
    q = ig_fma_f64(q, t, 0.015379652102619922);
    q = ig_fma_f64(q, t, -0.13962111684056247);
    q = ig_fma_f64(q, t, 1.2329951186255526);
    /* end */
    return ig_exp_sum_f64(-square, -square_rest, 0) * (q / (1.0 + 2.0 * bounded));
}

/* ig_erf_f64: needs ig_fma_f64, ig_erf_rest_f64, ig_erfc_tail_f64 */
IG_FN double ig_erf_f64(double x)
{
    double size = __builtin_fabs(x);
    double bounded = size > 1.0 ? 1.0 : size;
    double inner = ig_fma_f64(size, ig_erf_rest_f64(bounded * bounded), size), outer = 1.0 - ig_erfc_tail_f64(size);
    return __builtin_copysign(size < 1.0 ? inner : outer, x);
}

/* ig_erfc_f64: needs ig_erf_rest_f64, ig_erfc_tail_f64 */
IG_FN double ig_erfc_f64(double x)
{
    double size = __builtin_fabs(x);
    double bounded = size > 1.0 ? 1.0 : size;
    double inner = 1.0 - (x + x * ig_erf_rest_f64(bounded * bounded));
    double tail = ig_erfc_tail_f64(size < 0.5 ? 0.5 : size);
    double outer = x < 0.0 ? 2.0 - tail : tail;
    return size < 0.5 ? inner : outer;
}

/* ig_erfc_f32: needs ig_erfc_f64 */
IG_FN float ig_erfc_f32(float x) { return (float)ig_erfc_f64(x); }

/* ig_erfinv_f64: needs ig_fma_f64, ig_log_f64
   x times a function of w = -log(1 - x²), fitted in three pieces: the outer two in the square root of w. */
IG_FN double ig_erfinv_f64(double x)
{
    double size = __builtin_fabs(x);
    double w = -ig_log_f64((1.0 - size) * (1.0 + size));
    double root = __builtin_sqrt(w);
    double a = w - 3.0, b = root - 3.25, c = root - 5.0;
    /* poly center(a): erfinv_center */
    double center = -3.5932028927020693e-22;
    center = ig_fma_f64(center, a, 4.271976415946892e-21);
    center = ig_fma_f64(center, a, 9.260236440245803e-21);
    center = ig_fma_f64(center, a, -3.882808078468251e-19);
    center = ig_fma_f64(center, a, 1.5794739876801708e-18);
    center = ig_fma_f64(center, a, 1.2799526030460687e-17);
    center = ig_fma_f64(center, a, -1.5625642967364117e-16);
    center = ig_fma_f64(center, a, 2.7501787541728476e-16);
    center = ig_fma_f64(center, a, 6.2846166556431344e-15);
    center = ig_fma_f64(center, a, -5.293742357027627e-14);
    center = ig_fma_f64(center, a, 6.501475769357713e-15);
    center = ig_fma_f64(center, a, 2.6990055879349767e-12);
    center = ig_fma_f64(center, a, -1.732972340598266e-11);
    center = ig_fma_f64(center, a, -3.142568985008489e-11);
    center = ig_fma_f64(center, a, 1.1108003986199143e-09);
    center = ig_fma_f64(center, a, -5.467178678718833e-09);
    center = ig_fma_f64(center, a, -2.368873100585982e-08);
    center = ig_fma_f64(center, a, 4.499854250457933e-07);
    center = ig_fma_f64(center, a, -1.7480020922419747e-06);
    center = ig_fma_f64(center, a, -1.271642263841289e-05);
    center = ig_fma_f64(center, a, 0.00019506132441155687);
    center = ig_fma_f64(center, a, -0.0008361817769094228);
    center = ig_fma_f64(center, a, -0.005738135221005553);
    center = ig_fma_f64(center, a, 0.2416304041661583);
    center = ig_fma_f64(center, a, 1.6235420064648298);
    /* end */
    /* poly middle(b): erfinv_middle */
    double middle = -1.5203888688781036e-08;
    middle = ig_fma_f64(middle, b, 1.2624062807231153e-09);
    middle = ig_fma_f64(middle, b, 1.3128950060152076e-07);
    middle = ig_fma_f64(middle, b, -2.727160303751978e-07);
    middle = ig_fma_f64(middle, b, -2.7252622358771328e-08);
    middle = ig_fma_f64(middle, b, 1.5000933017864582e-06);
    middle = ig_fma_f64(middle, b, -3.985949578841803e-06);
    middle = ig_fma_f64(middle, b, 2.9249826523816672e-06);
    middle = ig_fma_f64(middle, b, 1.246512467501792e-05);
    middle = ig_fma_f64(middle, b, -4.731874979311099e-05);
    middle = ig_fma_f64(middle, b, 6.828709437700798e-05);
    middle = ig_fma_f64(middle, b, 2.4031214021786534e-05);
    middle = ig_fma_f64(middle, b, -0.0003550378105661784);
    middle = ig_fma_f64(middle, b, 0.0009532893681493988);
    middle = ig_fma_f64(middle, b, -0.0016882755356923275);
    middle = ig_fma_f64(middle, b, 0.0024914420967571027);
    middle = ig_fma_f64(middle, b, -0.003751208508216373);
    middle = ig_fma_f64(middle, b, 0.005370914553576055);
    middle = ig_fma_f64(middle, b, 1.0052589676941652);
    middle = ig_fma_f64(middle, b, 3.0838856104922208);
    /* end */
    /* poly tail(c): erfinv_tail */
    double tail = 4.015914664626289e-11;
    tail = ig_fma_f64(tail, c, -2.4648539073370462e-11);
    tail = ig_fma_f64(tail, c, -4.2589056673829746e-10);
    tail = ig_fma_f64(tail, c, 1.4973902302308813e-09);
    tail = ig_fma_f64(tail, c, -3.4920218350227513e-09);
    tail = ig_fma_f64(tail, c, 7.633096058306159e-09);
    tail = ig_fma_f64(tail, c, -1.5235621780497076e-08);
    tail = ig_fma_f64(tail, c, 2.9132610416718596e-08);
    tail = ig_fma_f64(tail, c, -6.756658357446221e-08);
    tail = ig_fma_f64(tail, c, 2.290123180545889e-07);
    tail = ig_fma_f64(tail, c, -9.930262475416618e-07);
    tail = ig_fma_f64(tail, c, 4.526060608965349e-06);
    tail = ig_fma_f64(tail, c, -1.9681771200464488e-05);
    tail = ig_fma_f64(tail, c, 7.599527728896147e-05);
    tail = ig_fma_f64(tail, c, -0.00021503011979221747);
    tail = ig_fma_f64(tail, c, -0.00013871931834907658);
    tail = ig_fma_f64(tail, c, 1.0103004648645446);
    tail = ig_fma_f64(tail, c, 4.849906401408584);
    /* end */
    double factor = w < 6.25 ? center : (root < 4.0 ? middle : tail);
    double result = size == 1.0 ? __builtin_copysign(IG_INF_F64, x) : x * factor;
    return size <= 1.0 ? result : IG_NAN_F64;
}

/* ig_erfinv_f32: needs ig_erfinv_f64 */
IG_FN float ig_erfinv_f32(float x) { return (float)ig_erfinv_f64(x); }

/* ig_lgamma_positive: needs ig_fma_f64, ig_log_f64
   log Γ(x) for x above 0. Branches: a loop over it does not vectorize. */
IG_SCALAR double ig_lgamma_positive(double x)
{
    if (x >= 8.0) {
        double z = 1.0 / (x * x);
        /* poly q(z): lgamma_rest */
        double q = -0.020855820837463117;
        q = ig_fma_f64(q, z, 0.0062081367662297935);
        q = ig_fma_f64(q, z, -0.001914965912162907);
        q = ig_fma_f64(q, z, 0.0008417325268022405);
        q = ig_fma_f64(q, z, -0.0005952380234291254);
        q = ig_fma_f64(q, z, 0.0007936507935117282);
        q = ig_fma_f64(q, z, -0.0027777777777776747);
        q = ig_fma_f64(q, z, 0.08333333333333333);
        /* end */
        double stirling = (x - 0.5) * (ig_log_f64(x) - 1.0) + (0.4189385332046728 + q / x);
        return x < 1e300 ? stirling : x * (ig_log_f64(x) - 1.0);
    }
    if (x < 0.5) {
        double t = x;
        /* poly q(t): lgamma_one */
        double q = -0.22513960340070077;
        q = ig_fma_f64(q, t, 0.23220268431813382);
        q = ig_fma_f64(q, t, 0.16833795110418884);
        q = ig_fma_f64(q, t, -0.17310581118613022);
        q = ig_fma_f64(q, t, -0.1534056152662979);
        q = ig_fma_f64(q, t, 0.15846766634774326);
        q = ig_fma_f64(q, t, -0.00448526260401244);
        q = ig_fma_f64(q, t, 0.005299145410064582);
        q = ig_fma_f64(q, t, -0.056639693222810615);
        q = ig_fma_f64(q, t, 0.05928878667667664);
        q = ig_fma_f64(q, t, -0.051177808935232966);
        q = ig_fma_f64(q, t, 0.054058776743014576);
        q = ig_fma_f64(q, t, -0.05898924031065733);
        q = ig_fma_f64(q, t, 0.0626711104727693);
        q = ig_fma_f64(q, t, -0.06665550719444033);
        q = ig_fma_f64(q, t, 0.07141935724662937);
        q = ig_fma_f64(q, t, -0.07693324338734527);
        q = ig_fma_f64(q, t, 0.08335458900295017);
        q = ig_fma_f64(q, t, -0.0909539905070961);
        q = ig_fma_f64(q, t, 0.10009943008747753);
        q = ig_fma_f64(q, t, -0.11133426648064039);
        q = ig_fma_f64(q, t, 0.12550967015385275);
        q = ig_fma_f64(q, t, -0.14404989676093186);
        q = ig_fma_f64(q, t, 0.16955717698926046);
        q = ig_fma_f64(q, t, -0.20738555102872175);
        q = ig_fma_f64(q, t, 0.2705808084278337);
        q = ig_fma_f64(q, t, -0.4006856343865313);
        q = ig_fma_f64(q, t, 0.8224670334241131);
        q = ig_fma_f64(q, t, -0.5772156649015329);
        /* end */
        return t * q - ig_log_f64(x);
    }
    if (x < 1.5) {
        double t = x - 1.0;
        /* poly q(t): lgamma_one */
        double q = -0.22513960340070077;
        q = ig_fma_f64(q, t, 0.23220268431813382);
        q = ig_fma_f64(q, t, 0.16833795110418884);
        q = ig_fma_f64(q, t, -0.17310581118613022);
        q = ig_fma_f64(q, t, -0.1534056152662979);
        q = ig_fma_f64(q, t, 0.15846766634774326);
        q = ig_fma_f64(q, t, -0.00448526260401244);
        q = ig_fma_f64(q, t, 0.005299145410064582);
        q = ig_fma_f64(q, t, -0.056639693222810615);
        q = ig_fma_f64(q, t, 0.05928878667667664);
        q = ig_fma_f64(q, t, -0.051177808935232966);
        q = ig_fma_f64(q, t, 0.054058776743014576);
        q = ig_fma_f64(q, t, -0.05898924031065733);
        q = ig_fma_f64(q, t, 0.0626711104727693);
        q = ig_fma_f64(q, t, -0.06665550719444033);
        q = ig_fma_f64(q, t, 0.07141935724662937);
        q = ig_fma_f64(q, t, -0.07693324338734527);
        q = ig_fma_f64(q, t, 0.08335458900295017);
        q = ig_fma_f64(q, t, -0.0909539905070961);
        q = ig_fma_f64(q, t, 0.10009943008747753);
        q = ig_fma_f64(q, t, -0.11133426648064039);
        q = ig_fma_f64(q, t, 0.12550967015385275);
        q = ig_fma_f64(q, t, -0.14404989676093186);
        q = ig_fma_f64(q, t, 0.16955717698926046);
        q = ig_fma_f64(q, t, -0.20738555102872175);
        q = ig_fma_f64(q, t, 0.2705808084278337);
        q = ig_fma_f64(q, t, -0.4006856343865313);
        q = ig_fma_f64(q, t, 0.8224670334241131);
        q = ig_fma_f64(q, t, -0.5772156649015329);
        /* end */
        return t * q + 0.0; /* not -0 at 1 */
    }
    double product = 1.0;
    while (x > 3.0) {
        x -= 1.0;
        product *= x;
    }
    double t = x - 2.0;
    /* poly q(t): lgamma_two */
    double q = 3.128546330715388e-10;
    q = ig_fma_f64(q, t, -2.5317840682215007e-09);
    q = ig_fma_f64(q, t, 9.641643145630568e-09);
    q = ig_fma_f64(q, t, -2.4292908348961975e-08);
    q = ig_fma_f64(q, t, 5.0297400098335534e-08);
    q = ig_fma_f64(q, t, -1.0123438317925032e-07);
    q = ig_fma_f64(q, t, 2.1105056481225418e-07);
    q = ig_fma_f64(q, t, -4.4839053621808377e-07);
    q = ig_fma_f64(q, t, 9.5520165428538e-07);
    q = ig_fma_f64(q, t, -2.0395006933611473e-06);
    q = ig_fma_f64(q, t, 4.374923397996977e-06);
    q = ig_fma_f64(q, t, -9.439440499307966e-06);
    q = ig_fma_f64(q, t, 2.0507195202221444e-05);
    q = ig_fma_f64(q, t, -4.492624096325781e-05);
    q = ig_fma_f64(q, t, 9.945751517388788e-05);
    q = ig_fma_f64(q, t, -0.00022315475828452692);
    q = ig_fma_f64(q, t, 0.0005096695245693555);
    q = ig_fma_f64(q, t, -0.0011927539117035553);
    q = ig_fma_f64(q, t, 0.002890510330748136);
    q = ig_fma_f64(q, t, -0.007385551028674139);
    q = ig_fma_f64(q, t, 0.020580808427784435);
    q = ig_fma_f64(q, t, -0.06735230105319809);
    q = ig_fma_f64(q, t, 0.3224670334241132);
    q = ig_fma_f64(q, t, 0.42278433509846713);
    /* end */
    return product == 1.0 ? t * q + 0.0 : ig_log_f64(product) + t * q;
}

/* ig_lgamma_f64: needs ig_lgamma_positive, ig_sin_f64, ig_log_f64, ig_round_f64
   log |Γ(x)|. Near its zeros between the negative integers the error is small beside 1, not beside the result.
   Branches. */
IG_SCALAR double ig_lgamma_f64(double x)
{
    double size = __builtin_fabs(x);
    if (x != x)
        return x;
    if (size == IG_INF_F64 || size == 0.0)
        return IG_INF_F64;
    if (x > 0.0)
        return ig_lgamma_positive(x);
    if (size < 1e-17)
        return -ig_log_f64(size);
    double sine = __builtin_fabs(ig_sin_f64(3.141592653589793 * (size - ig_round_f64(size))));
    if (sine == 0.0)
        return IG_INF_F64;
    return ig_log_f64(3.141592653589793 / (size * sine)) - ig_lgamma_positive(size);
}

/* ig_lgamma_f32: needs ig_lgamma_f64 */
IG_SCALAR float ig_lgamma_f32(float x) { return (float)ig_lgamma_f64(x); }

/* ig_digamma_positive: needs ig_fma_f64, ig_log_f64
   For x above 0. Branches. */
IG_SCALAR double ig_digamma_positive(double x)
{
    if (x >= 10.0) {
        double z = 1.0 / (x * x);
        /* poly q(z): digamma_rest */
        double q = -0.3421318584841549;
        q = ig_fma_f64(q, z, 0.0817924750293092);
        q = ig_fma_f64(q, z, -0.021080156991782954);
        q = ig_fma_f64(q, z, 0.007575699357598426);
        q = ig_fma_f64(q, z, -0.0041666665200247215);
        q = ig_fma_f64(q, z, 0.003968253968071808);
        q = ig_fma_f64(q, z, -0.008333333333333246);
        q = ig_fma_f64(q, z, 0.08333333333333333);
        /* end */
        return ig_log_f64(x) - (0.5 / x + z * q);
    }
    double sum = 0.0;
    if (x < 1.0) {
        sum = -1.0 / x;
        x += 1.0;
    }
    while (x > 2.0) {
        x -= 1.0;
        sum += 1.0 / x;
    }
    double t = x - 1.5;
    /* poly q(t): digamma_root */
    double q = -0.00017312261802727394;
    q = ig_fma_f64(q, t, 0.00025968482126430747);
    q = ig_fma_f64(q, t, -0.00015148586836773365);
    q = ig_fma_f64(q, t, 0.0002272331660987376);
    q = ig_fma_f64(q, t, -0.0004821990530566789);
    q = ig_fma_f64(q, t, 0.0007233266279287554);
    q = ig_fma_f64(q, t, -0.0010376374098418604);
    q = ig_fma_f64(q, t, 0.0015566317474486838);
    q = ig_fma_f64(q, t, -0.002345267632540769);
    q = ig_fma_f64(q, t, 0.003519006401502276);
    q = ig_fma_f64(q, t, -0.005279964873257405);
    q = ig_fma_f64(q, t, 0.007926944646403797);
    q = ig_fma_f64(q, t, -0.011908218001568644);
    q = ig_fma_f64(q, t, 0.0179072524394512);
    q = ig_fma_f64(q, t, -0.02697579675613825);
    q = ig_fma_f64(q, t, 0.04076083381242074);
    q = ig_fma_f64(q, t, -0.061922133273064534);
    q = ig_fma_f64(q, t, 0.09498872445494122);
    q = ig_fma_f64(q, t, -0.14840492305390884);
    q = ig_fma_f64(q, t, 0.2405424842407742);
    q = ig_fma_f64(q, t, -0.4236274212814605);
    q = ig_fma_f64(q, t, 0.951055876031833);
    /* end */
    return sum + ((x - 1.4616321449683622) - 9.549995429965697e-17) * q;
}

/* ig_digamma_f64: needs ig_digamma_positive, ig_tan_f64, ig_round_f64, ig_trunc_f64
   The derivative of log Γ; -inf at 0 and inf at -0, nan at the negative integers, as torch has it. Near its zeros
   below 0 the error is small beside 1, not beside the result. Branches. */
IG_SCALAR double ig_digamma_f64(double x)
{
    if (x == 0.0)
        return __builtin_copysign(IG_INF_F64, -x);
    if (x > 0.0)
        return x == IG_INF_F64 ? x : ig_digamma_positive(x);
    double size = -x;
    if (!(size < IG_INF_F64) || ig_trunc_f64(x) == x)
        return IG_NAN_F64;
    double r = size - ig_round_f64(size);
    double cotangent = 3.141592653589793 / ig_tan_f64(3.141592653589793 * r);
    return ig_digamma_positive(1.0 + size) + cotangent;
}

/* ig_digamma_f32: needs ig_digamma_f64 */
IG_SCALAR float ig_digamma_f32(float x) { return (float)ig_digamma_f64(x); }

/* ig_bessel_t: needs nothing */
typedef struct { double near, far; } ig_bessel_t;

/* ig_i0_pieces: needs ig_fma_f64, ig_bessel_t
   I0(a) for a up to 8; sqrt(a)·e^-a·I0(a) from there on. */
IG_FN ig_bessel_t ig_i0_pieces(double a)
{
    double inner = a > 8.0 ? 8.0 : a, z = 0.25 * inner * inner;
    double outer = a < 8.0 ? 8.0 : a, u = 1.0 / outer;
    /* poly near(z): i0_series */
    double near = 3.6454386812677436e-27;
    near = ig_fma_f64(near, z, 4.940670282542572e-25);
    near = ig_fma_f64(near, z, 1.35095827969477e-22);
    near = ig_fma_f64(near, z, 2.5698743857514957e-20);
    near = ig_fma_f64(near, z, 4.3600362269175774e-18);
    near = ig_fma_f64(near, z, 6.275862820937522e-16);
    near = ig_fma_f64(near, z, 7.594079950279469e-14);
    near = ig_fma_f64(near, z, 7.594056846699174e-12);
    near = ig_fma_f64(near, z, 6.151187413177668e-10);
    near = ig_fma_f64(near, z, 3.936759885673581e-08);
    near = ig_fma_f64(near, z, 1.9290123457790406e-06);
    near = ig_fma_f64(near, z, 6.944444444424399e-05);
    near = ig_fma_f64(near, z, 0.0017361111111113758);
    near = ig_fma_f64(near, z, 0.027777777777777565);
    near = ig_fma_f64(near, z, 0.2500000000000001);
    near = ig_fma_f64(near, z, 1.0);
    near = ig_fma_f64(near, z, 1.0);
    /* end */
    /* poly far(u): i0_tail */
    double far = -1.2093175131588962e+17;
    far = ig_fma_f64(far, u, 2.0204820888526637e+17);
    far = ig_fma_f64(far, u, -1.5487839725146112e+17);
    far = ig_fma_f64(far, u, 7.246343979800523e+16);
    far = ig_fma_f64(far, u, -2.3203933567318284e+16);
    far = ig_fma_f64(far, u, 5402031217298073.0);
    far = ig_fma_f64(far, u, -947878431034715.0);
    far = ig_fma_f64(far, u, 128248102415035.28);
    far = ig_fma_f64(far, u, -13577740942860.85);
    far = ig_fma_f64(far, u, 1135132321347.7825);
    far = ig_fma_f64(far, u, -75306215617.99652);
    far = ig_fma_f64(far, u, 3969485622.44403);
    far = ig_fma_f64(far, u, -165892645.24234018);
    far = ig_fma_f64(far, u, 5465863.43081806);
    far = ig_fma_f64(far, u, -140614.77777280737);
    far = ig_fma_f64(far, u, 2787.6956370148014);
    far = ig_fma_f64(far, u, -40.93431094584347);
    far = ig_fma_f64(far, u, 0.6847426928669226);
    far = ig_fma_f64(far, u, 0.08707432909917082);
    far = ig_fma_f64(far, u, 0.044760390090021265);
    far = ig_fma_f64(far, u, 0.02921934814004612);
    far = ig_fma_f64(far, u, 0.02805062918561777);
    far = ig_fma_f64(far, u, 0.04986778505011676);
    far = ig_fma_f64(far, u, 0.3989422804014327);
    /* end */
    ig_bessel_t pieces = {near, far};
    return pieces;
}

/* ig_i1_pieces: needs ig_fma_f64, ig_bessel_t
   I1(a) for a up to 8; sqrt(a)·e^-a·I1(a) from there on. */
IG_FN ig_bessel_t ig_i1_pieces(double a)
{
    double inner = a > 8.0 ? 8.0 : a, z = 0.25 * inner * inner;
    double outer = a < 8.0 ? 8.0 : a, u = 1.0 / outer;
    /* poly near(z): i1_series */
    double near = 2.0903513298308396e-28;
    near = ig_fma_f64(near, z, 3.1590697545594773e-26);
    near = ig_fma_f64(near, z, 8.963806609001204e-24);
    near = ig_fma_f64(near, z, 1.837156865691237e-21);
    near = ig_fma_f64(near, z, 3.3535043207335216e-19);
    near = ig_fma_f64(near, z, 5.22994881944532e-17);
    near = ig_fma_f64(near, z, 6.903701192957936e-15);
    near = ig_fma_f64(near, z, 7.594057567711265e-13);
    near = ig_fma_f64(near, z, 6.834652632309533e-11);
    near = ig_fma_f64(near, z, 4.920949859540306e-09);
    near = ig_fma_f64(near, z, 2.755731922452985e-07);
    near = ig_fma_f64(near, z, 1.1574074074063174e-05);
    near = ig_fma_f64(near, z, 0.0003472222222222366);
    near = ig_fma_f64(near, z, 0.006944444444444433);
    near = ig_fma_f64(near, z, 0.08333333333333334);
    near = ig_fma_f64(near, z, 0.5);
    near = ig_fma_f64(near, z, 1.0);
    /* end */
    /* poly far(u): i1_tail */
    double far = 1.1102722039051611e+17;
    far = ig_fma_f64(far, u, -1.8897760722634966e+17);
    far = ig_fma_f64(far, u, 1.469684483979098e+17);
    far = ig_fma_f64(far, u, -6.95597283439048e+16);
    far = ig_fma_f64(far, u, 2.248349575615929e+16);
    far = ig_fma_f64(far, u, -5274736741776454.0);
    far = ig_fma_f64(far, u, 931471598107034.6);
    far = ig_fma_f64(far, u, -126702308545742.62);
    far = ig_fma_f64(far, u, 13474276746939.729);
    far = ig_fma_f64(far, u, -1130739790243.708);
    far = ig_fma_f64(far, u, 75254387378.22566);
    far = ig_fma_f64(far, u, -3977488451.285284);
    far = ig_fma_f64(far, u, 166608891.05794835);
    far = ig_fma_f64(far, u, -5500173.738798334);
    far = ig_fma_f64(far, u, 141730.22790096246);
    far = ig_fma_f64(far, u, -2814.0537369678177);
    far = ig_fma_f64(far, u, 41.266486528741446);
    far = ig_fma_f64(far, u, -0.7315199095572249);
    far = ig_fma_f64(far, u, -0.1071649207714783);
    far = ig_fma_f64(far, u, -0.057544114847785224);
    far = ig_fma_f64(far, u, -0.04090710949559018);
    far = ig_fma_f64(far, u, -0.04675104858073598);
    far = ig_fma_f64(far, u, -0.14960335515047407);
    far = ig_fma_f64(far, u, 0.39894228040143265);
    /* end */
    ig_bessel_t pieces = {0.5 * inner * near, far};
    return pieces;
}

/* ig_bessel_grown: needs ig_exp_sum_f64, ig_bessel_t */
IG_FN double ig_bessel_grown(double a, ig_bessel_t pieces)
{
    /* e^a overflows before the result does. */
    double scaled = ig_exp_sum_f64(a, 0.0, -20);
    double far = scaled * (pieces.far / __builtin_sqrt(a)) * 0x1p20;
    far = a > 800.0 ? IG_INF_F64 : far;
    return a <= 8.0 ? pieces.near : far;
}

/* ig_bessel_scaled: needs ig_exp_sum_f64, ig_bessel_t */
IG_FN double ig_bessel_scaled(double a, ig_bessel_t pieces)
{
    return a <= 8.0 ? pieces.near * ig_exp_sum_f64(-a, 0.0, 0) : pieces.far / __builtin_sqrt(a);
}

/* ig_i0_f64: needs ig_i0_pieces, ig_bessel_grown */
IG_FN double ig_i0_f64(double x)
{
    double size = __builtin_fabs(x);
    return ig_bessel_grown(size, ig_i0_pieces(size));
}

/* ig_i0_f32: needs ig_i0_f64 */
IG_FN float ig_i0_f32(float x) { return (float)ig_i0_f64(x); }

/* ig_i0e_f64: needs ig_i0_pieces, ig_bessel_scaled
   e^-|x|·I0(x). */
IG_FN double ig_i0e_f64(double x)
{
    double size = __builtin_fabs(x);
    return ig_bessel_scaled(size, ig_i0_pieces(size));
}

/* ig_i0e_f32: needs ig_i0e_f64 */
IG_FN float ig_i0e_f32(float x) { return (float)ig_i0e_f64(x); }

/* ig_i1_f64: needs ig_i1_pieces, ig_bessel_grown */
IG_FN double ig_i1_f64(double x)
{
    double size = __builtin_fabs(x);
    return __builtin_copysign(ig_bessel_grown(size, ig_i1_pieces(size)), x);
}

/* ig_i1_f32: needs ig_i1_f64 */
IG_FN float ig_i1_f32(float x) { return (float)ig_i1_f64(x); }

/* ig_i1e_f64: needs ig_i1_pieces, ig_bessel_scaled
   e^-|x|·I1(x). */
IG_FN double ig_i1e_f64(double x)
{
    double size = __builtin_fabs(x);
    return __builtin_copysign(ig_bessel_scaled(size, ig_i1_pieces(size)), x);
}

/* ig_i1e_f32: needs ig_i1e_f64 */
IG_FN float ig_i1e_f32(float x) { return (float)ig_i1e_f64(x); }
