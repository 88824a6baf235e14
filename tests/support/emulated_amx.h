/* AMX in C, for machines without it: gcc -include tests/support/emulated_amx.h. It takes the place of the instructions in
   targets/cpu/codegen/c/amx.h, does what Intel's manual says that each of them does, and ends the process where the
   processor would refuse one. With IG_AMX_DENIED the process may not use it. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IG_AMX
#ifdef IG_AMX_DENIED
#define IG_AMX_ALLOWED() 0
#else
#define IG_AMX_ALLOWED() 1
#endif
#define IG_AMX_CONFIGURE(shape) emulated_configure(shape)
#define IG_AMX_RELEASE() memset(&emulated, 0, sizeof emulated)
#define IG_AMX_ZERO(t) emulated_zero(t)
#define IG_AMX_LOAD(t, from, step) emulated_load(t, (const char *)(from), step)
#define IG_AMX_STORE(t, to, step) emulated_store(t, (char *)(to), step)
#define IG_AMX_DOT_bf16(sum, row, line) emulated_dot_bf16(sum, row, line)
#define IG_AMX_DOT_u8(sum, row, line) emulated_dot_u8(sum, row, line)

enum { EMULATED_ROWS = 16, EMULATED_BYTES = 64 };
static _Thread_local struct {
    int palette;
    int rows[8], bytes[8];
    _Alignas(64) unsigned char data[8][EMULATED_ROWS][EMULATED_BYTES];
} emulated;

__attribute__((unused)) static void emulated_demand(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

__attribute__((unused)) static void emulated_configure(const void *shape)
{
    const unsigned char *const given = shape;
    memset(&emulated, 0, sizeof emulated);
    emulated_demand(given[0] == 1 && given[1] == 0, "the palette is not 1, or the first row not 0");
    for (int i = 2; i < 16; ++i) emulated_demand(given[i] == 0, "reserved bytes are not 0");
    for (int t = 0; t < 16; ++t) {
        const int bytes = given[16 + 2 * t] | given[17 + 2 * t] << 8, rows = given[48 + t];
        emulated_demand(!rows == !bytes && rows <= EMULATED_ROWS && bytes <= EMULATED_BYTES, "no such shape");
        emulated_demand(t < 8 || !rows, "no such register");
        if (t < 8) emulated.rows[t] = rows, emulated.bytes[t] = bytes;
    }
    emulated.palette = 1;
}

__attribute__((unused)) static void emulated_ready(int t)
{
    emulated_demand(emulated.palette == 1, "no shapes");
    emulated_demand(emulated.rows[t] > 0, "a register without a shape");
}

__attribute__((unused)) static void emulated_zero(int t)
{
    emulated_ready(t);
    memset(emulated.data[t], 0, sizeof emulated.data[t]);
}

__attribute__((unused)) static void emulated_load(int t, const char *from, int64_t step)
{
    emulated_ready(t);
    memset(emulated.data[t], 0, sizeof emulated.data[t]);
    for (int i = 0; i < emulated.rows[t]; ++i)
        memcpy(emulated.data[t][i], from + i * step, (size_t)emulated.bytes[t]);
}

__attribute__((unused)) static void emulated_store(int t, char *to, int64_t step)
{
    emulated_ready(t);
    for (int i = 0; i < emulated.rows[t]; ++i)
        memcpy(to + i * step, emulated.data[t][i], (size_t)emulated.bytes[t]);
}

__attribute__((unused)) static void emulated_match(int sum, int row, int line)
{
    emulated_ready(sum), emulated_ready(row), emulated_ready(line);
    emulated_demand(sum != row && sum != line && row != line, "one register twice");
    emulated_demand(emulated.bytes[sum] % 4 == 0 && emulated.bytes[row] % 4 == 0, "bytes that are not groups of four");
    emulated_demand(emulated.rows[sum] == emulated.rows[row], "other rows than the sums have");
    emulated_demand(emulated.bytes[sum] == emulated.bytes[line], "other columns than the sums have");
    emulated_demand(emulated.bytes[row] / 4 == emulated.rows[line], "other terms in rows than in columns");
}

/* A bfloat16 as a float, a subnormal one as 0. */
__attribute__((unused)) static float emulated_bf16(uint32_t bits)
{
    float value;
    bits = bits & 0x7f80 ? bits << 16 : (bits & 0x8000) << 16;
    memcpy(&value, &bits, 4);
    return value;
}

__attribute__((unused)) static float emulated_flush(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (!(bits & 0x7f800000)) bits &= 0x80000000;
    memcpy(&x, &bits, 4);
    return x;
}

/* The earlier terms of all pairs, and the later ones, are summed by themselves, then both, then with what there was. */
__attribute__((unused)) static void emulated_dot_bf16(int sum, int row, int line)
{
    emulated_match(sum, row, line);
    for (int m = 0; m < emulated.rows[sum]; ++m) {
        float both[2][16] = {{0}};
        for (int k = 0; k < emulated.bytes[row] / 4; ++k)
            for (int part = 0; part < 2; ++part) {
                const unsigned char *const x = &emulated.data[row][m][4 * k + 2 * part];
                const float value = emulated_bf16((uint32_t)x[0] | (uint32_t)x[1] << 8);
                for (int n = 0; n < emulated.bytes[sum] / 4; ++n) {
                    const unsigned char *const y = &emulated.data[line][k][4 * n + 2 * part];
                    const float weight = emulated_bf16((uint32_t)y[0] | (uint32_t)y[1] << 8);
                    both[part][n] = emulated_flush(__builtin_fmaf(value, weight, both[part][n]));
                }
            }
        for (int n = 0; n < emulated.bytes[sum] / 4; ++n) {
            float before;
            memcpy(&before, &emulated.data[sum][m][4 * n], 4);
            before = emulated_flush(emulated_flush(before) + emulated_flush(both[0][n] + both[1][n]));
            memcpy(&emulated.data[sum][m][4 * n], &before, 4);
        }
    }
}

/* Rows without a sign, columns with one; sums wrap around. */
__attribute__((unused)) static void emulated_dot_u8(int sum, int row, int line)
{
    emulated_match(sum, row, line);
    for (int m = 0; m < emulated.rows[sum]; ++m)
        for (int n = 0; n < emulated.bytes[sum] / 4; ++n) {
            uint32_t total;
            memcpy(&total, &emulated.data[sum][m][4 * n], 4);
            for (int k = 0; k < emulated.bytes[row] / 4; ++k)
                for (int part = 0; part < 4; ++part)
                    total += (uint32_t)((int)emulated.data[row][m][4 * k + part] *
                                        (int)(signed char)emulated.data[line][k][4 * n + part]);
            memcpy(&emulated.data[sum][m][4 * n], &total, 4);
        }
}
