// Values that are added to others, or taken off them. Twin of `ways.put`.

#include "common.cuh"

// Four values at a time where both arrays are aligned for it.
KERNEL put(const float *values, i64 n, int way, float *out)
{
    i64 fours = (u64)values % 16 == 0 && (u64)out % 16 == 0 ? n / 4 : 0;
    for (i64 i = here(); i < fours; i += stride())
        put_four((float4 *)out + i, ((const float4 *)values)[i], way);
    for (i64 i = 4 * fours + here(); i < n; i += stride())
        put_one(out + i, values[i], way);
}

// The same with rows of values (m, width) for those of `out` (n, width) at distinct indices.
template <class INDEX>
__device__ void put_rows(const INDEX *index, const float *values, i64 m, i64 width, int way, float *out)
{
    for (i64 i = here(); i < m * width; i += stride())
        put_one(out + (width == 1 ? (i64)index[i] : index[i / width] * width + i % width), values[i], way);
}

KERNEL put_at_int32(const int *index, const float *values, i64 m, i64 width, int way, float *out)
{
    put_rows(index, values, m, width, way, out);
}

KERNEL put_at_int64(const i64 *index, const float *values, i64 m, i64 width, int way, float *out)
{
    put_rows(index, values, m, width, way, out);
}
