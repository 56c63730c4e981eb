// Narrow matrices spread to a wide one. Twin of `lowrank.spread`.

#include "common.cuh"

// Element i of the product of left (rows, rank) and the transpose of right (cols, rank).
__device__ float product(const float *left, const float *right, int rank, i64 cols, i64 i)
{
    const float *row = left + i / cols * rank, *column = right + i % cols * rank;
    float sum = row[0] * column[0];
    for (int k = 1; k < rank; k++)
        sum += row[k] * column[k];
    return sum;
}

KERNEL spread(const float *left, const float *right, int rank, i64 cols, i64 n, float *out)
{
    for (i64 i = here(); i < n; i += stride())
        out[i] = product(left, right, rank, cols, i);
}

KERNEL subtract(const float *left, const float *right, int rank, i64 cols, i64 n, const float *values, float *out)
{
    for (i64 i = here(); i < n; i += stride())
        out[i] = values[i] - product(left, right, rank, cols, i);
}
