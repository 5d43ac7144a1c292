"""Whole forwards on real streams: layers leave while the next ones are computed, and come back as they are needed.

The compute stream carries a matrix product beside every layer, so that copies overlap with it. What a
page holds depends on its prompt, its component and its layer, and is compared whole.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest
from gpu_needed import needs_gpu

import cpkv
from cpkv.device import RESTORE
from cpkv.device.cuda import CudaEngine
from cpkv.drivers import HostTier, LayerHooks, torch_stream
from cpkv.host import CudaRegistrar, HostMemory
from cpkv.layout import Buffers, DevicePool, HostPool, PageLayout

torch = needs_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default"), pytest.mark.timeout(120)]

PAGES = 256
SLOTS = 512


def content(row_bytes, stamp):
    """The bytes of a row, on whatever device `stamp` is: different in every component, layer and prompt."""
    places = torch.arange(row_bytes, device=stamp.device, dtype=torch.int64)
    return ((places[None, :] * 31 + (places[None, :] >> 7) * 7 + stamp[:, None] * 101) % 251).to(torch.uint8)


@dataclass
class Request:
    """A prompt with its pages: those that were there, and behind them the new ones."""

    tokens: np.ndarray
    lease: cpkv.Lease
    held: int
    new: cpkv.PageIds
    transaction: cpkv.Transaction
    ids: torch.Tensor
    numbers: dict

    def insert(self, cache):
        cache.insert(self.tokens, self.new, self.lease, self.transaction)
        self.lease.release()

    def give_up(self):
        self.transaction.abort()
        self.lease.release()


class GpuWorld:
    """A rank on the GPU, whose requests are whole prompts named by a number."""

    def __init__(self, stack, *, layout, pages=PAGES, slots=SLOTS):
        self.layout = layout
        self.cache = cpkv.CacheManager(
            page_size=layout.page_size,
            key="pair",
            device_pages=pages,
            host_slots=slots,
            copies="tracked",
            draft=bool(layout.draft_layers),
        )
        self.tensors = {
            one.name: [torch.full((pages, one.row_bytes), 0xEE, dtype=torch.uint8, device="cuda") for _ in one.layers]
            for one in layout.components
        }
        device = DevicePool(layout, {name: Buffers.of(tensors) for name, tensors in self.tensors.items()})
        self.memory = stack.enter_context(
            HostMemory(slots * layout.slot_bytes, 32 * layout.slot_bytes, registrar=CudaRegistrar())
        )
        host = HostPool(layout=layout, slots=slots, address=self.memory.address)
        self.tier = stack.enter_context(
            HostTier(
                self.cache,
                CudaEngine(),
                device,
                host,
                compute_stream=torch_stream(),
            )
        )
        self.left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.restores = []
        self.step = 0

    def stamps(self, prompt, pages, row):
        """A number for each page of a prompt."""
        index = self.layout.rows.index(row)
        return torch.tensor([prompt * 1_000 + page * 16 + index * 7 for page in range(pages)], dtype=torch.int64)

    def tokens(self, prompt, pages):
        return np.arange(pages * self.layout.page_size + 1) + prompt * 1_000_000

    def start(self, prompt, pages, *, is_late=False, loads=True):
        """Take the pages of a prompt, and submit the restore of those that are on the host, or leave it to `restores`.

        If that is to be late, the copies and whatever is queued from now on begin together in some
        twenty milliseconds.
        """
        tokens = self.tokens(prompt, pages)
        lease = self.cache.lock(self.cache.match(tokens))
        count = pages - lease.device_pages
        assert self.cache.evict_for(count) is not None
        taken = self.cache.allocate(count)
        self.scribble(taken)
        on_host = lease.host_pages
        restore = self.cache.restore(lease, taken[:on_host])
        new = taken[on_host:]
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        ids = torch.tensor([*lease.page_ids(), *new], dtype=torch.int64).cuda()
        numbers = {row: self.stamps(prompt, pages, row).cuda() for row in self.layout.rows}
        if is_late:
            torch.cuda._sleep(40_000_000)
        self.restores += restore.operations
        if loads:
            self.tier.load(self.restores)
            self.restores = []
        return Request(tokens, lease, lease.pages, new, transaction, ids, numbers)

    def scribble(self, pages):
        ids = torch.tensor(list(pages), dtype=torch.int64).cuda()
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor[ids] = 0xEE

    def tensor(self, row):
        return self.tensors[row.component.name][row.component.layers.index(row.layer)]

    def compute(self, batch, layer):
        """What a layer does: a matrix product, and the rows of the new pages."""
        torch.matmul(self.left, self.left)
        for one in batch:
            for row in self.layout.rows_of(layer):
                written = content(row.component.row_bytes, one.numbers[row][one.held :])
                self.tensor(row)[one.ids[one.held :]] = written

    def read(self, batch, layer):
        """What attention would read of a layer, as it is when the compute stream gets there."""
        return [
            (one, row, self.tensor(row)[one.ids[: one.held]]) for one in batch for row in self.layout.rows_of(layer)
        ]

    def wrong(self, reads):
        """How many of the rows that were read are not what was written."""
        return sum(
            int((found != content(row.component.row_bytes, one.numbers[row][: one.held])).any(dim=1).sum())
            for one, row, found in reads
        )

    def forward(self, batch, *, waits=True):
        """Run a batch; return the rows that were read and are wrong."""
        reads = []
        self.tier.begin_forward([one.transaction for one in batch], [one.lease for one in batch])
        for layer in range(self.layout.layers):
            if waits:
                self.tier.layer_begins(layer)
            reads += self.read(batch, layer)
            self.compute(batch, layer)
            self.tier.layer_ended(layer)
        self.tier.end_forward()
        for one in batch:
            one.insert(self.cache)
        return self.wrong(reads)

    def settle(self):
        """Tick until nothing is open."""
        committed = []
        for _ in range(2_000_000):
            report = self.tier.tick(self.step)
            self.step += 1
            committed += report.committed
            assert not report.rolled_back
            if not self.cache.has_work():
                return committed
        pytest.fail("copies do not land")

    def wrong_on_host(self, prompt, pages):
        """Compare every byte of a prompt's slots, found by the formula counted anew."""
        lease = self.cache.lock(self.cache.match(self.tokens(prompt, pages)))
        slots = list(lease.host_slots())
        assert len(slots) == pages
        lease.release()
        memory = np.frombuffer(self.memory.buffer, np.uint8)
        wrong = 0
        for place, slot in enumerate(slots):
            segment, column = divmod(slot, 32)
            offset = 0
            for row in self.layout.rows:
                size = row.component.row_bytes
                begin = (segment * self.layout.slot_bytes + offset) * 32 + column * size
                expected = content(size, self.stamps(prompt, pages, row)[place : place + 1])[0].numpy()
                wrong += not np.array_equal(memory[begin : begin + size], expected)
                offset += size
        return wrong

    def evict_all(self):
        torch.cuda.synchronize()
        self.cache.evict(0, PAGES)
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor.fill_(0xEE)


LAYOUTS = {
    "bf16, shared indexers, draft": {"kv": "bfloat16", "index_layers": [0, 2, 3], "draft_layers": 1},
    "fp8 packed, index": {"kv": "fp8_packed", "index_layers": None},
    "fp8 plain, no index, draft": {"kv": "float8_e4m3fn", "draft_layers": 1},
}


@pytest.fixture(params=LAYOUTS)
def world(request):
    with ExitStack() as stack:
        yield GpuWorld(stack, layout=PageLayout.mla(target_layers=4, **LAYOUTS[request.param]))


def test_bytes_leave_during_forwards_and_come_back(world):
    """Twelve prompts in batches of three, all evicted, restored behind new pages, and compared whole."""
    for first in range(0, 12, 3):
        batch = [world.start(prompt, 20) for prompt in range(first, first + 3)]
        assert world.forward(batch) == 0
    assert len(world.settle()) == 12
    assert world.tier.counts.hooked_forwards == 4
    assert world.tier.counts.all_layer_forwards.total() == 0
    world.evict_all()
    assert [world.wrong_on_host(prompt, 20) for prompt in range(12)] == [0] * 12
    for first in range(0, 12, 3):
        batch = [world.start(prompt, 24, is_late=True) for prompt in range(first, first + 3)]
        assert [one.held for one in batch] == [20] * 3
        assert world.forward(batch) == 0
        world.settle()
    torch.cuda.synchronize()
    assert world.tier.counts.failed_submissions == 0
    world.cache.check_integrity()


def test_without_the_wait_stale_bytes_are_read(world):
    """The negative control of the test above: the reads come before the copies, and are seen to be wrong."""
    assert world.forward([world.start(1, 200)]) == 0
    world.settle()
    world.evict_all()
    assert world.forward([world.start(1, 200, is_late=True)], waits=False) > 0
    world.settle()
    torch.cuda.synchronize()


def test_the_first_layer_begins_long_before_the_last_has_landed(world, record_property):
    """A forward waits for its layer only, of all of its requests, and small copies pass a burst of restores."""
    batch = [world.start(prompt, 80) for prompt in range(3)]
    assert world.forward(batch) == 0
    world.settle()
    world.evict_all()
    torch.cuda.synchronize()
    begun, first, small, last = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    inputs = torch.arange(1024).pin_memory()
    batch = [world.start(prompt, 80, loads=False) for prompt in range(3)]
    torch.cuda._sleep(40_000_000)  # everything is queued before the copies begin
    begun.record()
    world.tier.load(world.restores)
    world.tier.begin_forward([], [one.lease for one in batch])
    world.tier.layer_begins(0)
    first.record()
    inputs.cuda(non_blocking=True)
    small.record()
    world.tier.layer_begins(world.layout.layers - 1)
    last.record()
    torch.cuda.synchronize()
    to_first, to_small, to_last = (begun.elapsed_time(event) for event in (first, small, last))
    record_property("first, small copy and last, ms", (to_first, to_small, to_last))
    assert to_first < to_small < to_last
    assert 2 * to_first < to_last, "the first layer does not wait for whole requests"
    world.tier.end_forward()
    for one in batch:
        one.give_up()
    world.settle()


def test_hooks_of_a_torch_model_copy_its_layers(world):
    """`register_forward_hook` and no other call; a repeated prompt copies nothing."""
    prompts = []

    class Layer(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def forward(self, hidden):
            world.compute(prompts, self.number)
            return hidden @ hidden

    target = [Layer(number) for number in range(world.layout.target_layers)]
    draft = [Layer(world.layout.target_layers + number) for number in range(world.layout.draft_layers)]
    with LayerHooks(world.tier, target, model="target"), LayerHooks(world.tier, draft, model="draft"):
        for _ in range(2):
            prompts[:] = [world.start(prompt, 10) for prompt in range(2)]
            world.tier.begin_forward([one.transaction for one in prompts], [one.lease for one in prompts])
            hidden = torch.eye(64, device="cuda")
            for layer in (*target, *draft):
                hidden = layer(hidden)
            world.tier.end_forward()
            for one in prompts:
                one.insert(world.cache)
    assert len(world.settle()) == 2
    assert world.tier.counts.backup_bytes == 20 * world.layout.slot_bytes
    world.evict_all()
    assert [world.wrong_on_host(prompt, 10) for prompt in range(2)] == [0, 0]


def test_a_graph_capture_is_refused(world):
    request = world.start(1, 4)
    world.tier.begin_forward([request.transaction], [request.lease])
    tensor = torch.zeros(16, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        tensor.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        tensor.add_(1)
        with pytest.raises(cpkv.UsageError, match="captured into a graph"):
            world.tier.layer_ended(0)
        tensor.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert tensor[0].item() == 3
    # Nothing was lost: the forward goes on, and its pages are backed up.
    for layer in range(world.layout.layers):
        world.compute([request], layer)
        world.tier.layer_ended(layer)
    world.tier.end_forward()
    request.insert(world.cache)
    assert world.settle() == [request.transaction.id]
    world.evict_all()
    assert world.wrong_on_host(1, 4) == 0


def test_memory_goes_after_the_copies(world):
    """Closing tier and memory with restores on their way ends them first."""
    batch = [world.start(prompt, 80) for prompt in range(3)]
    assert world.forward(batch) == 0
    world.settle()
    world.evict_all()
    batch = [world.start(prompt, 80) for prompt in range(3)]
    number = world.tier.engine.next_sequence(RESTORE) - 1
    world.tier.close()
    assert world.tier.engine.acks.load(RESTORE) == number
    world.memory.close()
    torch.cuda.synchronize()
    for one in batch:
        one.give_up()
