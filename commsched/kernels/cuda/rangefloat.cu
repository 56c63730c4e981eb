// Floats of few bits over a chosen range. Twins of `rangefloat.RangeFloat`.

#include "common.cuh"

// base: the cut word of the least number.
KERNEL encode(const float *values, i64 n, int bits, int mantissa, int base, u16 *codes)
{
    int top = (1 << (bits - 1)) - 1, shift = 23 - mantissa;
    for (i64 i = here(); i < n; i += stride()) {
        u32 word = __float_as_uint(values[i]), size = word & 0x7fffffff;
        int code = (int)((size + (1u << (shift - 1))) >> shift) - (base - 1);
        code = code < 0 ? 0 : code > top ? top : code;
        if (code)
            code |= (int)(word >> 31) << (bits - 1);
        codes[i] = (u16)(size > INFINITE ? 1 << (bits - 1) : code);
    }
}

KERNEL decode(const u16 *codes, i64 n, int bits, int mantissa, int base, float *values)
{
    u32 top = (1u << (bits - 1)) - 1;
    for (i64 i = here(); i < n; i += stride()) {
        u32 number = codes[i] & top, sign = codes[i] >> (bits - 1);
        u32 word = (number + base - 1) << (23 - mantissa) | sign << 31;
        u32 broken = sign ? 0x7fc00000 : 0;
        values[i] = __uint_as_float(number ? word : broken);
    }
}
