// Block quantisers: a block of values is read once; scales and packed codes are written. Twins of
// `Quant` and `Levels` with `Steps` and `Dither`: what they compute in several passes is one here.

#include "common.cuh"

#define MOST 2048      // values of a block
#define PIECE (1 << 16) // values that share planes of bits and pairs of random numbers
#define UNITS 65536.0
#define PART 0.25       // of a step that travels, see `codecs.quant`
#define LARGEST 3.4028234663852886e38
#define BROKEN 0x7fc00000u // the word of NaN in packets

#define EACH 8          // values of a thread: a block has at most EACH * THREADS = MOST

// Where a value lies: its piece of the run, as `Blockwise` cuts it, and its place there.
struct Place {
    i64 first;
    u32 count, at;
};

// full: values of whole blocks, n / block * block.
__device__ Place place_of(i64 at, i64 n, i64 full)
{
    i64 first = at < full ? at / PIECE * PIECE : full;
    i64 end = at >= full ? n : first + PIECE < full ? first + PIECE : full;
    return {first, (u32)(end - first), (u32)(at - first)};
}

// The thread's EACH values of a block of `width` values; past its end the block's first one.
__device__ void read_own(const float *values, int width, float *own)
{
    int at = EACH * threadIdx.x;
    if (at + EACH <= width && (u64)values % 16 == 0) {
        const float4 *fours = (const float4 *)(values + at);
        float4 four = fours[0], next = fours[1];
        own[0] = four.x, own[1] = four.y, own[2] = four.z, own[3] = four.w;
        own[4] = next.x, own[5] = next.y, own[6] = next.z, own[7] = next.w;
    } else
        for (int k = 0; k < EACH; k++)
            own[k] = values[at + k < width ? at + k : 0];
}

// The larger one, or NaN.
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }

// The largest over the block of each of N numbers, or NaN.
template <int N> __device__ void largest(float *x)
{
    __shared__ float warps[N][WARPS];
    for (int step = 16; step; step /= 2)
        for (int k = 0; k < N; k++)
            x[k] = larger(x[k], __shfl_xor_sync(ALL, x[k], step));
    if (threadIdx.x % 32 == 0)
        for (int k = 0; k < N; k++)
            warps[k][threadIdx.x / 32] = x[k];
    __syncthreads();
    for (int k = 0; k < N; k++)
        x[k] = warps[k][threadIdx.x % WARPS];
    for (int step = WARPS / 2; step; step /= 2)
        for (int k = 0; k < N; k++)
            x[k] = larger(x[k], __shfl_xor_sync(ALL, x[k], step));
}

// A random choice of the step above or below, or the nearest step.
struct Rounding {
    int lift; // units, half a step included where nothing is drawn
    int random;
    u32 low, high;
};

// Round the thread's values, (x - base) factor units each, and pack their codes.
__device__ void write_codes(const float *own, int width, i64 first, i64 n, i64 full, int bits, float base,
                            float factor, Rounding how, u8 *codes)
{
    int at = EACH * threadIdx.x;
    if (at >= width)
        return;
    Place place = place_of(first + at, n, full);
    bool broken = factor != factor;
    u32 mine[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int units = (int)((own[k] - base) * factor) + how.lift;
        if (how.random)
            units += dithered(place.at + k, place.count, (u32)(place.first / 2), how.low, how.high);
        mine[k] = broken || at + k >= width ? 0 : (u32)(units >> 16) & 0xff;
    }
    pack_eight(mine, place.at, place.count, bits, codes + place.first * bits / 8);
}

// Even steps from a block's least to its largest value; share: of the spread that is a step.
KERNEL quant(const float *values, i64 n, i64 full, int block, int bits, double share, int random, u32 low, u32 high,
             float *scales, u8 *codes)
{
    __shared__ float base, factor, part;
    i64 first = (i64)blockIdx.x * block;
    int width = n - first < block ? (int)(n - first) : block;
    float own[EACH];
    read_own(values + first, width, own);
    float ends[2] = {-own[0], own[0]}; // the largest -x and x
    bool whole = true;
    for (int k = 0; k < EACH; k++) { // of NaN and a number these give the number
        ends[0] = fmaxf(ends[0], -own[k]);
        ends[1] = fmaxf(ends[1], own[k]);
        whole = whole && own[k] == own[k];
    }
    if (!whole)
        ends[0] = __uint_as_float(BROKEN);
    largest<2>(ends);
    if (threadIdx.x == 0) {
        float least = 0.0f - ends[0], most = ends[1]; // zero without a sign
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
        for (int k = 0; k < EACH; k++)
            own[k] *= part;
    Rounding how = {random ? 0 : 1 << 15, random, low, high};
    write_codes(own, width, first, n, full, bits, base, factor, how, codes);
}

// Multiples, from -levels to levels, of an even share of a block's largest magnitude.
KERNEL levels(const float *values, i64 n, i64 full, int block, int bits, int levels, double above, u32 low, u32 high,
              float *scales, u8 *codes)
{
    __shared__ float factor;
    i64 first = (i64)blockIdx.x * block;
    int width = n - first < block ? (int)(n - first) : block;
    float own[EACH], most = 0.0f;
    read_own(values + first, width, own);
    for (int k = 0; k < EACH; k++)
        most = larger(most, fabsf(own[k]));
    largest<1>(&most);
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
    write_codes(own, width, first, n, full, bits, 0.0f, factor, how, codes);
}

// Put the run's values, a function of the block's number and a value's code, as `way` says.
template <class VALUE>
__device__ void put_values(const u8 *codes, i64 n, i64 full, int block, int bits, int way, VALUE value, float *out)
{
    for (i64 row = blockIdx.x; row * block < n; row += gridDim.x)
        for (i64 at = row * block + threadIdx.x; at < n && at < (row + 1) * block; at += THREADS) {
            Place place = place_of(at, n, full);
            u32 code = unpacked(codes + place.first * bits / 8, place.at, place.count, bits);
            put_one(out + at, value(row, code), way);
        }
}

KERNEL quant_values(const u8 *codes, const float *scales, i64 n, i64 full, int block, int bits, int way, float *out)
{
    auto value = [&](i64 row, u32 code) {
        float low = scales[2 * row];
        double step = scales[2 * row + 1] / PART;
        if (!(step > (float)(LARGEST / 512)))
            return (float)code * (float)step + low;
        double wide = (double)code * step + low; // for a spread beyond the range of float32
        return (float)(wide > LARGEST ? LARGEST : wide < -LARGEST ? -LARGEST : wide);
    };
    put_values(codes, n, full, block, bits, way, value, out);
}

KERNEL level_values(const u8 *codes, const float *scales, i64 n, i64 full, int block, int bits, int levels, int way,
                    float *out)
{
    auto value = [&](i64 row, u32 code) { return ((float)code - (float)levels) * (scales[row] / (float)levels); };
    put_values(codes, n, full, block, bits, way, value, out);
}
