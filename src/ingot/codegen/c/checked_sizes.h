/* Sizes of a call: where one cannot be computed, *over becomes 1 and the result is of no use. */
IG_OPTIONAL int64_t ig_checked_add(int64_t a, int64_t b, int *over)
{
    int64_t sum;
    *over |= __builtin_add_overflow(a, b, &sum);
    return sum;
}
IG_OPTIONAL int64_t ig_checked_mul(int64_t a, int64_t b, int *over)
{
    int64_t product;
    *over |= __builtin_mul_overflow(a, b, &product);
    return product;
}
IG_OPTIONAL int64_t ig_checked_div(int64_t a, int64_t b, int *over)
{
    *over |= b == 0;
    return b == 0 ? 0 : b == -1 ? ig_checked_mul(a, b, over) : ig_floor_div(a, b);
}
IG_OPTIONAL int64_t ig_checked_mod(int64_t a, int64_t b, int *over)
{
    *over |= b == 0;
    return b == 0 || b == -1 ? 0 : ig_floor_mod(a, b);
}
/* More bytes than any machine addresses; see codegen/checked_sizes.py. */
#define IG_MOST_BYTES (INT64_C(1) << 56)
