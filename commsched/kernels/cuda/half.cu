// float32 to 16-bit floats and back. Twins of `half`.

#include "common.cuh"

__device__ u32 bf16(float value)
{
    u32 word = __float_as_uint(value);
    if ((word & 0x7fffffff) > INFINITE)
        return 0x7fc0;
    return (word + (word >> 16 & 1) + 0x7fff) >> 16;
}

__device__ float wide_bf16(u32 code) { return __uint_as_float(code << 16); }

template <u32 (*CODE)(float)> __device__ u32 two(float first, float second)
{
    return CODE(first) | CODE(second) << 16;
}

// Eight values at a time where both arrays are aligned for it.
template <u32 (*CODE)(float)> __device__ void narrow(const float *values, i64 n, u16 *out)
{
    i64 eights = (u64)values % 16 == 0 && (u64)out % 16 == 0 ? n / 8 : 0;
    for (i64 i = here(); i < eights; i += stride()) {
        float4 a = ((const float4 *)values)[2 * i], b = ((const float4 *)values)[2 * i + 1];
        ((uint4 *)out)[i] = make_uint4(two<CODE>(a.x, a.y), two<CODE>(a.z, a.w), two<CODE>(b.x, b.y), two<CODE>(b.z, b.w));
    }
    for (i64 i = 8 * eights + here(); i < n; i += stride())
        out[i] = CODE(values[i]);
}

// Four values at a time where both arrays are aligned for it.
template <float (*VALUE)(u32)> __device__ void widen(const u16 *codes, i64 n, int way, float *out)
{
    i64 fours = (u64)codes % 8 == 0 && (u64)out % 16 == 0 ? n / 4 : 0;
    for (i64 i = here(); i < fours; i += stride()) {
        ushort4 four = ((const ushort4 *)codes)[i];
        float4 values = make_float4(VALUE(four.x), VALUE(four.y), VALUE(four.z), VALUE(four.w));
        put_four((float4 *)out + i, values, way);
    }
    for (i64 i = 4 * fours + here(); i < n; i += stride())
        put_one(out + i, VALUE(codes[i]), way);
}

KERNEL to_fp16(const float *values, i64 n, u16 *out) { narrow<clamped_half>(values, n, out); }
KERNEL to_bf16(const float *values, i64 n, u16 *out) { narrow<bf16>(values, n, out); }
KERNEL from_fp16(const u16 *codes, i64 n, int way, float *out) { widen<float_of>(codes, n, way, out); }
KERNEL from_bf16(const u16 *codes, i64 n, int way, float *out) { widen<wide_bf16>(codes, n, way, out); }
