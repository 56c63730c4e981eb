// The largest magnitudes: flags, their places in ascending order, and the magnitude of a given rank.

#include "common.cuh"

#define TILE (32 * THREADS) // elements of a block: a word of flags per thread
#define EACH 8              // counts of a thread in one turn of a scan

// Flag |x| >= least, given as the word of a magnitude, and count the flags of each tile. A word of 32
// flags is what a warp agrees on: it is read once more, not the values. Twin of `select.above`.
KERNEL flag_above(const float *values, i64 n, int least, u32 *words, u32 *counts)
{
    i64 tile = (i64)blockIdx.x * TILE;
    u32 count = 0, total;
#pragma unroll 8
    for (int row = 0; row < 32; row++) {
        i64 at = tile + row * THREADS + threadIdx.x;
        bool hit = at < n && (__float_as_int(values[at]) & 0x7fffffff) >= least;
        u32 word = __ballot_sync(ALL, hit);
        if (at % 32 == 0 && at < n) {
            words[at / 32] = word;
            count += __popc(word);
        }
    }
    before(count, &total);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = total;
}

// The same of values to which what was kept of earlier ones is added first, in place; *broken is set
// where a sum is no finite number. Twin of `select.added_above`.
KERNEL add_flag_above(float *values, const float *lost, i64 n, int least, u32 *words, u32 *counts, u32 *broken)
{
    i64 tile = (i64)blockIdx.x * TILE;
    u32 count = 0, total, bad = 0;
#pragma unroll 8
    for (int row = 0; row < 32; row++) {
        i64 at = tile + row * THREADS + threadIdx.x;
        int size = 0;
        if (at < n) {
            float sum = values[at] + lost[at];
            values[at] = sum;
            size = __float_as_int(sum) & 0x7fffffff;
        }
        bad |= size >= (int)INFINITE;
        u32 word = __ballot_sync(ALL, at < n && size >= least);
        if (at % 32 == 0 && at < n) {
            words[at / 32] = word;
            count += __popc(word);
        }
    }
    if (bad)
        atomicOr(broken, 1u);
    before(count, &total);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = total;
}

// Count the bits of each tile.
KERNEL count_set(const u8 *bitmap, i64 n, u32 *counts)
{
    u32 total;
    before(__popc(word_of(bitmap, n, here())), &total);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = total;
}

// Make starts of counts, and write their sum behind the last one. One block.
KERNEL scan(u32 *counts, i64 n)
{
    u32 done = 0;
    for (i64 first = 0; first < n; first += EACH * THREADS) {
        i64 mine = first + EACH * threadIdx.x;
        u32 sum = 0, total;
        for (i64 at = mine; at < mine + EACH && at < n; at++)
            sum += counts[at];
        u32 start = done + before(sum, &total);
        for (i64 at = mine; at < mine + EACH && at < n; at++) {
            u32 count = counts[at];
            counts[at] = start;
            start += count;
        }
        done += total;
    }
    if (threadIdx.x == 0)
        counts[n] = done;
}

// Write the places of the bits that are set, in ascending order, from each tile's start on.
KERNEL write_places(const u8 *bitmap, i64 n, const u32 *starts, i64 *places)
{
    u32 word = word_of(bitmap, n, here()), total;
    i64 at = starts[blockIdx.x] + before(__popc(word), &total);
    for (; word; word &= word - 1)
        places[at++] = 32 * here() + __ffs(word) - 1;
}

// Count each digit among the magnitudes whose higher bits are chosen[0].
KERNEL count_digits(const int *words, i64 n, const u32 *chosen, int shift, int width, u32 *counts)
{
    __shared__ u32 mine[DIGITS];
    auto magnitude = [&](i64 at) { return (u32)words[at] & 0x7fffffff; };
    count_each_digit(magnitude, n, chosen[0], shift, width, mine, counts);
}

// Find the digit of the magnitude of rank chosen[1], counted from the largest, which is 1; clear the
// counts for the next digit. One block.
KERNEL choose_digit(u32 *chosen, int width, u32 *counts)
{
    const int share = DIGITS / THREADS;
    u32 higher = chosen[0], rank = chosen[1], sum = 0, total;
    int top = DIGITS - 1 - share * threadIdx.x; // a thread's digits, the highest first
    for (int digit = top; digit > top - share; digit--)
        sum += counts[digit];
    u32 above = before(sum, &total);
    for (int digit = top; digit > top - share; digit--) {
        u32 count = counts[digit];
        if (above < rank && rank <= above + count) {
            chosen[0] = higher << width | digit;
            chosen[1] = rank - above;
        }
        above += count;
        counts[digit] = 0;
    }
}
