"""The copy kernel, in the GPU's assembly language: small enough to be read, and no compiler is needed.

A warp copies 2,048 bytes at a time, a part. Parts are numbered through all copies; warp w of n takes the
parts w, w + n, w + 2n and so on. It walks through the copies once: `part` counts from the first part of
the copy it is at. Four loads of 16 bytes a lane are under way before the first is stored. What does not
lie on 16 bytes on both sides goes byte by byte, and so does what is left at the end.
"""

from typing import Final

NAME: Final = b"cpkv_copy"
THREADS: Final = 1024

CODE: Final = b"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry cpkv_copy(
    .param .u64 arrays_param,  // destinations, sources, sizes: count words each
    .param .u64 count_param
)
.maxntid 1024, 1, 1
{
    .reg .pred over;
    .reg .b32 thread, warps32, block, byte;
    .reg .b32 a<16>;
    .reg .b64 destination_at, source_at, size_at, end_at, column;
    .reg .b64 lane, lane16, part, warps, first;
    .reg .b64 destination0, source0, size, parts;
    .reg .b64 offset, destination, source, left, whole, place, from, to, low;

    ld.param.u64 destination_at, [arrays_param];
    ld.param.u64 column, [count_param];
    cvta.to.global.u64 destination_at, destination_at;
    shl.b64 column, column, 3;
    add.u64 source_at, destination_at, column;
    add.u64 size_at, source_at, column;
    mov.u64 end_at, source_at;

    mov.u32 thread, %tid.x;
    and.b32 block, thread, 31;
    cvt.u64.u32 lane, block;
    shl.b64 lane16, lane, 4;
    shr.u32 thread, thread, 5;
    cvt.u64.u32 part, thread;
    mov.u32 warps32, %ntid.x;
    shr.u32 warps32, warps32, 5;
    mov.u32 block, %ctaid.x;
    mul.wide.u32 first, warps32, block;
    add.u64 part, part, first;
    mov.u32 block, %nctaid.x;
    mul.wide.u32 warps, warps32, block;

NEXT_COPY:
    setp.ge.u64 over, destination_at, end_at;
    @over bra END;
    ld.global.u64 size, [size_at];
    add.u64 parts, size, 2047;
    shr.u64 parts, parts, 11;
    setp.ge.u64 over, part, parts;
    @over bra COPY_IS_DONE;
    ld.global.u64 destination0, [destination_at];
    ld.global.u64 source0, [source_at];

NEXT_PART:
    shl.b64 offset, part, 11;
    add.u64 destination, destination0, offset;
    add.u64 source, source0, offset;
    sub.u64 left, size, offset;
    min.u64 left, left, 2048;
    or.b64 low, destination, source;
    and.b64 low, low, 15;
    mov.u64 whole, 0;
    setp.ne.u64 over, low, 0;
    @over bra BYTES;
    setp.lt.u64 over, left, 2048;
    @over bra UNITS;

    add.u64 from, source, lane16;
    add.u64 to, destination, lane16;
    ld.global.cs.v4.u32 {a0, a1, a2, a3}, [from];
    ld.global.cs.v4.u32 {a4, a5, a6, a7}, [from+512];
    ld.global.cs.v4.u32 {a8, a9, a10, a11}, [from+1024];
    ld.global.cs.v4.u32 {a12, a13, a14, a15}, [from+1536];
    st.global.cs.v4.u32 [to], {a0, a1, a2, a3};
    st.global.cs.v4.u32 [to+512], {a4, a5, a6, a7};
    st.global.cs.v4.u32 [to+1024], {a8, a9, a10, a11};
    st.global.cs.v4.u32 [to+1536], {a12, a13, a14, a15};
    bra PART_IS_DONE;

UNITS:
    and.b64 whole, left, 0xFFFFFFFFFFFFFFF0;
    mov.u64 place, lane16;
NEXT_UNIT:
    setp.ge.u64 over, place, whole;
    @over bra BYTES;
    add.u64 from, source, place;
    add.u64 to, destination, place;
    ld.global.cs.v4.u32 {a0, a1, a2, a3}, [from];
    st.global.cs.v4.u32 [to], {a0, a1, a2, a3};
    add.u64 place, place, 512;
    bra NEXT_UNIT;

BYTES:
    add.u64 place, whole, lane;
NEXT_BYTE:
    setp.ge.u64 over, place, left;
    @over bra PART_IS_DONE;
    add.u64 from, source, place;
    add.u64 to, destination, place;
    ld.global.cs.u8 byte, [from];
    st.global.cs.u8 [to], byte;
    add.u64 place, place, 32;
    bra NEXT_BYTE;

PART_IS_DONE:
    add.u64 part, part, warps;
    setp.lt.u64 over, part, parts;
    @over bra NEXT_PART;

COPY_IS_DONE:
    sub.u64 part, part, parts;
    add.u64 destination_at, destination_at, 8;
    add.u64 source_at, source_at, 8;
    add.u64 size_at, size_at, 8;
    bra NEXT_COPY;

END:
    ret;
}
"""
