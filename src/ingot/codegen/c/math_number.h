/* Math of generated code, 6 of 7: conversions between types, floating division with remainder. */

/* ig_f32_to_bf16: needs ig_bits_f32
   To nearest, ties to even; a nan stays a nan. */
IG_FN uint16_t ig_f32_to_bf16(float x)
{
    uint32_t bits = ig_bits_f32(x);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)(x != x ? (bits >> 16 | 0x40u) : rounded);
}

/* ig_bf16_to_f32: needs ig_from_bits_f32 */
IG_FN float ig_bf16_to_f32(uint16_t x) { return ig_from_bits_f32((uint32_t)x << 16); }

/* ig_f32_to_f16: needs ig_bits_f32, ig_from_bits_f32
   To nearest, ties to even, denormals included; a nan stays a nan. */
IG_FN uint16_t ig_f32_to_f16(float x)
{
    uint32_t bits = ig_bits_f32(x), size = bits & 0x7fffffffu;
    /* A sum with 1/2 has the spacing of float16's denormals: the addition rounds. */
    uint32_t denormal = ig_bits_f32(ig_from_bits_f32(size) + 0.5f) - 0x3f000000u;
    /* Above that the exponent is moved by 112 and the lowest 13 bits are rounded away; a carry is the next exponent. */
    uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    uint32_t nan = (size >> 13 & 0x3ffu) | 0x7e00u;
    uint32_t small = size < 0x38800000u ? denormal : normal;
    uint32_t large = size > 0x7f800000u ? nan : 0x7c00u;
    return (uint16_t)((bits >> 16 & 0x8000u) | (size < 0x477ff000u ? small : large));
}

/* ig_f16_to_f32: needs ig_bits_f32, ig_from_bits_f32 */
IG_FN float ig_f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, size = (uint32_t)(x & 0x7fffu) << 13;
    uint32_t normal = size + 0x38000000u, special = size | 0x7f800000u;
    /* 2^-14·(1 + fraction) - 2^-14 is the denormal, exactly. */
    uint32_t denormal = ig_bits_f32(ig_from_bits_f32(size + 0x38800000u) - 0x1p-14f);
    uint32_t small = size < 0x800000u ? denormal : normal;
    return ig_from_bits_f32(sign | (size >= 0xf800000u ? special : small));
}

/* ig_as_bf16_f32: needs ig_bits_f32, ig_from_bits_f32
   The float that ig_bf16_to_f32(ig_f32_to_bf16(x)) is, but for the bits of a nan. */
IG_FN float ig_as_bf16_f32(float x)
{
    uint32_t bits = ig_bits_f32(x);
    float rounded = ig_from_bits_f32((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
    return x != x ? IG_NAN_F32 : rounded;
}

/* ig_as_f16_f32: needs ig_bits_f32, ig_from_bits_f32
   The float that ig_f16_to_f32(ig_f32_to_f16(x)) is, but for the bits of a nan. */
IG_FN float ig_as_f16_f32(float x)
{
    uint32_t bits = ig_bits_f32(x), size = bits & 0x7fffffffu;
    float magnitude = ig_from_bits_f32(size);
    float denormal = (magnitude + 0.5f) - 0.5f;
    float normal = ig_from_bits_f32((size + 0xfffu + (size >> 13 & 1u)) & 0xffffe000u);
    float finite = size < 0x38800000u ? denormal : normal;
    float rounded = size < 0x477ff000u ? finite : IG_INF_F32;
    return x != x ? x : ig_from_bits_f32(ig_bits_f32(rounded) | (bits & 0x80000000u));
}

/* ig_f64_to_bf16: needs ig_f32_to_bf16
   By way of float, as torch does: two roundings. */
IG_FN uint16_t ig_f64_to_bf16(double x) { return ig_f32_to_bf16((float)x); }

/* ig_f64_to_f16: needs ig_f32_to_f16
   By way of float, as torch does: two roundings. */
IG_FN uint16_t ig_f64_to_f16(double x) { return ig_f32_to_f16((float)x); }

/* ig_f32_to_i32: needs nothing
   Towards zero; the smallest int32 for nan and what does not fit, as x86 has it. */
IG_FN int32_t ig_f32_to_i32(float x)
{
    int fits = (x >= -0x1p31f) & (x < 0x1p31f);
    int32_t whole = (int32_t)(fits ? x : 0.0f);
    return fits ? whole : INT32_MIN;
}

/* ig_f32_to_i64: needs nothing
   Towards zero; the smallest int64 for nan and what does not fit, as x86 has it. */
IG_FN int64_t ig_f32_to_i64(float x)
{
    int fits = (x >= -0x1p63f) & (x < 0x1p63f);
    int64_t whole = (int64_t)(fits ? x : 0.0f);
    return fits ? whole : INT64_MIN;
}

/* ig_round_to_int_f32: needs ig_bits_f32
   The nearest integer, ties to even, of a number between -2^22 and 2^22. */
IG_FN int32_t ig_round_to_int_f32(float x) { return (int32_t)(ig_bits_f32(x + 0x1.8p23f) - 0x4b400000u); }

/* ig_round_to_float_f32: needs nothing
   The same as a float. */
IG_FN float ig_round_to_float_f32(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

/* ig_f32_to_u64: needs nothing
   Towards zero, a negative integer modulo 2^64; 2^63 for nan and what does not fit. */
IG_FN uint64_t ig_f32_to_u64(float x)
{
    int high = x >= 0x1p63f;
    float low = high ? x - 0x1p63f : x;
    int fits = (low >= -0x1p63f) & (low < 0x1p63f);
    uint64_t whole = (uint64_t)(int64_t)(fits ? low : 0.0f);
    return fits ? whole ^ ((uint64_t)high << 63) : 0x8000000000000000u;
}

/* ig_f32_to_i8: needs ig_f32_to_i32
   Towards zero, then the lowest bits. */
IG_FN int8_t ig_f32_to_i8(float x) { return (int8_t)ig_f32_to_i32(x); }

/* ig_f32_to_i16: needs ig_f32_to_i32
   Towards zero, then the lowest bits. */
IG_FN int16_t ig_f32_to_i16(float x) { return (int16_t)ig_f32_to_i32(x); }

/* ig_f32_to_u8: needs ig_f32_to_i64
   Towards zero, then the lowest bits. */
IG_FN uint8_t ig_f32_to_u8(float x) { return (uint8_t)ig_f32_to_i64(x); }

/* ig_f32_to_u16: needs ig_f32_to_i64
   Towards zero, then the lowest bits. */
IG_FN uint16_t ig_f32_to_u16(float x) { return (uint16_t)ig_f32_to_i64(x); }

/* ig_f32_to_u32: needs ig_f32_to_i64
   Towards zero, then the lowest bits. */
IG_FN uint32_t ig_f32_to_u32(float x) { return (uint32_t)ig_f32_to_i64(x); }

/* ig_f64_to_i32: needs nothing
   Towards zero; the smallest int32 for nan and what does not fit, as x86 has it. */
IG_FN int32_t ig_f64_to_i32(double x)
{
    int fits = (x > -0x1.00000002p31) & (x < 0x1p31);
    int32_t whole = (int32_t)(fits ? x : 0.0);
    return fits ? whole : INT32_MIN;
}

/* ig_f64_to_i64: needs nothing
   Towards zero; the smallest int64 for nan and what does not fit, as x86 has it. */
IG_FN int64_t ig_f64_to_i64(double x)
{
    int fits = (x >= -0x1p63) & (x < 0x1p63);
    int64_t whole = (int64_t)(fits ? x : 0.0);
    return fits ? whole : INT64_MIN;
}

/* ig_f64_to_u64: needs nothing
   Towards zero, a negative integer modulo 2^64; 2^63 for nan and what does not fit. */
IG_FN uint64_t ig_f64_to_u64(double x)
{
    int high = x >= 0x1p63;
    double low = high ? x - 0x1p63 : x;
    int fits = (low >= -0x1p63) & (low < 0x1p63);
    uint64_t whole = (uint64_t)(int64_t)(fits ? low : 0.0);
    return fits ? whole ^ ((uint64_t)high << 63) : 0x8000000000000000u;
}

/* ig_through_i32_f32: needs ig_trunc_f32
   The float that (float)ig_f32_to_i32(x) is: 0.0 for -0.0, the smallest int32 for nan and what does not fit. */
IG_FN float ig_through_i32_f32(float x)
{
    int fits = (x >= -0x1p31f) & (x < 0x1p31f);
    return fits ? ig_trunc_f32(x) + 0.0f : -0x1p31f;
}

/* ig_through_i64_f32: needs ig_trunc_f32
   The float that (float)ig_f32_to_i64(x) is: 0.0 for -0.0, the smallest int64 for nan and what does not fit. */
IG_FN float ig_through_i64_f32(float x)
{
    int fits = (x >= -0x1p63f) & (x < 0x1p63f);
    return fits ? ig_trunc_f32(x) + 0.0f : -0x1p63f;
}

/* ig_through_i32_f64: needs ig_trunc_f64
   The double that (double)ig_f64_to_i32(x) is: 0.0 for -0.0, the smallest int32 for nan and what does not fit. */
IG_FN double ig_through_i32_f64(double x)
{
    int fits = (x > -0x1.00000002p31) & (x < 0x1p31);
    return fits ? ig_trunc_f64(x) + 0.0 : -0x1p31;
}

/* ig_through_i64_f64: needs ig_trunc_f64
   The double that (double)ig_f64_to_i64(x) is: 0.0 for -0.0, the smallest int64 for nan and what does not fit. */
IG_FN double ig_through_i64_f64(double x)
{
    int fits = (x >= -0x1p63) & (x < 0x1p63);
    return fits ? ig_trunc_f64(x) + 0.0 : -0x1p63;
}

/* ig_f64_to_i8: needs ig_f64_to_i32
   Towards zero, then the lowest bits. */
IG_FN int8_t ig_f64_to_i8(double x) { return (int8_t)ig_f64_to_i32(x); }

/* ig_f64_to_i16: needs ig_f64_to_i32
   Towards zero, then the lowest bits. */
IG_FN int16_t ig_f64_to_i16(double x) { return (int16_t)ig_f64_to_i32(x); }

/* ig_f64_to_u8: needs ig_f64_to_i64
   Towards zero, then the lowest bits. */
IG_FN uint8_t ig_f64_to_u8(double x) { return (uint8_t)ig_f64_to_i64(x); }

/* ig_f64_to_u16: needs ig_f64_to_i64
   Towards zero, then the lowest bits. */
IG_FN uint16_t ig_f64_to_u16(double x) { return (uint16_t)ig_f64_to_i64(x); }

/* ig_f64_to_u32: needs ig_f64_to_i64
   Towards zero, then the lowest bits. */
IG_FN uint32_t ig_f64_to_u32(double x) { return (uint32_t)ig_f64_to_i64(x); }

/* ig_scale_whole_f32: needs ig_ldexp_f32
   whole·2^(exponent - 150) for an integer below 2^24: a significand and the exponent of its spacing. */
IG_FN float ig_scale_whole_f32(uint64_t whole, int32_t exponent)
{
    return ig_ldexp_f32((float)whole, exponent - 150);
}

/* ig_scale_whole_f64: needs ig_ldexp_f64
   whole·2^(exponent - 1075) for an integer below 2^53: a significand and the exponent of its spacing. */
IG_FN double ig_scale_whole_f64(uint64_t whole, int32_t exponent)
{
    return ig_ldexp_f64((double)whole, exponent - 1075);
}

/* ig_fmod_f32: needs ig_bits_f32, ig_scale_whole_f32
   x - n·y exactly, n the quotient towards zero. Long division in integers, 40 bits a step: a loop over it does
   not vectorize. */
IG_SCALAR float ig_fmod_f32(float x, float y)
{
    uint32_t a = ig_bits_f32(x) & 0x7fffffffu, b = ig_bits_f32(y) & 0x7fffffffu;
    if (b == 0 || x != x || y != y || __builtin_fabsf(x) == IG_INF_F32)
        return IG_NAN_F32;
    if (a < b)
        return x;
    int32_t high = (int32_t)(a >> 23), low = (int32_t)(b >> 23);
    uint64_t rest = (a & 0x7fffffu) | (high ? 0x800000u : 0u);
    uint64_t unit = (b & 0x7fffffu) | (low ? 0x800000u : 0u);
    /* A denormal has the spacing of exponent 1. */
    int32_t shift = (high ? high : 1) - (low ? low : 1);
    rest %= unit;
    while (shift > 0) {
        int32_t step = shift < 40 ? shift : 40;
        rest = (rest << step) % unit;
        shift -= step;
    }
    return __builtin_copysignf(ig_scale_whole_f32(rest, low ? low : 1), x);
}

/* ig_remainder_f32: needs ig_fmod_f32
   x - floor(x / y)·y: the sign of y, as Python and torch have it. */
IG_SCALAR float ig_remainder_f32(float x, float y)
{
    float rest = ig_fmod_f32(x, y);
    return rest != 0.0f && (rest < 0.0f) != (y < 0.0f) ? rest + y : rest;
}

/* ig_floor_divide_f32: needs ig_fmod_f32, ig_floor_f32
   floor(x / y) of the exact quotient, as torch has it: x / y for a zero y. */
IG_SCALAR float ig_floor_divide_f32(float x, float y)
{
    if (y == 0.0f)
        return x / y;
    float rest = ig_fmod_f32(x, y);
    float quotient = (x - rest) / y;
    if (rest != 0.0f && (rest < 0.0f) != (y < 0.0f))
        quotient -= 1.0f;
    if (quotient == 0.0f)
        return __builtin_copysignf(0.0f, x / y);
    float whole = ig_floor_f32(quotient);
    return quotient - whole > 0.5f ? whole + 1.0f : whole;
}

/* ig_fmod_f64: needs ig_bits_f64, ig_scale_whole_f64
   x - n·y exactly, n the quotient towards zero. Long division in integers, 11 bits a step: a loop over it does
   not vectorize. */
IG_SCALAR double ig_fmod_f64(double x, double y)
{
    uint64_t a = ig_bits_f64(x) & 0x7fffffffffffffffu, b = ig_bits_f64(y) & 0x7fffffffffffffffu;
    if (b == 0 || x != x || y != y || __builtin_fabs(x) == IG_INF_F64)
        return IG_NAN_F64;
    if (a < b)
        return x;
    int32_t high = (int32_t)(a >> 52), low = (int32_t)(b >> 52);
    uint64_t rest = (a & 0xfffffffffffffu) | (high ? 0x10000000000000u : 0u);
    uint64_t unit = (b & 0xfffffffffffffu) | (low ? 0x10000000000000u : 0u);
    /* A denormal has the spacing of exponent 1. */
    int32_t shift = (high ? high : 1) - (low ? low : 1);
    rest %= unit;
    while (shift > 0) {
        int32_t step = shift < 11 ? shift : 11;
        rest = (rest << step) % unit;
        shift -= step;
    }
    return __builtin_copysign(ig_scale_whole_f64(rest, low ? low : 1), x);
}

/* ig_remainder_f64: needs ig_fmod_f64
   x - floor(x / y)·y: the sign of y, as Python and torch have it. */
IG_SCALAR double ig_remainder_f64(double x, double y)
{
    double rest = ig_fmod_f64(x, y);
    return rest != 0.0 && (rest < 0.0) != (y < 0.0) ? rest + y : rest;
}

/* ig_floor_divide_f64: needs ig_fmod_f64, ig_floor_f64
   floor(x / y) of the exact quotient, as torch has it: x / y for a zero y. */
IG_SCALAR double ig_floor_divide_f64(double x, double y)
{
    if (y == 0.0)
        return x / y;
    double rest = ig_fmod_f64(x, y);
    double quotient = (x - rest) / y;
    if (rest != 0.0 && (rest < 0.0) != (y < 0.0))
        quotient -= 1.0;
    if (quotient == 0.0)
        return __builtin_copysign(0.0, x / y);
    double whole = ig_floor_f64(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}
