"""Host memory: as much as was asked for, near, in ranges that cut no piece, and given back on every way out."""

import ctypes
import errno
import gc
import logging
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from itertools import product
from math import ceil, lcm
from pathlib import Path

import numpy as np
import pytest

import cpkv
from cpkv.host import HostMemory, MlockRegistrar, Placement, Range, gpu_node, libc, node_cpus, numa, touching
from cpkv.host.mapping import PAGE_BYTES
from cpkv.host.registration import Registration, cut, cut_unit_bytes
from fake_host import MIB, FakeHost

PIECE = 3 * MIB
SHARED = Placement(kind="shared")
KINDS = [Placement(), Placement(pages="small"), SHARED]


@pytest.fixture(autouse=True)
def _interrupts_are_heard():
    """What runs in the background of a shell ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Recorder:
    """A registrar that notes what it is told, and refuses what a test wants."""

    locks_memory = False

    def __init__(self, *, fails_at=(), limit=None):
        self.calls, self.held = [], {}
        self.fails_at, self.limit = fails_at, limit

    def register(self, address, size_bytes):
        number = sum(call[0] == "register" for call in self.calls) + 1
        self.calls.append(("register", address, size_bytes))
        if number in self.fails_at or (self.limit is not None and size_bytes > self.limit):
            raise cpkv.RegistrationError(f"call {number} is refused")  # noqa: EM102
        assert not any(address < end and start < address + size_bytes for start, end in self.held.items())
        assert is_mapped(address)
        self.held[address] = address + size_bytes

    def unregister(self, address, size_bytes):
        self.calls.append(("unregister", address, size_bytes))
        if self.held.get(address) != address + size_bytes:
            raise cpkv.RegistrationError("not registered")
        assert is_mapped(address), "unmapped under the registration"
        del self.held[address]

    def sizes(self, kind):
        return [size for what, _, size in self.calls if what == kind]


AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)$((?:\n[A-Z].*)*)", re.MULTILINE)


def areas():
    """The mappings that only host memory makes: zero in children, or of a file of its own; size by address."""
    found = {}
    for area in AREA.finditer(Path("/proc/self/smaps").read_text(encoding="utf-8")):
        size = int(area[2], 16) - int(area[1], 16)
        # The C library has small ones for its random numbers.
        if "cpkv-host" in area[3] or (" wf" in area[4] and size >= MIB):
            found[int(area[1], 16)] = (size, int(re.search(r"Rss: +(\d+)", area[4])[1]) << 10)
    return found


def is_mapped(address):
    areas = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ", Path("/proc/self/maps").read_text(encoding="utf-8"), re.MULTILINE)
    return any(int(start, 16) <= address < int(end, 16) for start, end in areas)


def held():
    """Everything that a memory could leave behind."""
    return {
        "areas": areas(),
        "files": [path.name for path in Path("/dev/shm").glob("cpkv-host-*")],  # noqa: S108 - where they would be
        "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],  # noqa: PTH208 - the last is that of the listing
        "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("cpkv-touch")],
        "processors": os.sched_getaffinity(0),
    }


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = held()
    assert before["areas"] == {}
    yield
    if held() != before:
        gc.collect()
        assert held() == before


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(touching, "CHUNK_BYTES", MIB)


# --- Size ---


@pytest.mark.parametrize("placement", KINDS, ids=str)
@pytest.mark.parametrize("asked", [33 * MIB, 33 * MIB + 1, 7 * MIB - 4095])
def test_what_is_asked_for_is_what_is_used(placement, asked):
    registrar = Recorder()
    with HostMemory(asked, PIECE, placement, registrar=registrar) as memory:
        whole_pages = -(-asked // 4096) * 4096
        assert (memory.asked_bytes, memory.bytes, len(memory.buffer)) == (asked, whole_pages, whole_pages)
        assert sum(registrar.sizes("register")) == whole_pages
        ((address, (size, resident)),) = areas().items()
        assert (address, size) == (memory.address, whole_pages)
        assert abs(resident - asked) <= asked // 100


def test_the_process_grows_by_no_more_than_that():
    def resident():
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * PAGE_BYTES

    asked, before = 96 * MIB + 4096, resident()
    with HostMemory(asked, MIB):
        assert abs(resident() - before - asked) <= asked // 100
    assert abs(resident() - before) <= asked // 100


def test_the_memory_is_zero_writable_and_seen_by_numpy():
    for placement in KINDS:
        with HostMemory(5 * MIB, MIB, placement) as memory:
            numbers = np.frombuffer(memory.buffer, np.int64)
            assert (numbers.ctypes.data, numbers.nbytes, numbers.any()) == (memory.address, memory.bytes, False)
            numbers[:] = np.arange(len(numbers))
            assert bytes(memory.buffer[80:88]) == (10).to_bytes(8, "little")
            assert ctypes.c_int64.from_address(memory.address + memory.bytes - 8).value == len(numbers) - 1
            del numbers


def test_addresses_beyond_31_and_32_bits(tmp_path):
    """Pages of 41,984 bytes around 2**31 and 2**32, in memory that is there only where it is touched."""
    page, wanted = 64 * 656, [51_150, 51_151, 102_299, 102_300, 102_301]
    size = 102_302 * page
    registrar = Recorder()
    with HostMemory(
        size, page, Placement(pages="small"), touch_threads=0, registrar=registrar, files=FakeHost(tmp_path)
    ) as memory:
        assert memory.ranges == (Range(memory.address, memory.bytes),)
        assert memory.bytes == -(-size // 4096) * 4096 > 1 << 32
        rows = np.frombuffer(memory.buffer, np.uint8, count=size).reshape(-1, page)
        for number in wanted:
            rows[number] = number % 251
        for number in wanted:
            address = memory.address + number * page
            assert ctypes.string_at(address, page) == bytes([number % 251]) * page, number
        ((_, (_, resident)),) = areas().items()
        assert resident < 2 * MIB, "the rest is not there"
        del rows


def test_ranges_beyond_32_bits():
    sizes = cut(3 * (1 << 40) + 5, 3 << 20, 1 << 38)
    assert sum(sizes) == 3 * (1 << 40) + 5
    assert all(size % (3 << 20) == 0 for size in sizes[:-1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"asked_bytes": 0}, "asked_bytes is 0, want a whole number from 1 to"),
        ({"asked_bytes": 1 << 63}, "asked_bytes is 9223372036854775808, want a whole number from 1 to"),
        ({"asked_bytes": 1e6}, "asked_bytes is 1000000.0, want a whole number from 1 to"),
        ({"piece_bytes": -1, "ranks_on_host": 0}, "piece_bytes is -1, .*; ranks_on_host is 0, want"),
        ({"touch_threads": -1}, "touch_threads is -1, want a whole number from 0"),
        ({"piece_bytes": 9 * MIB, "register_limit_bytes": 8 * MIB},
         "register_limit_bytes is 8388608, want at least 9437184: a piece of 9437184 bytes"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(change, told):
    sizes = {"asked_bytes": MIB, "piece_bytes": MIB} | change
    with pytest.raises(cpkv.ConfigError, match=told):
        HostMemory(**sizes)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "pinned", "pages": "huge", "node": -1},
         "kind is 'pinned', want one of anonymous, shared; pages is 'huge', want .*; node is -1, want at least 0"),
        ({"kind": "shared", "pages": "reserved"}, "pages is 'reserved' and kind 'shared', want others"),
    ],
)  # fmt: skip
def test_placements_that_cannot_be_are_refused(change, told):
    with pytest.raises(cpkv.ConfigError, match=told):
        Placement(**change)


# --- Registration ---


def test_ranges_are_even_and_cut_no_piece():
    registrar = Recorder()
    with HostMemory(10 * PIECE, PIECE, registrar=registrar, register_limit_bytes=8 * MIB) as memory:
        assert [part.bytes for part in memory.ranges] == [6 * MIB] * 5
        assert [part.address for part in memory.ranges] == [memory.address + 6 * MIB * part for part in range(5)]
    assert registrar.sizes("unregister") == [6 * MIB] * 5
    assert [address for what, address, _ in registrar.calls if what == "unregister"] == [
        address for what, address, _ in reversed(registrar.calls) if what == "register"
    ]
    assert memory.ranges == ()


def test_cuts_are_multiples_of_piece_and_page():
    pieces, extra, limits = (1, 2, 3, 7, 10, 11), (0, 1, 4096), (1, 2, 3, 5, 100)
    for piece in (4096, 3 * 4096, 10_496, 1, MIB + 4096):
        unit = cut_unit_bytes(piece, None)
        assert unit == lcm(piece, 4096)
        for count, more, limit_units in product(pieces, extra, limits):
            total, limit = count * piece + more, limit_units * unit + 1
            sizes = cut(total, unit, limit)
            assert sum(sizes) == total
            if total <= limit:
                assert sizes == [total]
                continue
            assert all(0 < size <= limit_units * unit for size in sizes)
            assert all(size % unit == 0 for size in sizes[:-1])
            units = [ceil(size / unit) for size in sizes]
            assert max(units) - min(units) <= 1
            assert sizes[0] == max(sizes)
            assert len(sizes) == ceil(ceil(total / unit) / limit_units), "no more than it takes"


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4, 5])
def test_a_range_that_is_refused_undoes_those_in_front(fails_at):
    """The first of a size may be too large and is halved; no later one is."""
    registrar = Recorder(fails_at=range(fails_at, 100))
    with pytest.raises(cpkv.RegistrationError) as refused:
        HostMemory(10 * PIECE, PIECE, registrar=registrar, register_limit_bytes=8 * MIB)
    registered = [call[1:] for call in registrar.calls if call[0] == "register"]
    undone = [call[1:] for call in registrar.calls if call[0] == "unregister"]
    assert undone == registered[: fails_at - 1][::-1]
    assert registrar.held == {}
    assert areas() == {}
    if fails_at == 1:
        assert registrar.sizes("register") == [6 * MIB, 3 * MIB]
        assert "range 1 of 10, of 3,145,728 B (3.00 MiB), is refused (call 2 is refused)" in str(refused.value)
    else:
        assert f"range {fails_at} of 5, of 6,291,456 B (6.00 MiB), is refused" in str(refused.value)
    assert "host memory of 31,457,280 B (30.00 MiB) cannot be registered" in str(refused.value)


def test_a_registration_can_be_tried_again():
    registrar = Recorder(fails_at=[4])
    with HostMemory(10 * PIECE, PIECE, touch_threads=0) as memory:
        registration = Registration(registrar)
        with pytest.raises(cpkv.RegistrationError, match="range 4 of 5"):
            registration.register(memory.address, memory.bytes, PIECE, 8 * MIB)
        assert (registration.ranges, registrar.held) == ((), {})
        registration.register(memory.address, memory.bytes, PIECE, 8 * MIB)
        assert len(registration.ranges) == 5
        assert (registration.undo(), registration.ranges, registrar.held) == ([], (), {})


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(100 * MIB, [30]), (29 * MIB, [15, 15]), (8 * MIB, [6, 6, 6, 6, 6]), (3 * MIB, [3] * 10)],
)
def test_what_is_too_large_as_a_whole_is_halved(largest, sizes):
    registrar = Recorder(limit=largest)
    with HostMemory(10 * PIECE, PIECE, registrar=registrar) as memory:
        assert [part.bytes // MIB for part in memory.ranges] == sizes
    assert registrar.held == {}


def test_a_piece_that_is_too_large_is_not_cut():
    registrar = Recorder(limit=3 * MIB - 1)
    with pytest.raises(cpkv.RegistrationError, match=r"range 1 of 10, of 3,145,728 B"):
        HostMemory(10 * PIECE, PIECE, registrar=registrar)
    assert registrar.sizes("register") == [30 * MIB, 15 * MIB, 6 * MIB, 3 * MIB]
    assert registrar.sizes("unregister") == []


def test_no_page_of_the_system_is_in_two_ranges():
    registrar = Recorder()
    with HostMemory(100 * 10_496, 10_496, registrar=registrar, register_limit_bytes=400_000) as memory:
        assert len(memory.ranges) > 1
        assert all(part.address % 4096 == 0 for part in memory.ranges)
        assert all((part.address - memory.address) % 10_496 == 0 for part in memory.ranges)


def test_memory_is_locked_and_told_to_be():
    class Fails(MlockRegistrar):
        def register(self, address, size_bytes):
            super().register(address, size_bytes)
            assert "lo" in flags(address)

    def flags(address):
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
        return re.search(rf"^{address:x}-.*?^VmFlags:(.*?)$", smaps, re.DOTALL | re.MULTILINE)[1].split()

    try:
        with HostMemory(MIB, MIB, registrar=Fails()) as memory:
            assert memory.ranges == (Range(memory.address, MIB),)
    except cpkv.HostMemoryError as error:
        assert "RLIMIT_MEMLOCK" in str(error)  # noqa: PT017 - a machine that allows less


# --- Every way out ---


class Stop(Exception):  # noqa: N818 - it is none of ours
    """Raised by what the owner gave."""


def raises(error):
    def raising(*_, **__):
        raise error

    return raising


def at_step(step, action):
    """A progress that does something at its n-th call."""
    calls = []

    def progress(*done):
        calls.append(done)
        if len(calls) == step:
            action()

    return progress


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("placement", KINDS, ids=str)
@pytest.mark.parametrize("step", [1, 2, 9])
@pytest.mark.parametrize(
    ("action", "error"),
    [
        (raises(Stop), Stop),
        (raises(OSError(errno.EPIPE, "closed")), OSError),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    ],
    ids=["error", "os error", "ctrl-c"],
)
def test_progress_may_end_it(placement, step, action, error):
    registrar = Recorder()
    with pytest.raises(error):
        HostMemory(9 * MIB, MIB, placement, progress=at_step(step, action), registrar=registrar, touch_threads=3)
    assert registrar.calls == []
    assert areas() == {}


def refuse_touch(monkeypatch):
    def advise(address, size_bytes, advice):
        if advice == libc.POPULATE_WRITE:
            raise OSError(errno.EFAULT, "Bad address")
        real(address, size_bytes, advice)

    real = libc.advise
    monkeypatch.setattr(libc, "advise", advise)


def refuse_reservation(monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", raises(OSError(errno.ENOSPC, "No space left on device")))


def refuse_mapping(monkeypatch):
    monkeypatch.setattr(mmap, "mmap", raises(OSError(errno.ENOMEM, "Cannot allocate memory")))


def refuse_threads(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", raises(RuntimeError("can't start new thread")))


@pytest.mark.parametrize(
    ("refuse", "placement", "told"),
    [
        (refuse_touch, Placement(), r"only 0 B of 9,437,184 B \(9.00 MiB\) can be had \(Bad address\), want less"),
        (refuse_touch, SHARED, "can be had"),
        (refuse_reservation, SHARED, r"has no room for 9,437,184 B \(9.00 MiB\) \(No space left on device\)"),
        (
            refuse_mapping,
            Placement(),
            r"9,437,184 B \(9.00 MiB\) cannot be mapped \(Cannot allocate memory\), want less or",
        ),
        (refuse_mapping, SHARED, "cannot be mapped"),
        (refuse_threads, Placement(), r"no thread to touch it with \(can't start new thread\), want at least one"),
    ],
)
def test_what_the_kernel_refuses_is_told(monkeypatch, refuse, placement, told):
    with monkeypatch.context() as patch:
        refuse(patch)
        with pytest.raises(cpkv.HostMemoryError, match=told):
            HostMemory(9 * MIB, MIB, placement)
    assert areas() == {}


def test_a_folder_that_is_missing_is_told(tmp_path):
    host = FakeHost(tmp_path)
    (tmp_path / "dev/shm").rmdir()
    with pytest.raises(cpkv.HostMemoryError, match=r"cannot be mapped \(No such file or directory\)"):
        HostMemory(MIB, MIB, SHARED, files=host)


def test_a_shared_file_has_no_name_and_is_nobody_elses(tmp_path, monkeypatch):
    host, opened = FakeHost(tmp_path), []
    real = os.open

    def spy(path, flags, mode=0o777):
        opened.append((Path(path).parent, flags, mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", spy)
    with HostMemory(MIB, MIB, SHARED, files=host) as memory:
        assert list((tmp_path / "dev/shm").iterdir()) == []
        memory.buffer[0] = 1
    ((folder, flags, mode),) = opened
    assert (folder, mode) == (tmp_path / "dev/shm", 0o600)
    wanted = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    assert flags & wanted == wanted


def test_a_file_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda _: "taken")
    host = FakeHost(tmp_path)
    taken = tmp_path / "dev/shm/cpkv-host-taken"
    taken.write_text("mine")
    with pytest.raises(cpkv.HostMemoryError, match="File exists"):
        HostMemory(MIB, MIB, SHARED, files=host)
    assert taken.read_text() == "mine"


def test_waiting_for_others_may_fail():
    with pytest.raises(Stop):
        HostMemory(MIB, MIB, before_mapping=raises(Stop), progress=raises(AssertionError))


def test_an_interrupt_between_registering_and_noting_it_is_undone():
    class Interrupted(Recorder):
        def register(self, address, size_bytes):
            super().register(address, size_bytes)
            if len(self.held) == 3:
                signal.raise_signal(signal.SIGINT)

    registrar = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        HostMemory(5 * MIB, MIB, registrar=registrar, register_limit_bytes=MIB)
    assert registrar.held == {}
    assert len(registrar.sizes("unregister")) == 3


def test_an_error_that_is_no_refusal_undoes_it_too():
    class Broken(Recorder):
        def register(self, address, size_bytes):
            if len(self.held) == 2:
                raise Stop
            super().register(address, size_bytes)

    registrar = Broken()
    with pytest.raises(Stop):
        HostMemory(5 * MIB, MIB, registrar=registrar, register_limit_bytes=MIB)
    assert registrar.held == {}


def test_the_block_gives_it_back_whatever_happens_in_it():
    registrar = Recorder()
    with pytest.raises(Stop), HostMemory(5 * MIB, MIB, registrar=registrar) as memory:
        raise Stop
    assert (registrar.held, memory.is_closed) == ({}, True)


def test_it_goes_with_the_object():
    registrar = Recorder()
    memory = HostMemory(5 * MIB, MIB, registrar=registrar)
    assert registrar.held
    del memory
    gc.collect()
    assert (registrar.held, areas()) == ({}, {})


def test_closing_twice_is_closing_once():
    registrar = Recorder()
    drained = []
    memory = HostMemory(5 * MIB, MIB, registrar=registrar, before_unmap=[lambda: drained.append(1)])
    memory.close()
    calls = list(registrar.calls)
    memory.close()
    with memory:
        pass
    assert (registrar.calls, drained, memory.bytes) == (calls, [1], 5 * MIB)
    for name in ("address", "buffer"):
        with pytest.raises(cpkv.UsageError, match="the host memory is closed"):
            getattr(memory, name)


def test_a_range_that_is_not_taken_back_keeps_nothing_else(caplog):
    class Stubborn(Recorder):
        def unregister(self, address, size_bytes):
            super().unregister(address, size_bytes)
            if len(self.held) in (1, 3):
                raise cpkv.RegistrationError("device lost")

    registrar = Stubborn()
    memory = HostMemory(5 * MIB, MIB, registrar=registrar, register_limit_bytes=MIB)
    with pytest.raises(cpkv.RegistrationError, match=r"2 ranges of host memory were not unregistered, .*device lost"):
        memory.close()
    assert (registrar.held, areas(), memory.is_closed) == ({}, {}, True)
    assert caplog.text.count("device lost") == 2
    memory.close()


def test_a_view_never_dangles(caplog):
    registrar = Recorder()
    memory = HostMemory(5 * MIB, MIB, registrar=registrar)
    numbers = np.frombuffer(memory.buffer, np.uint8)
    memory.close()
    assert registrar.held == {}
    assert len(areas()) == 1
    assert numbers[-1] == 0
    assert "5,242,880 B (5.00 MiB) of host memory stay mapped until the last view of them is gone" in caplog.text
    del numbers
    assert areas() == {}


def run_script(script):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.split("\n")[:-1]


SCRIPT = """
import gc, os, sys, signal
from cpkv.host import HostMemory, Placement
class Told:
    locks_memory = False
    def register(self, address, size): print("register", size)
    def unregister(self, address, size): print("unregister", size, flush=True)
"""


def test_it_is_given_back_at_the_end_of_the_program():
    script = (
        "memory = HostMemory(8192, 4096, registrar=Told(), register_limit_bytes=4096)\n"
        "memory.before_unmap.append(lambda: print('drain'))"
    )
    assert run_script(SCRIPT + script) == [
        *("register 4096", "register 4096", "drain", "unregister 4096", "unregister 4096"),
    ]


def test_a_forked_child_takes_nothing_away():
    """Neither registration nor drains are the child's, and no write of the parent makes it a copy of a page."""
    script = """
memory = HostMemory(1 << 20, 4096, registrar=Told(), before_unmap=[lambda: print('drain')])
memory.buffer[:3] = b'abc'
sys.stdout.flush()
child = os.fork()
if child == 0:
    print('child', bytes(memory.buffer[:3]))
    memory.buffer[:3] = b'xyz'
    memory.close()
    del memory
    gc.collect()
    sys.exit(0)
os.waitpid(child, 0)
print('parent', bytes(memory.buffer[:3]))
"""
    assert run_script(SCRIPT + script) == [
        *("register 1048576", r"child b'\x00\x00\x00'", "parent b'abc'", "drain", "unregister 1048576"),
    ]


def test_a_second_interrupt_unmaps_nothing_under_a_thread(monkeypatch):
    """Ctrl-C while the threads come to their end: memory stays until they have."""
    main, told, seen = threading.main_thread(), [threading.Event(), threading.Event()], []

    def handler(*_):
        next(event for event in told if not event.is_set()).set()
        raise KeyboardInterrupt

    def touch_until_told_twice(address, _size_bytes):
        for event in told:
            signal.pthread_kill(main.ident, signal.SIGINT)
            assert event.wait(10)
        seen.append(is_mapped(address))

    monkeypatch.setattr(touching, "touch_chunk", touch_until_told_twice)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            HostMemory(MIB, MIB, touch_threads=1)
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()
    assert seen == [True]
    assert areas() == {}


# --- Copies that are in flight ---


def test_closing_waits_for_the_copies():
    """Drain, then unregister from the last to the first, then unmap; nothing before the copies have ended."""
    gate, closing, order = threading.Event(), threading.Event(), []

    class Ordered(Recorder):
        def unregister(self, address, size_bytes):
            order.append("unregister")
            super().unregister(address, size_bytes)

    registrar = Ordered()
    memory = HostMemory(3 * MIB, MIB, registrar=registrar, register_limit_bytes=MIB)

    def drain():
        closing.set()
        assert gate.wait(10)
        order.append("drain")

    memory.before_unmap.append(drain)
    memory.before_unmap.append(lambda: order.append("second"))
    closer = threading.Thread(target=memory.close)
    closer.start()
    assert closing.wait(10)
    # The copy goes on reading and writing.
    ctypes.memset(memory.address, 7, memory.bytes)
    assert (len(registrar.held), len(memory.ranges), order) == (3, 3, [])
    gate.set()
    closer.join(10)
    assert order == ["drain", "second", "unregister", "unregister", "unregister"]
    assert (registrar.held, areas()) == ({}, {})


def test_memory_whose_copies_are_not_known_to_end_is_mapped_when_nobody_holds_it(caplog):
    registrar = Recorder()
    memory = HostMemory(3 * MIB, MIB, registrar=registrar, before_unmap=[raises(Stop("a stream has failed"))])
    address, holding = memory.address, weakref.ref(memory._holding)  # noqa: SLF001 - all that is left of it
    del memory
    assert "host memory was not given back: a stream has failed" in caplog.text
    gc.collect()
    assert holding() is None
    assert is_mapped(address)
    assert registrar.held
    assert ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(3 * MIB)) == 0


@pytest.mark.parametrize("end", ["close", "block", "drop"])
def test_copies_that_are_not_known_to_end_keep_the_memory(end):
    registrar, outcomes = Recorder(), [Stop, None]

    def drain():
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    memory = HostMemory(3 * MIB, MIB, registrar=registrar, before_unmap=[drain])
    if end == "drop":
        holding = memory._holding  # noqa: SLF001 - all that is left of it
        del memory
        gc.collect()
        assert len(areas()) == 1
        assert registrar.held
        holding.release()
    else:
        with pytest.raises(Stop):
            memory.close() if end == "close" else memory.__exit__(None, None, None)
        assert not memory.is_closed
        assert len(areas()) == 1
        assert registrar.held
        memory.close()
    assert (registrar.held, areas(), outcomes) == ({}, {}, [])


def test_a_drain_may_close_again():
    memory = HostMemory(MIB, MIB)
    memory.before_unmap.append(memory.close)
    memory.close()
    assert areas() == {}


def test_a_memory_that_was_never_handed_out_is_not_drained():
    with pytest.raises(cpkv.RegistrationError):
        HostMemory(MIB, MIB, registrar=Recorder(limit=0), before_unmap=[raises(AssertionError)])


# --- Reserved huge pages ---


RESERVED = Placement(pages="reserved")
NO_SUCH_SIZE = libc.MAP_HUGETLB | 31 << 26
"""Asks for huge pages of 2**31 bytes, which no machine has."""


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def test_reserved_pages_are_asked_for_and_whole(host, monkeypatch):
    monkeypatch.setattr(libc, "MAP_HUGETLB", 0)  # as if this machine had some
    host.meminfo(available=MIB, huge_free=8 * MIB)
    asked = []
    with HostMemory(3 * MIB, MIB, RESERVED, files=host, progress=lambda *done: asked.append(done)) as memory:
        assert (memory.bytes, memory.placement) == (4 * MIB, RESERVED)
    assert asked == [(4 * MIB, 4 * MIB)]


def test_too_few_reserved_pages_are_told_and_others_taken(host, caplog):
    host.meminfo(available=4 * MIB, huge_free=2 * MIB)
    with HostMemory(3 * MIB, MIB, RESERVED, files=host) as memory:
        assert (memory.bytes, memory.placement.pages) == (3 * MIB, "transparent")
    assert "HugePages_Free - HugePages_Rsvd in /proc/meminfo leaves 2,097,152 B (2.00 MiB)" in caplog.text
    assert "ordinary pages are used instead" in caplog.text
    host.meminfo(available=2 * MIB, huge_free=2 * MIB)
    with pytest.raises(cpkv.HostMemoryError, match=r"MemAvailable .*; nor in reserved huge pages: .*HugePages_Free"):
        HostMemory(3 * MIB, MIB, RESERVED, files=host)


def test_falling_back_to_ordinary_pages_is_checked_again(host, monkeypatch, caplog):
    """There were enough reserved pages, somebody else took them, and ordinary ones were never looked at."""
    monkeypatch.setattr(libc, "MAP_HUGETLB", NO_SUCH_SIZE)
    host.meminfo(available=2 * MIB, huge_free=8 * MIB)
    with pytest.raises(cpkv.HostMemoryError, match=r"asked for 3,145,728 B .* MemAvailable"):
        HostMemory(3 * MIB, MIB, RESERVED, files=host)
    host.meminfo(available=4 * MIB, huge_free=8 * MIB)
    with HostMemory(3 * MIB, MIB, RESERVED, files=host) as memory:
        assert (memory.bytes, memory.placement.pages) == (3 * MIB, "transparent")
    assert "cannot be mapped" in caplog.text


# --- Touching ---


@pytest.mark.usefixtures("small_chunks")
def test_progress_grows_to_the_end_in_the_calling_thread():
    steps, threads = [], set()

    def progress(done, total):
        steps.append((done, total))
        threads.add(threading.current_thread())

    asked = 9 * MIB + 4096
    HostMemory(asked, MIB, progress=progress, touch_threads=4).close()
    assert threads == {threading.current_thread()}
    assert [total for _, total in steps] == [asked] * 10
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1] == (asked, asked)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_touch_side_by_side_and_each_chunk_once(monkeypatch, threads):
    """A chunk of every thread is waited for before any goes on: with fewer threads it would never be."""
    together, chunks = threading.Barrier(threads), []

    def chunk(address, size_bytes):
        together.wait(10)
        chunks.append((address, size_bytes))

    monkeypatch.setattr(touching, "touch_chunk", chunk)
    with HostMemory(10 * MIB, MIB, touch_threads=threads) as memory:
        assert sorted(chunks) == [(memory.address + start * MIB, MIB) for start in range(10)]


@pytest.mark.usefixtures("small_chunks")
def test_fewer_threads_than_wanted_are_enough(monkeypatch, caplog):
    real, started = threading.Thread.start, []

    def start(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with HostMemory(9 * MIB, MIB, touch_threads=5):
        ((_, (size, resident)),) = areas().items()
        assert size == resident
    assert "touched by 2 threads instead of 5" in caplog.text


@pytest.mark.parametrize("placement", KINDS, ids=str)
def test_old_kernels_touch_by_writing(monkeypatch, placement):
    def advise(address, size_bytes, advice):
        if advice == libc.POPULATE_WRITE:
            raise OSError(errno.EINVAL, "Invalid argument")
        real(address, size_bytes, advice)

    real = libc.advise
    monkeypatch.setattr(libc, "advise", advise)
    with HostMemory(5 * MIB, MIB, placement):
        ((_, (size, resident)),) = areas().items()
        assert size == resident == 5 * MIB


def test_a_signal_does_not_end_the_touching(monkeypatch):
    interrupted = []

    def advise(address, size_bytes, advice):
        if advice == libc.POPULATE_WRITE and len(interrupted) < 3:
            interrupted.append(1)
            raise OSError(errno.EINTR, "Interrupted system call")
        real(address, size_bytes, advice)

    real = libc.advise
    monkeypatch.setattr(libc, "advise", advise)
    with HostMemory(5 * MIB, MIB):
        ((_, (size, resident)),) = areas().items()
        assert size == resident


def test_advice_that_the_kernel_does_not_know_is_no_error(monkeypatch):
    monkeypatch.setattr(libc, "advise", raises(OSError(errno.EINVAL, "Invalid argument")))
    HostMemory(5 * MIB, MIB).close()


# --- NUMA ---


def numa_host(host, gpu=1):
    host.write("/sys/bus/pci/devices/0000:3b:00.0/numa_node", gpu)
    for node, cpus in {0: "0-3,8", 1: "4-7,9-10", 2: ""}.items():
        host.write(f"/sys/devices/system/node/node{node}/cpulist", cpus)
    host.write("/sys/devices/system/node/possible", "0-2")
    return host


def test_the_node_of_a_gpu(host):
    numa_host(host)
    for address in ("0000:3b:00.0", "00000000:3B:00.0", " 0000:3B:00.0\n"):
        assert gpu_node(address, host) == 1
    assert gpu_node("0000:3c:00.0", host) is None
    assert gpu_node("nonsense", host) is None
    assert gpu_node("0000:3b:00.0", numa_host(host, gpu=-1)) is None, "the machine does not know"
    assert numa.nodes(host) == [0, 1, 2]


def test_the_processors_of_a_node(host):
    numa_host(host)
    assert node_cpus(0, host) == {0, 1, 2, 3, 8}
    assert node_cpus(1, host) == {4, 5, 6, 7, 9, 10}
    assert node_cpus(2, host) == node_cpus(3, host) == frozenset()
    host.write("/sys/devices/system/node/node0/cpulist", "-3,x,1-,4-2,7")
    assert node_cpus(0, host) == {7}


@pytest.mark.usefixtures("small_chunks")
def test_threads_are_bound_to_what_is_near_and_allowed(host, monkeypatch):
    own = os.sched_getaffinity(0)
    near = {max(own)}
    host.write("/sys/devices/system/node/node0/cpulist", f"{max(own)},{max(own) + 1}-4095")
    bound = []

    def spy(process, cpus):
        real(process, cpus)
        bound.append((threading.current_thread(), set(cpus), os.sched_getaffinity(0)))

    real = os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", spy)
    monkeypatch.setattr(libc, "prefer_node", lambda *_: None)
    monkeypatch.setattr(libc, "nodes_of", raises(OSError(errno.EPERM, "no")))
    HostMemory(4 * MIB, MIB, Placement(node=0), touch_threads=3, files=host).close()
    assert len(bound) == 3
    assert all(wanted == got == near for _, wanted, got in bound)
    assert threading.current_thread() not in {thread for thread, _, _ in bound}
    assert os.sched_getaffinity(0) == own


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EINVAL])
def test_what_numa_refuses_is_a_warning(host, monkeypatch, caplog, code):
    refused = raises(OSError(code, os.strerror(code)))
    for name in ("prefer_node", "nodes_of"):
        monkeypatch.setattr(libc, name, refused)
    monkeypatch.setattr(os, "sched_setaffinity", refused)
    host.write("/sys/devices/system/node/node5/cpulist", "5000")
    with HostMemory(MIB, MIB, Placement(node=5), files=host):
        pass
    assert f"not placed on NUMA node 5 ({os.strerror(code)})" in caplog.text
    assert "no processor of NUMA node 5 may be used" in caplog.text
    assert "not bound" in caplog.text


def test_a_machine_without_such_a_call(monkeypatch, caplog):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    HostMemory(MIB, MIB, Placement(node=0)).close()
    assert f"not placed on NUMA node 0 (mbind: {os.strerror(errno.ENOSYS)})" in caplog.text


def test_pages_that_are_elsewhere_are_told(monkeypatch, caplog):
    asked = []

    def nodes_of(addresses):
        asked.extend(addresses)
        return Counter({0: 300, 1: 700})

    monkeypatch.setattr(libc, "nodes_of", nodes_of)
    monkeypatch.setattr(libc, "prefer_node", lambda *_: None)
    with HostMemory(8 * MIB, MIB, Placement(node=0)) as memory:
        assert len(set(asked)) == 1_000
        assert all(address % 4096 == 0 for address in asked)
        assert memory.address == asked[0] < asked[-1] < memory.address + memory.bytes
        assert asked[-1] > memory.address + memory.bytes * 99 // 100
    assert "of 1000 pages, 300 are on NUMA node 0, 700 on node 1" in caplog.text


@pytest.mark.parametrize("placement", [Placement(node=0), Placement(kind="shared", node=0)], ids=str)
def test_pages_are_on_the_node(placement, caplog):
    caplog.set_level(logging.INFO)
    if numa.nodes() != [0]:
        pytest.skip("a machine of several NUMA nodes, where the test of the GPU looks")
    with HostMemory(4 * MIB, MIB, placement) as memory:
        if "not placed" in caplog.text or "nobody knows" in caplog.text:
            pytest.skip("this machine does not allow to place memory or to ask where it is")
        addresses = range(memory.address, memory.address + memory.bytes, 4096)
        assert libc.nodes_of(list(addresses)) == {0: 1024}
    assert "NUMA" not in caplog.text


def test_the_highest_node_has_a_mask():
    """Nodes beyond 63 need a second word; the kernel refuses the node, and not the mask."""
    with HostMemory(MIB, MIB) as memory, pytest.raises(OSError, match="mbind") as refused:
        libc.prefer_node(memory.address, MIB, 900)
    assert refused.value.errno in (errno.EINVAL, errno.EPERM)
