// Random numbers by their counter. Twin of `random.Dither.next`.

#include "common.cuh"

// `done`: number of the first word of this piece; low, high: the key.
KERNEL dither(i64 n, u32 done, u32 low, u32 high, int *out)
{
    for (i64 i = here(); i < n; i += stride())
        out[i] = dithered((u32)i, (u32)n, done, low, high);
}
