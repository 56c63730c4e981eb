// Whole numbers of few bits, packed into bytes. Twins of `bits.pack` and `bits.unpack`.

#include "common.cuh"

// A thread packs eight neighbours: whole bytes of every plane.
template <class CODE> __device__ void pack(const CODE *codes, i64 n, int width, u8 *out)
{
    for (i64 eight = here(); 8 * eight < n; eight += stride()) {
        u32 mine[8];
        for (int k = 0; k < 8; k++)
            mine[k] = 8 * eight + k < n ? (u32)codes[8 * eight + k] : 0;
        pack_eight(mine, 8 * eight, n, width, out);
    }
}

template <class CODE> __device__ void unpack(const u8 *packed, i64 n, int width, CODE *codes)
{
    for (i64 at = here(); at < n; at += stride())
        codes[at] = (CODE)unpacked(packed, at, n, width);
}

KERNEL pack_uint8(const u8 *codes, i64 n, int width, u8 *out) { pack(codes, n, width, out); }
KERNEL pack_uint16(const u16 *codes, i64 n, int width, u8 *out) { pack(codes, n, width, out); }
KERNEL pack_int64(const i64 *codes, i64 n, int width, u8 *out) { pack(codes, n, width, out); }
KERNEL unpack_uint8(const u8 *packed, i64 n, int width, u8 *codes) { unpack(packed, n, width, codes); }
KERNEL unpack_int64(const u8 *packed, i64 n, int width, i64 *codes) { unpack(packed, n, width, codes); }

// Flags are 0 or any other byte.
KERNEL pack_flags(const u8 *flags, i64 n, u8 *out)
{
    for (i64 eight = here(); 8 * eight < n; eight += stride()) {
        u32 mine[8];
        for (int k = 0; k < 8; k++)
            mine[k] = 8 * eight + k < n && flags[8 * eight + k] != 0;
        pack_eight(mine, 8 * eight, n, 1, out);
    }
}
