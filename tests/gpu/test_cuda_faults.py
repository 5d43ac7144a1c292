"""Faults of the engine `cuda` on a GPU: what is told, and that the words and slots stay right.

What breaks the context for good runs in a process of its own.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from gpu_needed import needs_gpu

from cpkv.device import BACKUP, RESTORE
from cpkv.device.cuda import CudaEngine, CudaError
from cpkv.device.cuda.driver import load_driver
from cpkv.layout import PageLayout

torch = needs_gpu()
from gpu_pools import SLEEP_CYCLES_PER_MS, gpu_pools, handle, spin, submit_layers  # noqa: E402 - needs torch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default"), pytest.mark.timeout(120)]


class FailingDriver:
    """The real driver, but for one call that fails when it is told to, and some attributes."""

    def __init__(self, *, without=()):
        self._driver = load_driver()
        self._without = without
        self.version = self._driver.version
        self.fails = ""

    def __getattr__(self, name):
        real = getattr(self._driver, name)

        def call(*arguments):
            if name == self.fails:
                self.fails = ""
                return 1
            code = real(*arguments)
            if name == "cuDeviceGetAttribute" and arguments[1] in self._without:
                arguments[0]._obj.value = 0
            return code

        return call


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent", "cuMemcpyBatchAsync", "cuStreamWriteValue64"])
@pytest.mark.parametrize("stream", [BACKUP, RESTORE])
def test_a_refused_submission_drains_and_the_next_one_lands(call, stream):
    driver = FailingDriver()
    engine = CudaEngine(copy_path="batch", driver=driver)
    pools = gpu_pools(PageLayout.mla(target_layers=2), pages=32, slots=32, segment_pages=32)
    pools.scribble(5)
    order = np.arange(32)
    wanted = pools.host_after(order, order)
    plan = engine.plan(pools.device, pools.host, order, order, "to_host")
    told = []
    driver.fails = call
    with pytest.raises(CudaError, match=rf"submission 1 of \w+: {call}.*CUDA_ERROR_INVALID_VALUE"):
        engine.submit(stream, plan, 0, 2, after=handle(), on_failure=told.append)
    assert len(told) == 1
    spin(engine, stream, 1)
    spin(engine, stream, submit_layers(engine, stream, plan, after=handle()))
    assert np.array_equal(pools.memory, wanted)
    engine.close()


def test_without_stream_writes_events_drive_the_words():
    engine = CudaEngine(copy_path="batch", driver=FailingDriver(without=(122,)))
    assert engine.explain()["acks"].startswith("an event behind the copies")
    pools = gpu_pools(PageLayout.mla(target_layers=4), pages=64, slots=64, segment_pages=32)
    pools.scribble(6)
    order = np.arange(64)
    wanted = pools.host_after(order, order)
    plan = engine.plan(pools.device, pools.host, order, order, "to_host")
    torch.cuda._sleep(20 * SLEEP_CYCLES_PER_MS)
    last = submit_layers(engine, BACKUP, plan, after=handle())
    engine.poll()
    assert engine.acks.load(BACKUP) < last
    spin(engine, BACKUP, last)
    assert np.array_equal(pools.memory, wanted)
    plan = engine.plan(pools.device, pools.host, order, order, "to_device")
    engine.wait(None, RESTORE, submit_layers(engine, RESTORE, plan, after=None))
    engine.close()


def in_a_process(code):
    """Run code that ends by printing JSON."""
    prelude = (
        "import json, logging, os\n"
        "import numpy as np, torch\n"
        "from cpkv.device import BACKUP, LATE, RESTORE\n"
        "from cpkv.device.cuda import CudaEngine, CudaError, CudaStreamError\n"
        "from cpkv.layout import Buffers, DevicePool, HostPool, PageLayout\n"
        "layout = PageLayout.mla(target_layers=1)\n"
        "tensor = torch.ones((32, layout.slot_bytes), dtype=torch.uint8, device='cuda')\n"
        "memory = torch.zeros(32 * layout.slot_bytes, dtype=torch.uint8, pin_memory=True)\n"
        "host = HostPool(layout=layout, slots=32, segment_pages=32, address=memory.data_ptr())\n"
        "device = DevicePool(layout, {'target_kv': Buffers.of([tensor])})\n"
        "order = np.arange(32)\n"
        "torch.cuda.synchronize()\n"
        "told = []\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_copy_that_the_driver_does_not_take_is_told_at_once(tell):
    said, _ = in_a_process(
        "engine = CudaEngine(copy_path='batch')\n"
        "plan = engine.plan(device, host, order[::-1].copy(), order, 'to_host')\n"
        "good = plan.arrays.sizes[0, 20]\n"
        "plan.arrays.sizes[0, 20] = 1 << 40\n"  # far beyond what was allocated on either side
        "message = ''\n"
        "try:\n"
        "    engine.submit(BACKUP, plan, 0, 1, after=None, on_failure=told.append)\n"
        "except CudaError as error:\n"
        "    message = str(error)\n"
        "engine.wait(None, BACKUP, 1)\n"
        "acked = engine.acks.load(BACKUP)\n"
        "plan.arrays.sizes[0, 20] = good\n"
        "engine.submit(BACKUP, plan, 0, 1, after=None, on_failure=told.append)\n"
        "engine.wait(None, BACKUP, 2)\n"
        "engine.close()\n"
        "print(json.dumps([message, len(told), acked, int(memory.sum()), int(tensor.sum())]))\n"
    )
    message, told, acked, landed, wanted = said
    tell(f"\n  {message}")
    assert "submission 1 of backup: cuMemcpyBatchAsync of 32 copies failed with CUDA_ERROR_" in message
    assert (told, acked, landed) == (1, 1, wanted)


def test_a_stream_that_fails_later_is_told_by_the_next_look(tell):
    said, log = in_a_process(
        "logging.basicConfig(level=logging.WARNING)\n"
        "engine = CudaEngine(copy_path='kernel')\n"
        "plan = engine.plan(device, host, order, order, 'to_host')\n"
        "plan.arrays.sources[0, 0] = 1 << 44\n"  # mapped by nobody
        "engine.submit(BACKUP, plan, 0, 1, after=None, on_failure=told.append)\n"
        "while not told:\n"
        "    engine.poll()\n"
        "engine.poll()\n"
        "waited = ''\n"
        "try:\n"
        "    engine.synchronize()\n"
        "except CudaStreamError as error:\n"
        "    waited = str(error)\n"
        "refused = ''\n"
        "try:\n"
        "    engine.submit(LATE, plan, 0, 1, after=None, on_failure=told.append)\n"
        "except CudaError as error:\n"
        "    refused = str(error)\n"
        "acked = engine.acks.load(BACKUP)\n"
        "closed = []\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        engine.close()\n"
        "    except CudaStreamError as error:\n"
        "        closed.append(str(error))\n"
        "print(json.dumps([str(told[0]), len(told), waited, refused, acked, closed]), flush=True)\n"
        "os._exit(0)\n"  # torch may abort when it gives back memory of a broken context
    )
    first, told, waited, refused, acked, closed = said
    tell(f"\n  {first}\n  {waited}\n  {refused}")
    assert "copy stream backup has failed: cuStreamQuery returned CUDA_ERROR_ILLEGAL_ADDRESS" in first
    assert "cuStreamSynchronize" in waited
    assert (told, acked) == (2, 0)
    assert refused
    assert len(closed) == 2
    for heard in closed:
        assert "cuStreamSynchronize" in heard, "who gives memory up behind the engine has to hear of it"
    assert "copy stream backup has failed" in log


def test_an_engine_that_nobody_closes_ends_with_the_process():
    said, _ = in_a_process(
        "engine = CudaEngine(copy_path='batch')\n"
        "plan = engine.plan(device, host, order, order, 'to_host')\n"
        "torch.cuda._sleep(100_000_000)\n"
        "engine.submit(BACKUP, plan, 0, 1, after=0, on_failure=told.append)\n"
        "print(json.dumps(len(told)))\n"
    )
    assert said == 0
