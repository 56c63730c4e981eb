// What the kernels share: short types, places, a sum over a block, halves, packed codes, random words.
//
// Every block has 256 threads. Multiplications and additions are compiled apart (-fmad=false), so that
// all numbers are NumPy's to the bit.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL extern "C" __global__ void
#define THREADS 256
#define WARPS (THREADS / 32)
#define ALL 0xffffffffu // lanes of a warp

// The thread's number in the grid, and how many threads there are.
__device__ inline i64 here() { return (i64)blockIdx.x * THREADS + threadIdx.x; }
__device__ inline i64 stride() { return (i64)gridDim.x * THREADS; }

// The sum of `count` over the threads of the block before this one; `total`: over all of them.
__device__ inline u32 before(u32 count, u32 *total)
{
    __shared__ u32 warps[WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = count, earlier = 0;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(ALL, sum, step);
        if (lane >= step)
            sum += other;
    }
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads();
    *total = 0;
    for (u32 w = 0; w < WARPS; w++) {
        if (w < warp)
            earlier += warps[w];
        *total += warps[w];
    }
    __syncthreads(); // the next sum may write `warps`
    return earlier + sum - count;
}

// --- What becomes of decoded values: twins of `ways`. ---

// Replace a value, for way 0, add to it, for 1, or take off it, for -1.
__device__ inline void put_one(float *out, float value, int way)
{
    *out = way > 0 ? *out + value : way < 0 ? *out - value : value;
}

__device__ inline void put_four(float4 *out, float4 values, int way)
{
    float4 four = way ? *out : values;
    put_one(&four.x, values.x, way);
    put_one(&four.y, values.y, way);
    put_one(&four.z, values.z, way);
    put_one(&four.w, values.w, way);
    *out = four;
}

// --- 16-bit floats, as words. Twins of `half` and of NumPy's conversion. ---

#define INFINITE 0x7f800000u // the word of infinity; those of NaN lie above

// To IEEE half, to nearest even; beyond its range to infinity.
__device__ inline u32 half_of(float value)
{
    u32 word = __float_as_uint(value), size = word & 0x7fffffff, code;
    if (size < 0x38800000) // below 2^-14 an addition rounds to the steps of subnormal halves
        code = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000;
    else if (size >= 0x477ff000) // 65520
        code = size > INFINITE ? 0x7e00 : 0x7c00;
    else
        code = (size + ((size >> 13) & 1) + 0xfff - (112u << 23)) >> 13;
    return code | (word >> 16 & 0x8000);
}

// Numbers beyond the range become the largest half; infinity and NaN stay. Twin of `half.to_fp16`.
__device__ inline u32 clamped_half(float value)
{
    u32 size = __float_as_uint(value) & 0x7fffffff, code = half_of(value);
    return (code & 0x7fff) == 0x7c00 && size < INFINITE ? code - 1 : code;
}

__device__ inline float float_of(u32 code)
{
    u32 size = code & 0x7fff, word = (size << 13) + (112u << 23);
    if (size >= 0x7c00) // infinity and NaN
        word += 112u << 23;
    if (size < 0x400)
        word = __float_as_uint((float)size * (1.0f / 16777216.0f));
    return __uint_as_float(word | (code & 0x8000) << 16);
}

// --- Floats of few bits over a range. Twins of `rangefloat.RangeFloat`. base: the cut word of the least. ---

__device__ inline u16 range_code(float value, int bits, int mantissa, int base)
{
    int top = (1 << (bits - 1)) - 1, shift = 23 - mantissa;
    u32 word = __float_as_uint(value), size = word & 0x7fffffff;
    int code = (int)((size + (1u << (shift - 1))) >> shift) - (base - 1);
    code = code < 0 ? 0 : code > top ? top : code;
    if (code)
        code |= (int)(word >> 31) << (bits - 1);
    return (u16)(size > INFINITE ? 1 << (bits - 1) : code);
}

__device__ inline float range_value(u32 code, int bits, int mantissa, int base)
{
    u32 number = code & ((1u << (bits - 1)) - 1), sign = code >> (bits - 1);
    u32 word = (number + base - 1) << (23 - mantissa) | sign << 31;
    u32 broken = sign ? 0x7fc00000 : 0;
    return __uint_as_float(number ? word : broken);
}

// --- Codes of few bits. Twins of `bits.pack` and `bits.unpack`. ---

__device__ inline bool is_folded(int width) { return width == 1 || width == 2 || width == 4 || width == 8; }

// Eight codes side by side, the first in the lowest bits.
template <int WIDTH> __device__ u64 side_by_side(const u32 *codes)
{
    u64 word = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        word |= (u64)codes[k] << WIDTH * k;
    return word;
}

// Write the low `bytes` bytes of a word, in one store where that is aligned.
__device__ inline void write_bytes(u8 *out, u64 word, int bytes)
{
    u64 odd = (u64)out % 8;
    if (bytes == 8 && odd == 0)
        *(u64 *)out = word;
    else if (bytes == 4 && odd % 4 == 0)
        *(u32 *)out = (u32)word;
    else if (bytes == 2 && odd % 2 == 0)
        *(u16 *)out = (u16)word;
    else
        for (int byte = 0; byte < bytes; byte++)
            out[byte] = (u8)(word >> 8 * byte);
}

// Pack codes number at, ..., at + 7 of `count`, `at` a multiple of 8; codes past the end are 0.
__device__ inline void pack_eight(const u32 *codes, i64 at, i64 count, int width, u8 *out)
{
    int valid = count - at < 8 ? (int)(count - at) : 8;
    if (is_folded(width)) { // neighbours share bytes
        u64 word = width == 8   ? side_by_side<8>(codes)
                   : width == 4 ? side_by_side<4>(codes)
                   : width == 2 ? side_by_side<2>(codes)
                                : side_by_side<1>(codes);
        write_bytes(out + at * width / 8, word, (valid * width + 7) / 8);
        return;
    }
    for (int byte = 0; byte < width / 8; byte++, out += count) { // planes of bytes
        u64 word = 0;
        for (int k = 0; k < 8; k++)
            word |= (u64)(codes[k] >> 8 * byte & 0xff) << (8 * k);
        write_bytes(out + at, word, valid);
    }
    for (int bit = width / 8 * 8; bit < width; bit++, out += (count + 7) / 8) { // and of bits
        u32 word = 0;
        for (int k = 0; k < 8; k++)
            word |= (codes[k] >> bit & 1) << k;
        out[at / 8] = (u8)word;
    }
}

// Code number `at` of `count`.
__device__ inline u32 unpacked(const u8 *packed, i64 at, i64 count, int width)
{
    if (is_folded(width))
        return packed[at * width / 8] >> (at * width % 8) & ((1u << width) - 1);
    u32 code = 0;
    for (int byte = 0; byte < width / 8; byte++, packed += count)
        code |= (u32)packed[at] << (8 * byte);
    for (int bit = width / 8 * 8; bit < width; bit++, packed += (count + 7) / 8)
        code |= (u32)(packed[at / 8] >> (at % 8) & 1) << bit;
    return code;
}

// --- Bitmaps, and numbers by their digits. ---

// 32 bits of a bitmap of n bits, which may begin anywhere; those from n on are zero.
__device__ inline u32 word_of(const u8 *bitmap, i64 n, i64 number)
{
    u32 word = 0;
    for (i64 byte = 0; byte < 4; byte++)
        if (32 * number + 8 * byte < n)
            word |= (u32)bitmap[4 * number + byte] << (8 * byte);
    i64 valid = n - 32 * number;
    return valid >= 32 ? word : valid <= 0 ? 0 : word & ((1u << valid) - 1);
}

#define DIGITS 2048 // values of a digit, at most

// Count each digit among n numbers of 31 bits, `number(at)`, whose higher bits are `higher`. Sums within
// the block first: atomics on shared memory, `mine`, are cheap.
template <class NUMBER>
__device__ void count_each_digit(NUMBER number, i64 n, u32 higher, int shift, int width, u32 *mine,
                                 u32 *counts)
{
    for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS)
        mine[digit] = 0;
    __syncthreads();
    u32 mask = (1u << width) - 1;
    for (i64 at = here(); at < n; at += 4 * stride()) {
        u32 some[4]; // all are read before any is counted
#pragma unroll
        for (int k = 0; k < 4; k++) // what is no number is higher than all
            some[k] = at + k * stride() < n ? number(at + k * stride()) : 0xffffffff;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (some[k] >> (shift + width) == higher)
                atomicAdd(&mine[some[k] >> shift & mask], 1u);
    }
    __syncthreads();
    for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS)
        if (mine[digit])
            atomicAdd(&counts[digit], mine[digit]);
}

// --- Random numbers. Twin of `random.Dither`. ---

// Word number `number` of a key of two words: the hash lowbias32.
__device__ inline u32 random_word(u32 number, u32 low, u32 high)
{
    u32 word = number ^ low;
    word = (word ^ word >> 16) * 0x7feb352du ^ high;
    word = (word ^ word >> 15) * 0x846ca68bu ^ high;
    return word ^ word >> 16;
}

// The 16 bits of element i of `count`, whose first word has the number `done`: a word serves two.
__device__ inline int dithered(u32 i, u32 count, u32 done, u32 low, u32 high)
{
    u32 half = count / 2 + count % 2;
    u32 word = random_word(done + (i < half ? i : i - half), low, high);
    return (int)(i < half ? word & 0xffff : word >> 16);
}
