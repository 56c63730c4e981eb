// Block quantisers: a block of values is read once; scales and packed codes are written. Twins of
// `Quant` and `Levels` with `Steps` and `Dither`: what they compute in several passes is one here.

#include "common.cuh"

#define MOST 2048      // values of a block
#define PIECE (1 << 16) // values that share planes of bits and pairs of random numbers
#define UNITS 65536.0
#define PART 0.25       // of a step that travels, see `codecs.quant`
#define LARGEST 3.4028234663852886e38
#define BROKEN 0x7fc00000u // the word of NaN in packets

// Where a value lies: its piece of the run, as `Blockwise` cuts it, and its place there.
struct Place {
    i64 first, count, at;
};

__device__ Place place_of(i64 at, i64 n, int block)
{
    i64 full = n / block * block, first = at < full ? at / PIECE * PIECE : full;
    i64 end = at >= full ? n : first + PIECE < full ? first + PIECE : full;
    return {first, end - first, at - first};
}

// The larger one, or NaN.
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }

// The largest over the block, or NaN.
__device__ float largest(float x)
{
    __shared__ float warps[WARPS];
    for (int step = 16; step; step /= 2)
        x = larger(x, __shfl_xor_sync(ALL, x, step));
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        x = larger(x, warps[w]);
    __syncthreads(); // the next call may write `warps`
    return x;
}

// A random choice of the step above or below, or the nearest step.
struct Rounding {
    int lift; // units, half a step included where nothing is drawn
    int random;
    u32 low, high;
};

// Round the block's values, (x - base) factor units each, and pack their codes.
__device__ void write_codes(const float *held, int width, i64 first, i64 n, int block, int bits, float base,
                            float factor, Rounding how, u8 *codes)
{
    for (int eight = 8 * threadIdx.x; eight < width; eight += 8 * THREADS) {
        Place place = place_of(first + eight, n, block);
        u32 mine[8];
        for (int k = 0; k < 8; k++) {
            mine[k] = 0;
            if (eight + k >= width || factor != factor)
                continue;
            int units = (int)((held[eight + k] - base) * factor) + how.lift;
            if (how.random)
                units += dithered(place.at + k, place.count, (u32)(place.first / 2), how.low, how.high);
            mine[k] = (u32)(units >> 16) & 0xff;
        }
        pack_eight(mine, place.at, place.count, bits, codes + place.first * bits / 8);
    }
}

// Even steps from a block's least to its largest value; share: of the spread that is a step.
KERNEL quant(const float *values, i64 n, int block, int bits, double share, int random, u32 low, u32 high,
             float *scales, u8 *codes)
{
    __shared__ float held[MOST], base, factor, part;
    i64 first = (i64)blockIdx.x * block;
    int width = n - first < block ? (int)(n - first) : block;
    float least = -__uint_as_float(INFINITE), most = least; // of -x, of x
    for (int i = threadIdx.x; i < width; i += THREADS) {
        held[i] = values[first + i];
        least = larger(least, -held[i]);
        most = larger(most, held[i]);
    }
    least = 0.0f - largest(least); // zero without a sign
    most = largest(most);
    if (threadIdx.x == 0) {
        double spread = (double)most - (double)least, step = spread * share;
        bool broken = !(fabs(step) < __longlong_as_double(0x7ff0000000000000));
        if (step < 0x1p-100)
            step = 0.0;
        double inverse = step == 0.0 ? 0.0 : UNITS / step;
        part = spread > LARGEST ? 0.5f : 1.0f; // half of the spread is within the range of float32
        base = least * part;
        factor = broken ? __uint_as_float(BROKEN) : (float)(inverse / part);
        scales[2 * blockIdx.x] = broken ? __uint_as_float(BROKEN) : least;
        scales[2 * blockIdx.x + 1] = broken ? __uint_as_float(BROKEN) : (float)(step * PART);
    }
    __syncthreads();
    if (part != 1.0f)
        for (int i = threadIdx.x; i < width; i += THREADS)
            held[i] *= part;
    __syncthreads();
    Rounding how = {random ? 0 : 1 << 15, random, low, high};
    write_codes(held, width, first, n, block, bits, base, factor, how, codes);
}

// Multiples, from -levels to levels, of an even share of a block's largest magnitude.
KERNEL levels(const float *values, i64 n, int block, int bits, int levels, double above, u32 low, u32 high,
              float *scales, u8 *codes)
{
    __shared__ float held[MOST], factor;
    i64 first = (i64)blockIdx.x * block;
    int width = n - first < block ? (int)(n - first) : block;
    float most = 0.0f;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        held[i] = values[first + i];
        most = larger(most, fabsf(held[i]));
    }
    most = largest(most);
    if (threadIdx.x == 0) {
        double scale = (double)most * above, infinite = __longlong_as_double(0x7ff0000000000000);
        bool broken = !(scale < infinite);
        double step = (scale < 0x1p-100 ? infinite : scale) / (UNITS * levels);
        factor = broken ? __uint_as_float(BROKEN) : (float)(1.0 / step);
        float written = (float)(scale < LARGEST ? scale : LARGEST);
        scales[blockIdx.x] = broken ? __uint_as_float(BROKEN) : written;
    }
    __syncthreads();
    Rounding how = {levels << 16, 1, low, high};
    write_codes(held, width, first, n, block, bits, 0.0f, factor, how, codes);
}

__device__ u32 code_of(const u8 *codes, i64 at, i64 n, int block, int bits)
{
    Place place = place_of(at, n, block);
    return unpacked(codes + place.first * bits / 8, place.at, place.count, bits);
}

KERNEL quant_values(const u8 *codes, const float *scales, i64 n, int block, int bits, int way, float *out)
{
    for (i64 at = here(); at < n; at += stride()) {
        float low = scales[at / block * 2];
        double step = scales[at / block * 2 + 1] / PART;
        u32 code = code_of(codes, at, n, block, bits);
        double wide = (double)code * step + low; // for a spread beyond the range of float32
        wide = wide > LARGEST ? LARGEST : wide < -LARGEST ? -LARGEST : wide;
        put_one(out + at, step > (float)(LARGEST / 512) ? (float)wide : (float)code * (float)step + low, way);
    }
}

KERNEL level_values(const u8 *codes, const float *scales, i64 n, int block, int bits, int levels, int way,
                    float *out)
{
    for (i64 at = here(); at < n; at += stride()) {
        float unit = scales[at / block] / (float)levels;
        put_one(out + at, ((float)code_of(codes, at, n, block, bits) - (float)levels) * unit, way);
    }
}
