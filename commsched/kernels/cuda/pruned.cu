// SAMO's passes over kept values. Twins of `pruned`.

#include "common.cuh"

// Gather halves and add them where they are summed: one pass, nothing in between.
KERNEL gather_add(const u16 *gradient, const int *index, i64 n, u16 *packed)
{
    for (i64 i = here(); i < n; i += stride())
        packed[i] = (u16)half_of(float_of(packed[i]) + float_of(gradient[index[i]]));
}

// Scatter values as halves; what is pruned stays as it is.
KERNEL scatter(const float *values, const int *index, i64 n, u16 *half)
{
    for (i64 i = here(); i < n; i += stride())
        half[index[i]] = (u16)half_of(values[i]);
}

// Adam's step, in NumPy's order of operations; first_rest = 1 - first, first_share = 1 - first^t.
KERNEL adam(float *gradient, float *values, float *mean, float *square, i64 n, float divisor, float first,
            float first_rest, float first_share, float second, float second_rest, float second_share,
            float rate, float small)
{
    for (i64 i = here(); i < n; i += stride()) {
        float g = gradient[i] / divisor;
        float m = mean[i] * first + first_rest * g;
        float v = square[i] * second + second_rest * (g * g);
        float size = sqrtf(v / second_share) + small;
        gradient[i] = g;
        mean[i] = m;
        square[i] = v;
        values[i] = values[i] - rate * (m / first_share) / size;
    }
}
