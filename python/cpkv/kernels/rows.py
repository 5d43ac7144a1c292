"""The kernel: it copies rows between device pages and host segments, in either direction.

The rows of one component, laid end to end in the order of the pairs, are one stream of words. Tiles of
that stream go round the programs, so the work is even for any row size, and `blocks` programs leave
the other multiprocessors to the forward. No barrier and no shared memory: warps run ahead of each other,
which is what keeps enough bytes in flight.

Addresses are integers in memory that the kernel casts to pointers. As arguments they would be
specialised by their value (to 32 bits where they fit). Everything that is added to an address is 64 bits
wide; only the place inside a tile is 32, which `layout.MAX_ROW_BYTES` bounds.
"""

import triton
import triton.language as tl

FIELDS = 4
"""Integers that describe one component: device base, device stride, host base, segment bytes."""
WARPS = 16
TILE_WORDS = WARPS * 32 * 4
"""Four words a thread: with 16-byte words 32 KiB in flight in each program."""


@triton.jit
def _copy_component(
    fields,
    pages,
    slots,
    count,
    to_host: tl.constexpr,
    row_bytes: tl.constexpr,
    word_bytes: tl.constexpr,
    segment_pages: tl.constexpr,
    tile_words: tl.constexpr,
):
    # There is no 16-byte type: such a word is two int64 that the compiler joins to one access.
    lanes: tl.constexpr = 2 if word_bytes == 16 else 1  # noqa: PLR2004
    element: tl.constexpr = tl.int64 if word_bytes >= 8 else (tl.int32 if word_bytes == 4 else tl.uint8)  # noqa: PLR2004
    row_words: tl.constexpr = row_bytes // word_bytes

    device_base = tl.load(fields)
    device_stride = tl.load(fields + 1)
    host_base = tl.load(fields + 2)
    segment_bytes = tl.load(fields + 3)
    tiles = (count * row_words + tile_words - 1) // tile_words
    lane = tl.arange(0, lanes)[None, :]
    for tile in range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0).to(tl.int64)):
        first_word = tile * tile_words
        first_row = first_word // row_words
        word = (first_word - first_row * row_words).to(tl.int32) + tl.arange(0, tile_words)
        row_in_tile = word // row_words
        column = (word - row_in_tile * row_words).to(tl.int64) * word_bytes
        row = first_row + row_in_tile
        inside = row < count
        page = tl.load(pages + row, mask=inside, other=0)
        slot = tl.load(slots + row, mask=inside, other=0)
        segment = slot // segment_pages
        on_device = device_base + page * device_stride + column
        on_host = host_base + segment * segment_bytes + (slot - segment * segment_pages) * row_bytes + column

        device_pointer = on_device[:, None].to(tl.pointer_type(element)) + lane
        host_pointer = on_host[:, None].to(tl.pointer_type(element)) + lane
        device_pointer = tl.max_contiguous(tl.multiple_of(device_pointer, (word_bytes, word_bytes)), (1, lanes))
        host_pointer = tl.max_contiguous(tl.multiple_of(host_pointer, (word_bytes, word_bytes)), (1, lanes))
        if to_host:
            tl.store(host_pointer, tl.load(device_pointer, mask=inside[:, None]), mask=inside[:, None])
        else:
            tl.store(device_pointer, tl.load(host_pointer, mask=inside[:, None]), mask=inside[:, None])


# Nothing is specialised: a list of another length or at another address must not be compiled anew
# in the middle of a forward, and a count of 1 would become a constant without a width.
@triton.jit(do_not_specialize=["table", "pages", "slots", "count"])
def copy_rows(
    table,
    pages,
    slots,
    count: tl.int64,
    to_host: tl.constexpr,
    shapes: tl.constexpr,
    segment_pages: tl.constexpr,
    fields: tl.constexpr,
    tile_words: tl.constexpr,
):
    """Copy `count` rows of each component of one layer.

    Args:
        table: int64 of shape `(components, FIELDS)`, addresses and strides.
        pages: int64 of shape `(count,)`.
        slots: int64 of shape `(count,)`.
        count: Number of rows.
        to_host: The direction.
        shapes: For each component its row bytes and word bytes.
        segment_pages: Slots of one segment.
        fields: `FIELDS`.
        tile_words: Words that a program copies at once.
    """
    for component in tl.static_range(len(shapes)):
        _copy_component(
            table + component * fields,
            pages,
            slots,
            count,
            to_host,
            shapes[component][0],
            shapes[component][1],
            segment_pages,
            tile_words,
        )
