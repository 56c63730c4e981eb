// Sums of sparse lists through a bitmap of the elements that any of them names. The kernels of
// `select` count its bits and write their places; here each list is added where its elements lie
// among them. Lists are added one after the other, so that sums are rounded in the order given.

#include "common.cuh"

KERNEL mark(const i64 *index, i64 n, u32 *words)
{
    for (i64 i = here(); i < n; i += stride())
        atomicOr(&words[index[i] / 32], 1u << (index[i] % 32));
}

// Of each word how many bits are set before it; starts: of each tile of 256 words.
KERNEL rank_words(const u32 *words, i64 n, const u32 *starts, u32 *ranks)
{
    u32 count = here() < n ? __popc(words[here()]) : 0, total;
    u32 rank = starts[blockIdx.x] + before(count, &total);
    if (here() < n)
        ranks[here()] = rank;
}

// Indices of a list are distinct: no two threads add to the same sum.
KERNEL add_list(const i64 *index, const float *values, i64 n, const u32 *words, const u32 *ranks, float *sums)
{
    for (i64 i = here(); i < n; i += stride()) {
        i64 word = index[i] / 32;
        u32 earlier = words[word] & ((1u << (index[i] % 32)) - 1);
        sums[ranks[word] + __popc(earlier)] += values[i];
    }
}
