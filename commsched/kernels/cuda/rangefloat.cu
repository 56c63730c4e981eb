// Floats of few bits over a chosen range. Twins of `rangefloat.RangeFloat`.

#include "common.cuh"

KERNEL encode(const float *values, i64 n, int bits, int mantissa, int base, u16 *codes)
{
    for (i64 i = here(); i < n; i += stride())
        codes[i] = range_code(values[i], bits, mantissa, base);
}

KERNEL decode(const u16 *codes, i64 n, int bits, int mantissa, int base, float *values)
{
    for (i64 i = here(); i < n; i += stride())
        values[i] = range_value(codes[i], bits, mantissa, base);
}
