// Partition of indices by hash. Twins of `hashing.grouped` and `hashing.placed`.

#include "common.cuh"

#define PARTS 256 // at most
#define ROUNDS 8  // of 256 indices in a tile

// The finaliser of MurmurHash3, for one of several hash functions.
__device__ u32 murmur(u32 h, u32 seed)
{
    h += seed * 0x9e3779b1u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

// Evenly to [0, limit).
__device__ u32 below(u32 element, u32 limit, u32 seed) { return (u32)((u64)murmur(element, seed) * limit >> 32); }

// Count the parts of each tile: counts[part][tile], so that a scan gives every part its own range.
KERNEL count_parts(const i64 *index, i64 n, int parts, u32 seed, u32 *counts)
{
    __shared__ u32 mine[PARTS];
    mine[threadIdx.x] = 0;
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        i64 at = ((i64)blockIdx.x * ROUNDS + round) * THREADS + threadIdx.x;
        if (at < n)
            atomicAdd(&mine[below((u32)index[at], parts, seed)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < parts)
        counts[(i64)threadIdx.x * gridDim.x + blockIdx.x] = mine[threadIdx.x];
}

// Write the positions of each part's indices one after the other, within a part in their order; and
// where parts begin and end, (parts + 1).
KERNEL write_groups(const i64 *index, i64 n, int parts, u32 seed, const u32 *starts, i64 *order, u32 *ends)
{
    for (int part = threadIdx.x; blockIdx.x == 0 && part <= parts; part += THREADS)
        ends[part] = starts[(i64)part * gridDim.x];
    __shared__ u32 next[PARTS], found[WARPS][PARTS]; // where a part goes on; what each warp found of it
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < parts)
        next[threadIdx.x] = starts[(i64)threadIdx.x * gridDim.x + blockIdx.x];
    for (int round = 0; round < ROUNDS; round++) {
        for (int w = 0; w < WARPS; w++)
            found[w][threadIdx.x] = 0;
        __syncthreads();
        i64 at = ((i64)blockIdx.x * ROUNDS + round) * THREADS + threadIdx.x;
        u32 part = at < n ? below((u32)index[at], parts, seed) : PARTS; // PARTS: none
        u32 peers = __match_any_sync(ALL, part), earlier = __popc(peers & ((1u << lane) - 1));
        if (part < PARTS && earlier == 0)
            found[warp][part] = __popc(peers);
        __syncthreads();
        if (part < PARTS) {
            u32 place = next[part] + earlier;
            for (u32 w = 0; w < warp; w++)
                place += found[w][part];
            order[place] = at;
        }
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            next[threadIdx.x] += found[w][threadIdx.x];
    }
}

// Place indices as Zen does: in try i an index writes itself into slot h_i of its part. A slot keeps
// the one with most tries left, then the largest; what the atomic returns is the read-back. Who is
// put out goes on with its next try, carried by the thread that put it out. So no order of threads
// changes the outcome (it is a stable matching: Gale & Shapley, 1962), which is that of `placed`,
// try after try. What no slot keeps goes to `rest`, in any order; rest[n] counts it.
KERNEL place(const i64 *index, i64 n, int parts, u32 slots, int tries, u32 seed, u64 *memory, u32 *rest)
{
    if (here() >= n)
        return;
    u64 carried = (u64)tries << 32 | (u32)(index[here()] + 1);
    while (carried >> 32) {
        u32 element = (u32)carried - 1, number = tries + 1 - (u32)(carried >> 32);
        i64 slot = (i64)below(element, parts, seed) * slots + below(element, slots, seed + number);
        u64 held = atomicMax(&memory[slot], carried);
        if (held == 0)
            return;
        if (held < carried)
            carried = held;
        carried -= 1ull << 32;
    }
    rest[atomicAdd(&rest[n], 1u)] = (u32)carried - 1;
}
