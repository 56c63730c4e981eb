// float32 to 8-bit floats, and back by a table. Twins of `eightbit.narrow` and `eightbit.look_up`.

#include "common.cuh"

// Round |x| scale to nearest even; mantissa: bits of it; nan: its code.
KERNEL narrow(const float *values, i64 n, float scale, int mantissa, int bias, float largest, int nan, u8 *out)
{
    float least = ldexpf(1.0f, 1 - bias), steps = ldexpf(1.0f, bias + mantissa - 1);
    int drop = 23 - mantissa;
    for (i64 i = here(); i < n; i += stride()) {
        u32 word = __float_as_uint(values[i]), code;
        float size = fminf(fabsf(values[i]) * scale, largest);
        if ((word & 0x7fffffff) >= INFINITE)
            code = nan;
        else if (size < least) // steps are even there
            code = (u32)rintf(size * steps);
        else {
            u32 bits = __float_as_uint(size);
            bits += (bits >> drop & 1) + (1u << (drop - 1)) - 1;
            code = (bits >> drop) - ((127u - bias) << mantissa);
        }
        out[i] = (u8)(code | (word >> 24 & 0x80));
    }
}

KERNEL look_up(const float *table, const u8 *codes, i64 n, int way, float *out)
{
    __shared__ float held[THREADS];
    held[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    for (i64 i = here(); i < n; i += stride())
        put_one(out + i, held[codes[i]], way);
}
