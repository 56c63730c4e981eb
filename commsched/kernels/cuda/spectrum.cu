// Spectra of pieces of 8192 values, each in the shared memory of a block, and the bins of largest power.
// Twins of `spectrum`.
//
// A piece is transformed as 4096 complex numbers, even values beside odd ones, in three steps of 16 points
// that leave them in order. Source: Govindaraju et al., "High performance discrete Fourier transforms on
// graphics processors", SC 2008; for the two halves of a real transform Cooley, Lewis, Welch, 1970.

#include "common.cuh"

#define POINTS 4096
#define EACH 16 // points of a thread: POINTS = EACH * THREADS = EACH^3
#define BINS (POINTS + 1)
#define TILE (32 * THREADS) // bins of a block that looks for the strongest: a word of flags per thread

__device__ inline float2 plus(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ inline float2 minus(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
__device__ inline float2 conjugate(float2 a) { return make_float2(a.x, -a.y); }
__device__ inline float2 times(float2 a, float2 b)
{
    return make_float2(fmaf(a.x, b.x, -(a.y * b.y)), fmaf(a.x, b.y, a.y * b.x));
}

// Where point i lies in shared memory: neighbours of a step are in different banks.
__device__ inline int padded(int i) { return i + i / 16; }
#define HELD (POINTS + POINTS / 16)

__device__ inline void four(float2 &a, float2 &b, float2 &c, float2 &d)
{
    float2 even = plus(a, c), other = minus(a, c), odd = plus(b, d), turned = minus(b, d);
    turned = make_float2(turned.y, -turned.x); // by -i
    a = plus(even, odd);
    b = plus(other, turned);
    c = minus(even, odd);
    d = minus(other, turned);
}

// The transform of 16 numbers, result r in v[r % 4 * 4 + r / 4].
__device__ inline void sixteen(float2 *v)
{
    const float c = 0.92387953f, s = 0.38268343f, r = 0.70710678f; // cosine and sine of pi/8, and of pi/4
#pragma unroll
    for (int k = 0; k < 4; k++)
        four(v[k], v[k + 4], v[k + 8], v[k + 12]);
    v[5] = times(v[5], make_float2(c, -s));
    v[6] = times(v[6], make_float2(r, -r));
    v[7] = times(v[7], make_float2(s, -c));
    v[9] = times(v[9], make_float2(r, -r));
    v[10] = make_float2(v[10].y, -v[10].x);
    v[11] = times(v[11], make_float2(-r, -r));
    v[13] = times(v[13], make_float2(s, -c));
    v[14] = times(v[14], make_float2(-r, -r));
    v[15] = times(v[15], make_float2(-c, s));
#pragma unroll
    for (int k = 0; k < 16; k += 4)
        four(v[k], v[k + 1], v[k + 2], v[k + 3]);
}

// Transform 4096 numbers, of which v[r] is number t + 256 r, into `held`. roots[m] = exp(-2 pi i m / 8192).
__device__ inline void transform(float2 *v, float2 *held, const float2 *roots)
{
    int t = threadIdx.x;
#pragma unroll
    for (int span = 1; span < POINTS; span *= EACH) {
        int part = t % span;
        if (span > 1) {
            float2 turn[EACH];
            turn[1] = roots[part * (2 * THREADS / span)];
            __syncthreads(); // `held` has been read
#pragma unroll
            for (int r = 0; r < EACH; r++) {
                v[r] = held[padded(t + THREADS * r)];
                if (r > 1)
                    turn[r] = times(turn[r / 2], turn[r - r / 2]);
                if (r)
                    v[r] = times(v[r], turn[r]);
            }
            __syncthreads();
        }
        sixteen(v);
#pragma unroll
        for (int r = 0; r < EACH; r++)
            held[padded(t / span * span * EACH + part + r * span)] = v[r % 4 * 4 + r / 4];
    }
    __syncthreads();
}

// Read the pairs of this thread in a piece. Loops read all or write all: the compiler cannot know that a
// write leaves what is read next alone, and would wait.
__device__ inline void read_pairs(const float *values, float2 *v)
{
    if ((u64)values % 8 == 0)
#pragma unroll
        for (int r = 0; r < EACH; r++)
            v[r] = ((const float2 *)values)[threadIdx.x + THREADS * r];
    else
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            int at = 2 * (threadIdx.x + THREADS * r);
            v[r] = make_float2(values[at], values[at + 1]);
        }
}

__device__ inline void write_pairs(const float2 *v, float *values)
{
    if ((u64)values % 8 == 0)
#pragma unroll
        for (int r = 0; r < EACH; r++)
            ((float2 *)values)[threadIdx.x + THREADS * r] = v[r];
    else
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            int at = 2 * (threadIdx.x + THREADS * r);
            values[at] = v[r].x;
            values[at + 1] = v[r].y;
        }
}

// Write the bins of a piece whose 4096 complex numbers are in `v`.
__device__ inline void write_bins(float2 *v, const float2 *roots, float2 *bins)
{
    __shared__ float2 held[HELD];
    transform(v, held, roots);
    for (int k = threadIdx.x; k <= POINTS / 2; k += THREADS) {
        float2 a = held[padded(k)], b = conjugate(held[padded((POINTS - k) % POINTS)]);
        float2 even = make_float2((a.x + b.x) * 0.5f, (a.y + b.y) * 0.5f);
        float2 odd = times(roots[k], make_float2((a.y - b.y) * 0.5f, (b.x - a.x) * 0.5f));
        bins[k] = plus(even, odd);
        bins[POINTS - k] = conjugate(minus(even, odd));
    }
}

__device__ inline float2 rounded(float2 pair)
{
    return make_float2(float_of(clamped_half(pair.x)), float_of(clamped_half(pair.y)));
}

// A block for each piece: round to fp16 and transform. Read 4 B per value, write 4.
KERNEL forward(const float *values, const float2 *roots, float2 *bins)
{
    float2 v[EACH];
    read_pairs(values + (i64)blockIdx.x * 2 * POINTS, v);
#pragma unroll
    for (int r = 0; r < EACH; r++)
        v[r] = rounded(v[r]);
    write_bins(v, roots, bins + (i64)blockIdx.x * BINS);
}

// The same of values to which what was kept of earlier ones is added first, in place: 8 B read, 8 written.
KERNEL add_forward(float *values, const float *lost, const float2 *roots, float2 *bins)
{
    i64 first = (i64)blockIdx.x * 2 * POINTS;
    float2 v[EACH], more[EACH];
    read_pairs(values + first, v);
    read_pairs(lost + first, more);
#pragma unroll
    for (int r = 0; r < EACH; r++)
        v[r] = plus(v[r], more[r]);
    write_pairs(v, values + first);
#pragma unroll
    for (int r = 0; r < EACH; r++)
        v[r] = rounded(v[r]);
    write_bins(v, roots, bins + (i64)blockIdx.x * BINS);
}

// --- The strongest bins. ---

// The word of |bin|^2: words order as powers do, NaN above infinity.
__device__ inline u32 power_of(float2 bin)
{
    return __float_as_uint(bin.x * bin.x + bin.y * bin.y) & 0x7fffffff;
}

// Count each digit among the powers whose higher bits are chosen[0], and find the largest power.
KERNEL count_powers(const float2 *bins, i64 n, const u32 *chosen, int shift, int width, u32 *counts,
                    u32 *most)
{
    __shared__ u32 mine[DIGITS], largest;
    if (threadIdx.x == 0)
        largest = 0;
    u32 top = 0;
    auto power = [&](i64 at) {
        u32 found = power_of(bins[at]);
        top = found > top ? found : top;
        return found;
    };
    count_each_digit(power, n, chosen[0], shift, width, mine, counts); // has barriers
    atomicMax(&largest, top);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(most, largest);
}

// Flag powers above chosen[0] and those equal to it, and count both in each tile.
KERNEL flag_powers(const float2 *bins, i64 n, const u32 *chosen, u32 *above, u32 *equal, u32 *counts,
                   u32 *ties)
{
    i64 tile = (i64)blockIdx.x * TILE;
    u32 least = chosen[0], more = 0, same = 0, total;
#pragma unroll 8
    for (int row = 0; row < 32; row++) {
        i64 at = tile + row * THREADS + threadIdx.x;
        u32 power = at < n ? power_of(bins[at]) : 0;
        u32 word = __ballot_sync(ALL, at < n && power > least);
        u32 tied = __ballot_sync(ALL, at < n && power == least);
        if (at % 32 == 0 && at < n) {
            above[at / 32] = word;
            equal[at / 32] = tied;
            more += __popc(word);
            same += __popc(tied);
        }
    }
    before(more, &total);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = total;
    before(same, &total);
    if (threadIdx.x == 0)
        ties[blockIdx.x] = total;
}

// A tile's bins that are kept, a bit each, and how many are kept before each word.
struct Kept {
    u32 words[THREADS], ranks[THREADS];
};

// Whether row `row` of the tile has this thread's bin, and its number among all that are kept.
__device__ inline bool has(const Kept &kept, int row, u32 *rank)
{
    int number = row * WARPS + threadIdx.x / 32;
    u32 word = kept.words[number], lane = 1u << threadIdx.x % 32;
    *rank = kept.ranks[number] + __popc(word & (lane - 1));
    return word & lane;
}

// Write the largest magnitude, a bitmap of what is kept - all above chosen[0], and the first chosen[1] of
// those that equal it - and the kept bins' parts, as shares of the largest magnitude, in codes. starts,
// ties: how many above and equal lie before each tile. Only bins that are kept are read.
KERNEL write_strongest(const float2 *__restrict__ bins, i64 n, const u32 *chosen, const u32 *most,
                       const u32 *above, const u32 *equal, const u32 *starts, const u32 *ties, int bits,
                       int mantissa, int base, float *scale, u8 *bitmap, u16 *__restrict__ codes)
{
    __shared__ Kept kept;
    i64 number = (i64)blockIdx.x * THREADS + threadIdx.x, valid = n - 32 * number;
    u32 word = valid > 0 ? above[number] : 0, tied = valid > 0 ? equal[number] : 0, total;
    u32 wanted = chosen[1], earlier = ties[blockIdx.x];
    u32 start = starts[blockIdx.x] + (earlier < wanted ? earlier : wanted);
    earlier += before(__popc(tied), &total);
    for (; tied && earlier < wanted; earlier++, tied &= tied - 1)
        word |= tied & (0u - tied);
    kept.words[threadIdx.x] = word;
    kept.ranks[threadIdx.x] = start + before(__popc(word), &total);
    if (valid > 0)
        write_bytes(bitmap + 4 * number, word, valid >= 32 ? 4 : (int)(valid + 7) / 8);
    float largest = sqrtf(__uint_as_float(*most)), unit = largest > 0.0f ? 1.0f / largest : 0.0f;
    if (number == 0)
        *scale = largest;
    __syncthreads();
#pragma unroll 8
    for (int row = 0; row < 32; row++) {
        u32 rank;
        if (has(kept, row, &rank)) {
            float2 bin = bins[(i64)blockIdx.x * TILE + row * THREADS + threadIdx.x];
            codes[2 * (i64)rank] = range_code(bin.x * unit, bits, mantissa, base);
            codes[2 * (i64)rank + 1] = range_code(bin.y * unit, bits, mantissa, base);
        }
    }
}

// --- Back from packets: the largest magnitude, a bitmap of the bins, codes of their parts. ---

#define MINE 17 // bins of a thread, neighbours: 256 of them hold a piece
#define SCALE 4 // B before the bitmap

// A block's bins, and its packets.
struct Bins {
    i64 first;
    int count;
};

__device__ inline Bins bins_of(int block, i64 bins)
{
    i64 first = (i64)block * BINS;
    return {first, bins - first < BINS ? (int)(bins - first) : BINS};
}

// Which of this thread's bins are in a bitmap.
__device__ inline u32 flags_of(const u8 *bitmap, Bins block)
{
    int valid = block.count - MINE * (int)threadIdx.x;
    if (valid <= 0)
        return 0;
    i64 first = block.first + MINE * threadIdx.x, last = first + (valid < MINE ? valid : MINE) - 1;
    u32 word = 0;
    for (i64 byte = first / 8; byte <= last / 8; byte++)
        word |= (u32)bitmap[byte] << 8 * (byte - first / 8);
    return word >> first % 8 & ((1u << (last - first + 1)) - 1);
}

// Count each packet's bins in each piece: a block for both. Packets lie one behind the other.
KERNEL count_bins(const u8 *packets, i64 nbytes, i64 bins, int pieces, u32 *counts)
{
    u32 total;
    const u8 *bitmap = packets + blockIdx.x / pieces * nbytes + SCALE;
    before(__popc(flags_of(bitmap, bins_of(blockIdx.x % pieces, bins))), &total);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = total;
}

// Transform a piece back whose bins are in `held`, which it overwrites with conjugates of the values. What
// the first and the last bin hold beside a real number is left out, as everywhere.
__device__ inline void to_values(float2 *held, const float2 *roots)
{
    float2 v[EACH];
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        int k = threadIdx.x + THREADS * r;
        float2 a = held[k], b = conjugate(held[POINTS - k]);
        if (k == 0)
            a.y = b.y = 0.0f;
        float2 turn = roots[k <= POINTS / 2 ? k : POINTS - k];
        turn = k <= POINTS / 2 ? conjugate(turn) : make_float2(-turn.x, -turn.y);
        float2 odd = times(make_float2((a.x - b.x) * 0.5f, (a.y - b.y) * 0.5f), turn);
        // Conjugates, so that one transform does for both ways.
        v[r] = make_float2((a.x + b.x) * 0.5f - odd.y, -((a.y + b.y) * 0.5f + odd.x));
    }
    __syncthreads();
    transform(v, held, roots);
}

// A block for each piece: add up the bins of packets in their order, `count` of each, and transform them
// back. starts: how many lie before each packet's piece, over all packets. Read little more than the packets
// and, where values are added or taken off, 4 B per value; write 4. The rest that is no whole piece is left
// to others, as bins.
KERNEL deliver(const u8 *packets, i64 nbytes, int ways, i64 count, i64 bins, int pieces, const u32 *starts,
               int bits, int mantissa, int base, const float2 *roots, i64 n, int way, float *values,
               float2 *rest)
{
    __shared__ float2 held[HELD];
    Bins block = bins_of(blockIdx.x, bins);
    float2 *mine = held + MINE * threadIdx.x;
    for (int k = 0; k < MINE; k++)
        mine[k] = make_float2(0.0f, 0.0f);
    for (int number = 0; number < ways; number++, packets += nbytes) {
        u32 total, flags = flags_of(packets + SCALE, block), word = 0;
        i64 rank = starts[(i64)number * pieces + blockIdx.x] - number * count + before(__popc(flags), &total);
        for (int byte = 0; byte < SCALE; byte++)
            word |= (u32)packets[byte] << 8 * byte;
        float scale = __uint_as_float(word);
        const u8 *codes = packets + SCALE + (bins + 7) / 8;
        for (; flags; flags &= flags - 1, rank++) {
            float2 &sum = mine[__ffs(flags) - 1];
            u32 real = unpacked(codes, 2 * rank, 2 * count, bits);
            u32 other = unpacked(codes, 2 * rank + 1, 2 * count, bits);
            sum.x += range_value(real, bits, mantissa, base) * scale;
            sum.y += range_value(other, bits, mantissa, base) * scale;
        }
    }
    __syncthreads();
    i64 first = (i64)blockIdx.x * 2 * POINTS;
    if (first + 2 * POINTS > n) {
        for (int k = threadIdx.x; k < block.count; k += THREADS)
            rest[k] = held[k];
        return;
    }
    to_values(held, roots);
    float2 v[EACH] = {};
    if (way)
        read_pairs(values + first, v);
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        float2 found = held[padded(threadIdx.x + THREADS * r)];
        put_one(&v[r].x, found.x * (1.0f / POINTS), way);
        put_one(&v[r].y, -found.y * (1.0f / POINTS), way);
    }
    write_pairs(v, values + first);
}
