import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import cpkv
from cpkv.layout import (
    INDEX_BYTES_PER_TOKEN,
    MLA_BYTES_PER_TOKEN,
    Buffers,
    Component,
    DevicePool,
    HostPool,
    PageLayout,
    check_geometry,
    check_memory,
)
from pools import naive_offsets, small_layout


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(("kv", "row_bytes"), [("bfloat16", 73_728), ("fp8_packed", 41_984), ("float8_e4m3fn", 36_864)])
def test_formats_have_the_bytes_that_engines_store(kv, row_bytes):
    layout = PageLayout.mla(target_layers=61, draft_layers=1, kv=kv, index_layers=None)
    assert layout.component("target_kv").row_bytes == layout.component("draft_kv").row_bytes == row_bytes
    assert layout.component("target_index").row_bytes == layout.component("draft_index").row_bytes == 8_448


@pytest.mark.parametrize(("layers", "slot_bytes"), [(61, 5_012_736), (78, 6_409_728)])
def test_a_page_of_a_whole_model(layers, slot_bytes):
    """DeepSeek-V3.2 and GLM-5 in bf16, target only."""
    assert PageLayout.mla(target_layers=layers, index_layers=None).slot_bytes == slot_bytes


def test_k_and_v_of_an_attention_model():
    layout = PageLayout.attention(target_layers=2, heads=8, head_dim=128, page_size=16, draft_layers=1)
    assert [row.component.name for row in layout.rows] == ["target_k", "target_v"] * 2 + ["draft_k", "draft_v"]
    assert layout.slot_bytes == 6 * 16 * 8 * 128 * 2


def test_rows_are_in_the_order_in_which_a_forward_fills_them():
    layout = small_layout()
    assert [(row.component.name, row.layer) for row in layout.rows] == [
        ("target_kv", 0),
        ("target_index", 0),
        ("target_kv", 1),
        ("target_kv", 2),
        ("target_index", 2),
        ("draft_kv", 0),
        ("draft_index", 0),
    ]
    assert layout.layers == 4
    assert [len(layout.rows_of(layer)) for layer in range(4)] == [2, 1, 2, 2]
    assert layout.first_rows == (0, 2, 3, 5, 7)


def test_a_layer_may_own_nothing():
    kv = Component(name="target_kv", model="target", layers=(1,), row_bytes=8)
    layout = PageLayout(page_size=1, target_layers=3, components=(kv,))
    assert [layout.rows_of(layer) for layer in (0, 2)] == [(), ()]
    assert layout.slot_bytes == 8


def test_everything_wrong_with_a_layout_is_told_at_once():
    wrong = (
        Component(name="target_kv", model="target", layers=(0, 2), row_bytes=0),
        Component(name="target_kv", model="target", layers=(1, 0), row_bytes=8),
        Component(name="draft_kv", model="draft", layers=(0,), row_bytes=8),
        Component(name="x", model="teacher", layers=(0,), row_bytes=8),
    )
    with pytest.raises(cpkv.ConfigError) as refused:
        PageLayout(page_size=0, target_layers=2, components=wrong)
    for said in (
        "page_size is 0",
        "two components are called 'target_kv'",
        "rows of 0 bytes",
        "target_kv has layers [2], want 0 to 1",
        "target_kv has layers [1, 0], want each once and in order",
        "draft_kv has layers [0], want 0 to -1",
        "x is of model 'teacher', want 'target' or 'draft'",
    ):
        assert said in str(refused.value)


@given(
    segment_pages=st.integers(1, 6),
    segments=st.integers(1, 4),
    draft=st.booleans(),
    index=st.booleans(),
    address=st.integers(0, 2**62),
)
def test_addresses_are_those_of_counting_and_can_be_reversed(segment_pages, segments, draft, index, address):
    layout = small_layout(draft=draft, index=index)
    slots = segments * segment_pages
    pool = HostPool(layout=layout, slots=slots, segment_pages=segment_pages, address=address)
    addresses = pool.addresses(np.arange(slots))
    for (slot, row), offset in naive_offsets(layout, slots, segment_pages).items():
        found = int(addresses[layout.rows.index(row), slot])
        assert found == address + offset
        for byte in (0, row.component.row_bytes - 1):
            place = pool.place(found + byte)
            assert (place.slot, place.row, place.byte) == (slot, row, byte)
    for outside in (address - 1, address + pool.bytes):
        with pytest.raises(cpkv.PageError, match=f"address is {outside}, want {address} to"):
            pool.place(outside)


@pytest.mark.parametrize("page", [51_150, 51_151, 102_300, 102_301, 3_000_000_000])
def test_addresses_are_in_64_bits(page):
    """Row 51,151 of 41,984 bytes lies beyond 2**31, row 102,301 beyond 2**32."""
    row_bytes = 64 * MLA_BYTES_PER_TOKEN["fp8_packed"]
    kv = Component(name="target_kv", model="target", layers=(0, 1), row_bytes=row_bytes)
    layout = PageLayout(page_size=64, target_layers=2, components=(kv,))
    for segment_pages in (1, 32, 4_000_000_000):
        slots = -(-4_000_000_000 // segment_pages) * segment_pages
        pool = HostPool(layout=layout, slots=slots, segment_pages=segment_pages, address=2**40)
        segment, column = divmod(page, segment_pages)
        wanted = [
            2**40 + segment * segment_pages * 2 * row_bytes + layer * row_bytes * segment_pages + column * row_bytes
            for layer in range(2)
        ]
        assert pool.addresses(ints(page)).ravel().tolist() == wanted
    buffers = Buffers(addresses=(2**40, 2**50), stride_bytes=row_bytes, row_bytes=row_bytes, pages=4_000_000_000)
    device = DevicePool(layout, {"target_kv": buffers})
    assert device.addresses(ints(page)).ravel().tolist() == [2**40 + page * row_bytes, 2**50 + page * row_bytes]


@pytest.mark.parametrize("wrong", [-1, 8, 2**40])
def test_ids_are_checked_before_they_become_addresses(wrong):
    layout = small_layout()
    with pytest.raises(cpkv.PageError, match=f"host slot is {wrong}, want 0 to 7"):
        HostPool(layout=layout, slots=8, segment_pages=4).addresses(ints(0, wrong))
    names = {component.name: component for component in layout.components}
    buffers = {
        name: Buffers(
            addresses=tuple(10_000 * (place + 1) + 1_000 * layer for layer in range(len(one.layers))),
            stride_bytes=one.row_bytes,
            row_bytes=one.row_bytes,
            pages=8,
        )
        for place, (name, one) in enumerate(names.items())
    }
    with pytest.raises(cpkv.PageError, match=f"device page is {wrong}, want 0 to 7"):
        DevicePool(layout, buffers).addresses(ints(0, wrong))


def test_a_pool_that_cannot_be_addressed_is_refused():
    layout = PageLayout.mla(target_layers=61)
    with pytest.raises(cpkv.ConfigError, match=r"ends at byte \d+, want at most 9223372036854775807"):
        HostPool(layout=layout, slots=2**43, segment_pages=1)
    with pytest.raises(cpkv.ConfigError, match="slots is 33, want whole segments of 32"):
        HostPool(layout=layout, slots=33)
    with pytest.raises(cpkv.ConfigError, match="segment_pages is 0, want at least 1"):
        HostPool(layout=layout, slots=32, segment_pages=0)


# --- The engine's tensors ---


def test_a_buffer_of_tokens_and_a_buffer_of_pages():
    tokens = np.zeros((10 * 64, 1, 576), np.uint16)
    kv = Buffers.of([tokens], tokens_per_page=64)
    assert (kv.pages, kv.row_bytes, kv.stride_bytes) == (10, 73_728, 73_728)
    pages = np.zeros((10, 64 * INDEX_BYTES_PER_TOKEN), np.uint8)
    index = Buffers.of([pages, pages.copy()])
    assert (index.pages, index.row_bytes, index.stride_bytes) == (10, 8_448, 8_448)
    assert index.addresses[0] == pages.ctypes.data


def test_tokens_of_a_last_page_that_is_not_whole_are_no_page():
    assert Buffers.of([np.zeros((65, 4), np.uint8)], tokens_per_page=64).pages == 1


def test_pages_may_lie_apart_but_their_bytes_may_not():
    wide = np.zeros((8, 32), np.uint8)
    buffers = Buffers.of([wide[:, :24]])
    assert (buffers.row_bytes, buffers.stride_bytes) == (24, 32)
    with pytest.raises(cpkv.ConfigError, match="want the bytes of a page side by side"):
        Buffers.of([wide[:, ::2]])
    with pytest.raises(cpkv.ConfigError, match="want the bytes of a page side by side"):
        Buffers.of([np.zeros((4, 6, 8), np.uint8).transpose(0, 2, 1)])
    with pytest.raises(cpkv.ConfigError, match="want 24 bytes from a token to the next"):
        Buffers.of([wide[:, :24]], tokens_per_page=2)
    with pytest.raises(cpkv.ConfigError, match=r"tensor 1 has shape \(4, 8\)"):
        Buffers.of([np.zeros((8, 8), np.uint8), np.zeros((4, 8), np.uint8)])
    with pytest.raises(cpkv.ConfigError, match="want pages in its first dimension"):
        Buffers.of([np.zeros((), np.uint8)])


@pytest.mark.parametrize("other", [None, "pages", [1, 2], b"12345678", memoryview(bytearray(8)), 7])
def test_what_is_no_tensor_is_no_buffer(other):
    with pytest.raises(cpkv.ConfigError, match=f"a buffer is a {type(other).__name__}, want a torch tensor or a numpy"):
        Buffers.of([other])


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_page_has_at_least_one_token(tokens):
    with pytest.raises(cpkv.ConfigError, match=f"tokens_per_page is {tokens}, want at least 1"):
        Buffers.of([np.zeros((8, 8), np.uint8)], tokens_per_page=tokens)


def test_an_array_that_cannot_be_written_is_no_target_of_restores():
    array = np.zeros((8, 8), np.uint8)
    array.flags.writeable = False
    for readonly in (array, np.frombuffer(b"12345678", np.uint8).reshape(1, 8)):
        with pytest.raises(cpkv.ConfigError, match="an array is read-only"):
            Buffers.of([readonly])


class Tensor:
    """What is used of a torch tensor."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def data_ptr(self):
        return self.array.ctypes.data if self.array is not None else 0

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def element_size(self):
        return self.array.itemsize


def test_torch_tensors_count_strides_in_elements():
    buffers = Buffers.of([Tensor(np.zeros((8, 3, 5), np.uint32)[:, :, :])], tokens_per_page=2)
    assert (buffers.pages, buffers.row_bytes, buffers.stride_bytes) == (4, 120, 120)


def test_memory_that_was_given_up_is_noticed():
    kv = Component(name="target_kv", model="target", layers=(0,), row_bytes=8)
    layout = PageLayout(page_size=1, target_layers=1, components=(kv,))
    tensor = Tensor(np.zeros((4, 8), np.uint8))
    pool = DevicePool(layout, {"target_kv": Buffers.of([tensor])})
    pool.check_alive()
    kept, tensor.array = tensor.array, None
    with pytest.raises(cpkv.ConfigError, match="the device memory of target_kv has moved or was freed"):
        pool.check_alive()
    tensor.array = kept
    pool.check_alive()


def test_everything_that_does_not_fit_a_layout_is_told_at_once():
    layout = small_layout()
    array = np.zeros((8, 24), np.uint8)
    with pytest.raises(cpkv.ConfigError) as refused:
        DevicePool(
            layout,
            {
                "target_kv": Buffers.of([array, array[:, :].copy()]),
                "target_index": Buffers.of([np.zeros((4, 10), np.uint8) for _ in range(2)]),
                "draft_kv": Buffers(addresses=(1 << 20,), stride_bytes=20, row_bytes=24, pages=8),
                "scale": Buffers.of([array]),
            },
        )
    for said in (
        "there are buffers 'scale', which no component has",
        "target_kv has 2 buffers, want 3",
        "target_index has pages of 10 bytes on the device, want 9",
        "draft_index has no buffers",
        "buffers have different numbers of pages (target_kv 8, target_index 4, draft_kv 8, scale 8)",
        "draft_kv has 20 bytes from a page to the next, want at least 24",
        "buffers 0 of scale and 0 of target_kv overlap",
    ):
        assert said in str(refused.value)


@pytest.mark.parametrize(("address", "stride"), [(2**62, 2**61), (2**63, 8), (1, 2**63), (2**63 - 31, 8)])
def test_a_buffer_beyond_64_bits_is_refused(address, stride):
    kv = Component(name="target_kv", model="target", layers=(0, 1), row_bytes=8)
    layout = PageLayout(page_size=1, target_layers=2, components=(kv,))
    buffers = Buffers(addresses=(1, address), stride_bytes=stride, row_bytes=8, pages=4)
    end = address + 3 * stride + 8
    with pytest.raises(cpkv.ConfigError, match=f"target_kv has a buffer that ends at byte {end}, want at most"):
        DevicePool(layout, {"target_kv": buffers})


def test_keys_and_values_that_take_turns_in_one_tensor_do_not_overlap():
    layout = PageLayout.attention(target_layers=1, heads=1, head_dim=6, page_size=2)
    tensor = np.zeros((4, 2, 24), np.uint8)
    keys, values = Buffers.of([tensor[:, 0]]), Buffers.of([tensor[:, 1]])
    pool = DevicePool(layout, {"target_k": keys, "target_v": values})
    assert pool.pages == 4
    assert not pool.is_dense
    begin = tensor.__array_interface__["data"][0]
    assert (pool.addresses(np.arange(4)) - begin).tolist() == [[0, 48, 96, 144], [24, 72, 120, 168]]
    values = Buffers(addresses=(begin + 23,), stride_bytes=48, row_bytes=24, pages=4)
    with pytest.raises(cpkv.ConfigError, match="buffers 0 of target_k and 0 of target_v overlap"):
        DevicePool(layout, {"target_k": keys, "target_v": values})


def test_a_buffer_without_memory_is_refused():
    kv = Component(name="target_kv", model="target", layers=(0,), row_bytes=8)
    layout = PageLayout(page_size=1, target_layers=1, components=(kv,))
    with pytest.raises(cpkv.ConfigError, match="target_kv has a buffer at address 0"):
        DevicePool(layout, {"target_kv": Buffers(addresses=(0,), stride_bytes=8, row_bytes=8, pages=4)})


# --- All of it together ---


def pools(layout, pages, slots, segment_pages):
    buffers = {
        one.name: Buffers.of([np.zeros((pages, one.row_bytes), np.uint8) for _ in one.layers])
        for one in layout.components
    }
    return DevicePool(layout, buffers), HostPool(layout=layout, slots=slots, segment_pages=segment_pages)


def tracked(**settings):
    return cpkv.CacheManager(
        **{"device_pages": 16, "host_slots": 16, "segment_pages": 4, "page_size": 2, "draft": True, "copies": "tracked"}
        | settings
    )


def test_pools_that_fit_their_cache():
    check_geometry(tracked(), *pools(small_layout(), 16, 16, 4))
    check_geometry(tracked(lanes=2, own_lane=1), *pools(small_layout(), 9, 8, 4))


def test_everything_that_does_not_fit_the_cache_is_told_at_once():
    device, host = pools(small_layout(draft=False, page_size=4), 3, 6, 2)
    with pytest.raises(cpkv.ConfigError) as refused:
        check_geometry(tracked(lanes=2, own_lane=0), device, host)
    for said in (
        "page_size of the layout is 4, want 2",
        "segment_pages of the host pool is 2, want 4",
        "slots of the host pool is 6, want 8",
        "the device pool has 3 pages, want at least 8",
        "the layout has no draft, and the cache was made with draft=True",
    ):
        assert said in str(refused.value)


def test_what_every_rank_has_does_not_go_with_what_is_striped():
    kv = Component(name="target_kv", model="target", layers=(0,), row_bytes=8)
    index = Component(name="target_index", model="target", layers=(0,), row_bytes=8, is_replicated=True)
    layout = PageLayout(page_size=2, target_layers=1, components=(kv, index))
    device, host = pools(layout, 16, 8, 4)
    with pytest.raises(cpkv.ConfigError, match="target_index is replicated on every rank and target_kv striped over 2"):
        check_geometry(tracked(lanes=2, draft=False, own_lane=0), device, host)
    check_geometry(tracked(draft=False), *pools(layout, 16, 16, 4))


def test_pools_of_different_layouts_are_refused():
    device, _ = pools(small_layout(), 16, 16, 4)
    _, host = pools(small_layout(index=False), 16, 16, 4)
    with pytest.raises(cpkv.ConfigError, match="device pool and host pool have different layouts"):
        check_geometry(tracked(), device, host)


def test_offsets_without_memory_are_no_pool_to_copy_to():
    device, host = pools(small_layout(), 16, 16, 4)
    with pytest.raises(cpkv.ConfigError, match=f"the host pool has {host.bytes} bytes at address 0, want the address"):
        check_memory(device, host)


@pytest.mark.parametrize("offset", [-95, 0, 5, 191])
def test_a_host_pool_over_a_device_buffer_is_refused(offset):
    """One byte in common is enough; side by side is fine."""
    kv = Component(name="target_kv", model="target", layers=(0,), row_bytes=24)
    layout = PageLayout(page_size=2, target_layers=1, components=(kv,))
    buffers = Buffers(addresses=(1 << 20,), stride_bytes=24, row_bytes=24, pages=8)
    device = DevicePool(layout, {"target_kv": buffers})
    size = 4 * layout.slot_bytes
    address = (1 << 20) + offset
    with pytest.raises(
        cpkv.ConfigError, match=rf"bytes {address} to {address + size - 1}\) overlaps buffer 0 of target_kv"
    ):
        check_memory(device, HostPool(layout=layout, slots=4, segment_pages=4, address=address))
    for beside in ((1 << 20) - 96, (1 << 20) + 192):
        check_memory(device, HostPool(layout=layout, slots=4, segment_pages=4, address=beside))
