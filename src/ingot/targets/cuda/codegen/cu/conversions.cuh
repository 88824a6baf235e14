/* Between floats and halves by the device's own instructions: to nearest, ties to even; of every nan they make the same
 * one. The functions of these names in the math library are for machines that have no such instructions. */
#ifndef IG_EMULATED
/* Two at a time, of which one is 0: the instruction for a single one is a quarter as fast. */
IG_OPTIONAL uint16_t ig_f32_to_bf16(float x)
{
    uint32_t made;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(0.0f), "f"(x));
    return (uint16_t)made;
}
IG_OPTIONAL uint16_t ig_f32_to_f16(float x)
{
    uint16_t made;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made) : "f"(x));
    return made;
}
IG_OPTIONAL float ig_f16_to_f32(uint16_t x)
{
    float made;
    asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(x));
    return made;
}
/* Both halves at once is the fast instruction: x in the high one, and 0 in the low one, is the rounded float itself. */
IG_OPTIONAL float ig_as_bf16_f32(float x)
{
    union { uint32_t bits; float value; } made;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made.bits) : "f"(x), "f"(0.0f));
    return made.value;
}
#else
IG_OPTIONAL uint16_t ig_f32_to_bf16(float x) { return (uint16_t)ig_brain_bits(x); }
IG_OPTIONAL float ig_as_bf16_f32(float x)
{
    union { uint32_t bits; float value; } made = {(uint32_t)(uint16_t)ig_brain_bits(x) << 16};
    return made.value;
}
IG_OPTIONAL uint16_t ig_f32_to_f16(float x) { return x != x ? 0x7fff : (uint16_t)ig_half_bits(x); }
IG_OPTIONAL float ig_f16_to_f32(uint16_t x) { return ig_half_value(x); }
#endif
IG_OPTIONAL float ig_bf16_to_f32(uint16_t x)
{
    union { uint32_t bits; float value; } made = {(uint32_t)x << 16};
    return made.value;
}
IG_OPTIONAL float ig_as_f16_f32(float x) { return ig_f16_to_f32(ig_f32_to_f16(x)); }
