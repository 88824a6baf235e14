/* Math of generated code, 7 of 7: integers.
 *
 * A divisor of 0 sets *status to 5 (ZERO_DIVISION), which nothing here clears, and gives 0. The smallest number divided
 * by -1 wraps around, as sums do. No branch, no trap.
 */

/* ig_truncdiv_i8: needs nothing */
IG_FN int8_t ig_truncdiv_i8(int8_t a, int8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int8_t divisor = b == 0 || b == -1 ? 1 : b;
    int8_t quotient = (int8_t)(a / divisor);
    quotient = b == -1 ? (int8_t)(0u - (uint8_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_floordiv_i8: needs nothing */
IG_FN int8_t ig_floordiv_i8(int8_t a, int8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int8_t divisor = b == 0 || b == -1 ? 1 : b;
    int8_t quotient = (int8_t)(a / divisor), rest = (int8_t)(a % divisor);
    quotient = (int8_t)(quotient - (rest != 0 && (rest < 0) != (divisor < 0)));
    quotient = b == -1 ? (int8_t)(0u - (uint8_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_truncmod_i8: needs nothing
   The sign of a. */
IG_FN int8_t ig_truncmod_i8(int8_t a, int8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int8_t divisor = b == 0 || b == -1 ? 1 : b;
    return (int8_t)(a % divisor);
}

/* ig_remainder_i8: needs nothing
   The sign of b. */
IG_FN int8_t ig_remainder_i8(int8_t a, int8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int8_t divisor = b == 0 || b == -1 ? 1 : b;
    int8_t rest = (int8_t)(a % divisor);
    return (int8_t)(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
}

/* ig_pow_i8: needs nothing
   Modulo 2^8; a negative exponent gives 0 unless base is 1 or -1. */
IG_FN int8_t ig_pow_i8(int8_t base, int8_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 7; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    /* Of a negative exponent only 1 and -1 leave more than 0. */
    int8_t below = base == 1 ? 1 : (base == -1 ? (exponent & 1 ? -1 : 1) : 0);
    return exponent < 0 ? below : (int8_t)result;
}

/* ig_truncdiv_i16: needs nothing */
IG_FN int16_t ig_truncdiv_i16(int16_t a, int16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int16_t divisor = b == 0 || b == -1 ? 1 : b;
    int16_t quotient = (int16_t)(a / divisor);
    quotient = b == -1 ? (int16_t)(0u - (uint16_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_floordiv_i16: needs nothing */
IG_FN int16_t ig_floordiv_i16(int16_t a, int16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int16_t divisor = b == 0 || b == -1 ? 1 : b;
    int16_t quotient = (int16_t)(a / divisor), rest = (int16_t)(a % divisor);
    quotient = (int16_t)(quotient - (rest != 0 && (rest < 0) != (divisor < 0)));
    quotient = b == -1 ? (int16_t)(0u - (uint16_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_truncmod_i16: needs nothing
   The sign of a. */
IG_FN int16_t ig_truncmod_i16(int16_t a, int16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int16_t divisor = b == 0 || b == -1 ? 1 : b;
    return (int16_t)(a % divisor);
}

/* ig_remainder_i16: needs nothing
   The sign of b. */
IG_FN int16_t ig_remainder_i16(int16_t a, int16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int16_t divisor = b == 0 || b == -1 ? 1 : b;
    int16_t rest = (int16_t)(a % divisor);
    return (int16_t)(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
}

/* ig_pow_i16: needs nothing
   Modulo 2^16; a negative exponent gives 0 unless base is 1 or -1. */
IG_FN int16_t ig_pow_i16(int16_t base, int16_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 15; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    /* Of a negative exponent only 1 and -1 leave more than 0. */
    int16_t below = base == 1 ? 1 : (base == -1 ? (exponent & 1 ? -1 : 1) : 0);
    return exponent < 0 ? below : (int16_t)result;
}

/* ig_truncdiv_i32: needs nothing */
IG_FN int32_t ig_truncdiv_i32(int32_t a, int32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int32_t divisor = b == 0 || b == -1 ? 1 : b;
    int32_t quotient = (int32_t)(a / divisor);
    quotient = b == -1 ? (int32_t)(0u - (uint32_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_floordiv_i32: needs nothing */
IG_FN int32_t ig_floordiv_i32(int32_t a, int32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int32_t divisor = b == 0 || b == -1 ? 1 : b;
    int32_t quotient = (int32_t)(a / divisor), rest = (int32_t)(a % divisor);
    quotient = (int32_t)(quotient - (rest != 0 && (rest < 0) != (divisor < 0)));
    quotient = b == -1 ? (int32_t)(0u - (uint32_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_truncmod_i32: needs nothing
   The sign of a. */
IG_FN int32_t ig_truncmod_i32(int32_t a, int32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int32_t divisor = b == 0 || b == -1 ? 1 : b;
    return (int32_t)(a % divisor);
}

/* ig_remainder_i32: needs nothing
   The sign of b. */
IG_FN int32_t ig_remainder_i32(int32_t a, int32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int32_t divisor = b == 0 || b == -1 ? 1 : b;
    int32_t rest = (int32_t)(a % divisor);
    return (int32_t)(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
}

/* ig_pow_i32: needs nothing
   Modulo 2^32; a negative exponent gives 0 unless base is 1 or -1. */
IG_FN int32_t ig_pow_i32(int32_t base, int32_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 31; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    /* Of a negative exponent only 1 and -1 leave more than 0. */
    int32_t below = base == 1 ? 1 : (base == -1 ? (exponent & 1 ? -1 : 1) : 0);
    return exponent < 0 ? below : (int32_t)result;
}

/* ig_truncdiv_i64: needs nothing */
IG_FN int64_t ig_truncdiv_i64(int64_t a, int64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int64_t divisor = b == 0 || b == -1 ? 1 : b;
    int64_t quotient = (int64_t)(a / divisor);
    quotient = b == -1 ? (int64_t)(0u - (uint64_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_floordiv_i64: needs nothing */
IG_FN int64_t ig_floordiv_i64(int64_t a, int64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int64_t divisor = b == 0 || b == -1 ? 1 : b;
    int64_t quotient = (int64_t)(a / divisor), rest = (int64_t)(a % divisor);
    quotient = (int64_t)(quotient - (rest != 0 && (rest < 0) != (divisor < 0)));
    quotient = b == -1 ? (int64_t)(0u - (uint64_t)a) : quotient;
    return b == 0 ? 0 : quotient;
}

/* ig_truncmod_i64: needs nothing
   The sign of a. */
IG_FN int64_t ig_truncmod_i64(int64_t a, int64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int64_t divisor = b == 0 || b == -1 ? 1 : b;
    return (int64_t)(a % divisor);
}

/* ig_remainder_i64: needs nothing
   The sign of b. */
IG_FN int64_t ig_remainder_i64(int64_t a, int64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    int64_t divisor = b == 0 || b == -1 ? 1 : b;
    int64_t rest = (int64_t)(a % divisor);
    return (int64_t)(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
}

/* ig_pow_i64: needs nothing
   Modulo 2^64; a negative exponent gives 0 unless base is 1 or -1. */
IG_FN int64_t ig_pow_i64(int64_t base, int64_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 63; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    /* Of a negative exponent only 1 and -1 leave more than 0. */
    int64_t below = base == 1 ? 1 : (base == -1 ? (exponent & 1 ? -1 : 1) : 0);
    return exponent < 0 ? below : (int64_t)result;
}

/* ig_truncdiv_u8: needs nothing */
IG_FN uint8_t ig_truncdiv_u8(uint8_t a, uint8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint8_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint8_t)(a / divisor);
}

/* ig_floordiv_u8: needs nothing */
IG_FN uint8_t ig_floordiv_u8(uint8_t a, uint8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint8_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint8_t)(a / divisor);
}

/* ig_truncmod_u8: needs nothing */
IG_FN uint8_t ig_truncmod_u8(uint8_t a, uint8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint8_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint8_t)(a % divisor);
}

/* ig_remainder_u8: needs nothing */
IG_FN uint8_t ig_remainder_u8(uint8_t a, uint8_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint8_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint8_t)(a % divisor);
}

/* ig_pow_u8: needs nothing
   Modulo 2^8. */
IG_FN uint8_t ig_pow_u8(uint8_t base, uint8_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 8; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    return (uint8_t)result;
}

/* ig_truncdiv_u16: needs nothing */
IG_FN uint16_t ig_truncdiv_u16(uint16_t a, uint16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint16_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint16_t)(a / divisor);
}

/* ig_floordiv_u16: needs nothing */
IG_FN uint16_t ig_floordiv_u16(uint16_t a, uint16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint16_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint16_t)(a / divisor);
}

/* ig_truncmod_u16: needs nothing */
IG_FN uint16_t ig_truncmod_u16(uint16_t a, uint16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint16_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint16_t)(a % divisor);
}

/* ig_remainder_u16: needs nothing */
IG_FN uint16_t ig_remainder_u16(uint16_t a, uint16_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint16_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint16_t)(a % divisor);
}

/* ig_pow_u16: needs nothing
   Modulo 2^16. */
IG_FN uint16_t ig_pow_u16(uint16_t base, uint16_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 16; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    return (uint16_t)result;
}

/* ig_truncdiv_u32: needs nothing */
IG_FN uint32_t ig_truncdiv_u32(uint32_t a, uint32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint32_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint32_t)(a / divisor);
}

/* ig_floordiv_u32: needs nothing */
IG_FN uint32_t ig_floordiv_u32(uint32_t a, uint32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint32_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint32_t)(a / divisor);
}

/* ig_truncmod_u32: needs nothing */
IG_FN uint32_t ig_truncmod_u32(uint32_t a, uint32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint32_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint32_t)(a % divisor);
}

/* ig_remainder_u32: needs nothing */
IG_FN uint32_t ig_remainder_u32(uint32_t a, uint32_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint32_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint32_t)(a % divisor);
}

/* ig_pow_u32: needs nothing
   Modulo 2^32. */
IG_FN uint32_t ig_pow_u32(uint32_t base, uint32_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 32; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    return (uint32_t)result;
}

/* ig_truncdiv_u64: needs nothing */
IG_FN uint64_t ig_truncdiv_u64(uint64_t a, uint64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint64_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint64_t)(a / divisor);
}

/* ig_floordiv_u64: needs nothing */
IG_FN uint64_t ig_floordiv_u64(uint64_t a, uint64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint64_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint64_t)(a / divisor);
}

/* ig_truncmod_u64: needs nothing */
IG_FN uint64_t ig_truncmod_u64(uint64_t a, uint64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint64_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint64_t)(a % divisor);
}

/* ig_remainder_u64: needs nothing */
IG_FN uint64_t ig_remainder_u64(uint64_t a, uint64_t b, int *status)
{
    *status = b == 0 ? 5 : *status;
    uint64_t divisor = b == 0 ? 1 : b;
    return b == 0 ? 0 : (uint64_t)(a % divisor);
}

/* ig_pow_u64: needs nothing
   Modulo 2^64. */
IG_FN uint64_t ig_pow_u64(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1, square = (uint64_t)base, left = (uint64_t)exponent;
    for (int bit = 0; bit < 64; bit++) {
        result *= left >> bit & 1u ? square : 1u;
        square *= square;
    }
    return (uint64_t)result;
}
