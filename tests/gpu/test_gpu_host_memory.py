"""Host memory registered with a real GPU: pinned, copied to in every piece, and given back.

Everything goes through the driver, so that neither torch nor cuda-bindings is needed.
"""

import ctypes
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import cpkv
from cpkv.doctor import examine
from cpkv.host import CudaRegistrar, Driver, HostMemory, Placement, gpu_node, libc
from cpkv.host.cuda_registrar import PORTABLE
from cpkv.host.registration import Registration

pytestmark = pytest.mark.gpu

MIB = 1 << 20
PIECE = 3 * MIB
KINDS = [Placement(pages="small"), Placement(pages="transparent"), Placement(kind="shared")]
NON_BLOCKING = 1
MEMORY_TYPE, HOST = 2, 1
"""An attribute of a pointer, and what it is for pinned memory."""


@pytest.fixture(scope="module")
def driver():
    """The driver, with the primary context of device 0 current in this thread."""
    try:
        driver = Driver()
        if not driver.devices():
            pytest.skip("the CUDA driver finds no GPU")
    except cpkv.DriverError as error:
        pytest.skip(f"no CUDA: {error}")
    context = ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), driver.handle(0))
    driver.call("cuCtxSetCurrent", context)
    return driver


@pytest.fixture
def registrar(driver):
    return CudaRegistrar(0, driver)


@pytest.fixture
def device(driver):
    """A stream, and room for a piece on the device."""
    stream, address = ctypes.c_void_p(), ctypes.c_uint64()
    driver.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(NON_BLOCKING))
    driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(PIECE))
    yield stream, address
    driver.call("cuMemFree_v2", address)
    driver.call("cuStreamDestroy_v2", stream)


def is_pinned(driver, address):
    """Whether the driver takes an address for host memory of its own."""
    kind = ctypes.c_uint()
    try:
        driver.call("cuPointerGetAttribute", ctypes.byref(kind), ctypes.c_int(MEMORY_TYPE), ctypes.c_uint64(address))
    except cpkv.DriverError:
        return False
    return kind.value == HOST


@pytest.mark.parametrize("placement", KINDS, ids=str)
@pytest.mark.parametrize("limit", [None, 8 * MIB, 3 * MIB])
def test_every_page_is_pinned_as_long_as_the_memory_is_open(driver, registrar, placement, limit):
    with HostMemory(10 * PIECE, PIECE, placement, registrar=registrar, register_limit_bytes=limit) as memory:
        first = memory.address
        pages = range(first, first + memory.bytes, 4096)
        assert all(is_pinned(driver, page) for page in pages)
        for part in memory.ranges:
            flags = ctypes.c_uint()
            driver.call("cuMemHostGetFlags", ctypes.byref(flags), ctypes.c_void_p(part.address))
            assert flags.value & PORTABLE
        assert len(memory.ranges) == {None: 1, 8 * MIB: 5, 3 * MIB: 10}[limit]
    assert not any(is_pinned(driver, page) for page in pages)


@pytest.mark.parametrize("placement", KINDS, ids=str)
@pytest.mark.parametrize("limit", [None, 8 * MIB])
def test_copies_land_in_every_piece(driver, registrar, device, placement, limit):
    """Each piece is filled on the device, copied to the host, and copied back; ranges end between pieces."""
    size, (stream, device_piece) = ctypes.c_size_t(PIECE), device
    with HostMemory(10 * PIECE, PIECE, placement, registrar=registrar, register_limit_bytes=limit) as memory:
        for piece in range(10):
            host = ctypes.c_void_p(memory.address + piece * PIECE)
            driver.call("cuMemsetD8Async", device_piece, ctypes.c_ubyte(piece + 1), size, stream)
            driver.call("cuMemcpyDtoHAsync_v2", host, device_piece, size, stream)
        driver.call("cuStreamSynchronize", stream)
        rows = np.frombuffer(memory.buffer, np.uint8).reshape(10, PIECE)
        assert (rows == np.arange(1, 11, dtype=np.uint8)[:, None]).all()
        rows[:] = np.arange(101, 111, dtype=np.uint8)[:, None]
        back = np.zeros(PIECE, np.uint8)
        for piece in range(10):
            host = ctypes.c_void_p(memory.address + piece * PIECE)
            driver.call("cuMemcpyHtoDAsync_v2", device_piece, host, size, stream)
            driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(back.ctypes.data), device_piece, size, stream)
            driver.call("cuStreamSynchronize", stream)
            assert (back == 101 + piece).all()
        del rows


def test_pages_beyond_31_and_32_bits(driver, registrar, device):
    """Copies to pages of 41,984 bytes on both sides of 2**31 and 2**32, and no memory but what was asked for."""
    page, wanted = 64 * 656, [51_150, 51_151, 102_299, 102_300, 102_301]
    size, (stream, row) = 102_302 * page, device
    with HostMemory(size, 32 * page, registrar=registrar) as memory:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
        resident = re.search(rf"^{memory.address:x}-.*?^Rss: +(\d+) kB", smaps, re.DOTALL | re.MULTILINE)
        assert abs((int(resident[1]) << 10) - size) <= size // 100
        for number in wanted:
            driver.call("cuMemsetD8Async", row, ctypes.c_ubyte(number % 251), ctypes.c_size_t(page), stream)
            host = ctypes.c_void_p(memory.address + number * page)
            driver.call("cuMemcpyDtoHAsync_v2", host, row, ctypes.c_size_t(page), stream)
        driver.call("cuStreamSynchronize", stream)
        rows = np.frombuffer(memory.buffer, np.uint8, count=size).reshape(-1, page)
        for number in wanted:
            assert (rows[number] == number % 251).all(), number
        assert not rows[51_152:102_299:997].any()
        del rows


def test_a_range_that_the_driver_refuses_undoes_the_others(driver, registrar):
    with HostMemory(10 * PIECE, PIECE) as memory:
        taken = memory.address + 3 * 6 * MIB
        registrar.register(taken, 6 * MIB)
        registration = Registration(registrar)
        with pytest.raises(cpkv.RegistrationError, match=r"range 4 of 5, .*CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"):
            registration.register(memory.address, memory.bytes, PIECE, 8 * MIB)
        assert registration.ranges == ()
        for part in (0, 1, 2, 4):
            assert not is_pinned(driver, memory.address + part * 6 * MIB)
        registrar.unregister(taken, 6 * MIB)
        registration.register(memory.address, memory.bytes, PIECE, 8 * MIB)
        assert len(registration.ranges) == 5
        assert registration.undo() == []


def test_what_is_not_registered_is_not_taken_back(registrar):
    with HostMemory(MIB, MIB) as memory, pytest.raises(cpkv.RegistrationError, match="cuMemHostUnregister: CUDA_ERROR"):
        registrar.unregister(memory.address, MIB)


def test_any_thread_may_do_it_and_keeps_its_context(driver, registrar):
    def current():
        context = ctypes.c_void_p()
        driver.call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    contexts = []

    def work():
        contexts.append(current())
        with HostMemory(MIB, MIB, registrar=registrar) as memory:
            contexts.append(len(memory.ranges))
        contexts.append(current())

    before = current()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert contexts == [None, 1, None]
    with HostMemory(MIB, MIB, registrar=registrar) as memory:
        assert is_pinned(driver, memory.address)
        assert current() == before
    assert current() == before


def test_no_such_device(driver):
    with pytest.raises(cpkv.DriverError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        CudaRegistrar(4_000, driver)


@pytest.mark.parametrize("end", ["", "memory.close()", "del memory", "raise SystemExit(0)"])
@pytest.mark.usefixtures("driver")
def test_a_program_ends_in_any_way(end):
    code = (
        "from cpkv.host import CudaRegistrar, HostMemory\n"
        f"memory = HostMemory({8 * MIB}, {MIB}, registrar=CudaRegistrar(), register_limit_bytes={MIB})\n"
        f"print(len(memory.ranges))\n{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


@pytest.mark.parametrize("placement", KINDS, ids=str)
def test_pages_are_near_to_the_gpu(driver, registrar, placement, caplog):
    caplog.set_level(logging.INFO)
    node = gpu_node(driver.device(0).pci_address)
    if node is None:
        pytest.skip("this machine does not say on which NUMA node the GPU is")
    near = Placement(placement.kind, placement.pages, node)
    with HostMemory(256 * MIB, MIB, near, registrar=registrar) as memory:
        if "not placed" in caplog.text or "nobody knows" in caplog.text:
            pytest.skip("this machine does not allow to place memory or to ask where it is")
        step = memory.bytes // 1_000 // 4096 * 4096
        addresses = list(range(memory.address, memory.address + memory.bytes, step))
        assert libc.nodes_of(addresses) == {node: len(addresses)}


def test_torch_takes_it_for_pinned(registrar):
    torch = pytest.importorskip("torch")
    source = torch.arange(PIECE, device="cuda", dtype=torch.int64).to(torch.uint8)
    with HostMemory(10 * PIECE, PIECE, registrar=registrar, register_limit_bytes=8 * MIB) as memory:
        rows = torch.from_numpy(np.frombuffer(memory.buffer, np.uint8).reshape(10, PIECE))
        for row in rows:
            assert row.is_pinned()
            row.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        assert bool((rows == source.cpu()).all())
        del row, rows


def test_the_doctor_sees_each_gpu_and_what_its_link_carries(driver):
    found = examine()
    checks = {check.name: check for check in found}
    assert checks["CUDA driver"].state in ("ok", "warn")
    assert checks["CUDA driver"].seen.startswith("for CUDA 1")
    assert re.match(r".+ at [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7], NUMA node ", checks["GPU 0"].seen)
    assert checks["copy engine"].seen.startswith("cuda: ")
    for gpu in range(len(driver.devices())):
        assert f"link of GPU {gpu}" in checks
        measured = checks[f"link of GPU {gpu}, measured"]
        rates = re.match(
            r"([\d.]+) GB/s to host, ([\d.]+) GB/s to device(: \d+% of the [\d.]+ GB/s of|;) ", measured.seen
        )
        assert rates, measured
        assert min(float(rates[1]), float(rates[2])) > 1
        # Others may use the link at this moment: that it is slow is no fault here.
        assert measured.state == "ok" or measured.wanted.startswith("at least 80% of it, ")
        paths = [check for check in found if check.name == f"copy path of GPU {gpu}"]
        assert {check.state for check in paths} == {"ok"}
        whats = [check.seen.partition(": ")[0] for check in paths]
        assert "acks" in whats
        for direction in ("to_host", "to_device"):
            assert any(what.startswith(f"{direction}, runs of ") for what in whats), whats
