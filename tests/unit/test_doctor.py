"""The doctor: what each check makes of what it sees, and that nothing missing is a crash."""

import re
import resource
from importlib.metadata import PackageNotFoundError

import pytest

import cpkv
import fake_cuda as cuda_driver
from cpkv.cli.app import app
from cpkv.doctor import Check, build, copy_path_checks, cuda, examine, has_failed
from cpkv.doctor.copy_path import started_driver
from cpkv.doctor.cuda import cuda_checks, nvidia_devices
from cpkv.doctor.cuda_support import judged
from cpkv.doctor.link_rate import link_rates
from cpkv.doctor.links import Link, link_checks
from cpkv.doctor.memory import memory_checks
from cpkv.host import Capacity, Device, SystemFiles
from fake_host import GIB, MIB, FakeHost

GPU = "0000:3b:00.0"
PCI = "/sys/bus/pci/devices"


class FakeDriver:
    """A CUDA driver that finds what it is told."""

    def __init__(self, version=(13, 0), devices=1, error=None):
        self._version, self._error = version, error
        self._devices = [Device(number, "NVIDIA H200", f"0000:{59 + number:02x}:00.0") for number in range(devices)]

    @property
    def version(self):
        return self._answer(self._version)

    def devices(self):
        return self._answer(self._devices)

    def _answer(self, value):
        if self._error is not None:
            raise self._error
        return value


NO_DRIVER = cpkv.DriverError("libcuda.so.1 cannot be loaded (not found), want the CUDA driver")
DEAD_DRIVER = cpkv.DriverError("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 803)


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    """The packages that are installed, with their versions; no library."""
    installed = {"nvidia-cuda-runtime": "13.0.96"}

    def version(package):
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(cuda, "version", version)
    monkeypatch.setattr(cuda, "LIBRARIES", ())
    return installed


def checked(checks):
    """The checks by name; each that is not ok says what to do."""
    found = list(checks)
    by_name = {check.name: check for check in found}
    assert len(by_name) == len(found)
    for check in found:
        assert check.state in ("ok", "warn", "fail")
        assert check.seen
        assert check.state == "ok" or (check.wanted and check.hint)
    return by_name


# --- Build ---


def test_a_debug_build_is_told(monkeypatch):
    checks = checked(build.build_checks())
    assert checks["python"].state == "ok"
    assert re.match(r"CPython 3\.\d+\.\d+.* on linux ", checks["python"].seen)
    monkeypatch.setattr(build, "IS_DEBUG_BUILD", False)
    assert checked(build.build_checks())["cpkv"] == Check(
        "cpkv", "ok", f"{cpkv.__version__}, release build", "a release build"
    )
    monkeypatch.setattr(build, "IS_DEBUG_BUILD", True)
    assert checked(build.build_checks())["cpkv"].state == "warn"


# --- CUDA ---


@pytest.mark.parametrize(
    ("version", "state", "missing"),
    [
        ((11, 8), "fail", "older than 12.0"),
        ((12, 0), "warn", "batched copies"),
        ((12, 7), "warn", "batched copies"),
        ((12, 8), "ok", ""),
        ((12, 9), "ok", ""),
        ((13, 0), "ok", ""),
        ((13, 4), "ok", ""),
        ((14, 0), "warn", "newer than"),
    ],
)
def test_each_version_of_cuda(host, version, state, missing):
    assert judged(version)[0] == state
    assert missing in judged(version)[1]
    check = checked(cuda_checks(FakeDriver(version), host))["CUDA driver"]
    assert (check.state, check.seen) == (state, f"for CUDA {version[0]}.{version[1]}")
    assert missing in check.hint


@pytest.mark.parametrize(
    ("installed", "driver", "wanted"),
    [
        ({"nvidia-cuda-runtime": "13.0.96"}, (13, 0), ("ok", "13.0 (nvidia-cuda-runtime)")),
        ({"nvidia-cuda-runtime-cu12": "12.8.90"}, (13, 0), ("ok", "12.8 (nvidia-cuda-runtime-cu12)")),
        ({"nvidia-cuda-runtime-cu12": "12.4.127"}, (13, 0), ("warn", "12.4 (nvidia-cuda-runtime-cu12)")),
        ({"nvidia-cuda-runtime": "13.1.1"}, (13, 0), ("ok", "13.1 (nvidia-cuda-runtime)")),
        ({"nvidia-cuda-runtime": "13.0.96"}, (12, 8), ("fail", "13.0 (nvidia-cuda-runtime)")),
        ({"cuda-bindings": "13.0.1"}, (13, 0), ("ok", "13.0 (cuda-bindings)")),
        ({"cuda-bindings": "unknown"}, (13, 0), ("warn", "none found")),
        ({}, (13, 0), ("warn", "none found")),
    ],
)
def test_the_runtime_beside_the_driver(host, runtime, installed, driver, wanted):
    runtime.clear()
    runtime.update(installed)
    check = checked(cuda_checks(FakeDriver(driver), host))["CUDA runtime"]
    assert (check.state, check.seen) == wanted


def gpu_in(host, *addresses, vendor="0x10de", kind="0x030200"):
    for address in addresses:
        host.write(f"{PCI}/{address}/vendor", vendor)
        host.write(f"{PCI}/{address}/class", kind)


def test_a_machine_without_a_gpu_is_fine(host):
    gpu_in(host, "0000:00:01.0", vendor="0x8086")
    gpu_in(host, "0000:00:02.0", kind="0x020000")
    assert nvidia_devices(host) == []
    check = checked(cuda_checks(NO_DRIVER, host))["CUDA driver"]
    assert (check.state, check.seen) == ("ok", "no CUDA driver: the cpu engine is used")


def test_a_gpu_without_a_driver_is_told(host):
    gpu_in(host, GPU, "0000:5e:00.0")
    check = checked(cuda_checks(NO_DRIVER, host))["CUDA driver"]
    assert (check.state, check.seen) == ("warn", "no CUDA driver: the cpu engine is used")
    assert "2 NVIDIA GPU(s), the first at 0000:3b:00.0" in check.hint
    check = checked(cuda_checks(DEAD_DRIVER, host))["CUDA driver"]
    assert check.seen == (
        "the CUDA driver does not start (cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): the cpu engine is used"
    )


def test_a_driver_that_fails_later_has_failed(host):
    check = checked(cuda_checks(FakeDriver(error=DEAD_DRIVER), host))["CUDA driver"]
    assert check.state == "fail"
    assert "SYSTEM_DRIVER_MISMATCH" in check.seen


def test_gpus_have_names_addresses_and_nodes(host):
    for node in (0, 1):
        host.write(f"/sys/devices/system/node/node{node}/cpulist", "0")
    host.write(f"{PCI}/{GPU}/numa_node", 1)
    checks = checked(cuda_checks(FakeDriver(devices=2), host))
    assert (checks["GPU 0"].state, checks["GPU 0"].seen) == ("ok", "NVIDIA H200 at 0000:3b:00.0, NUMA node 1")
    assert (checks["GPU 1"].state, checks["GPU 1"].seen) == ("warn", "NVIDIA H200 at 0000:3c:00.0, NUMA node unknown")
    assert checked(cuda_checks(FakeDriver(devices=0), host))["GPUs"].state == "warn"


def test_an_unknown_node_does_not_matter_where_there_is_one(host):
    host.write("/sys/devices/system/node/node0/cpulist", "0")
    assert checked(cuda_checks(FakeDriver(), host))["GPU 0"].state == "ok"


# --- Links ---


@pytest.mark.parametrize(
    ("gigatransfers_s", "lanes", "peak", "name"),
    [
        (2.5, 16, 4.0, "PCIe 1 x16"),
        (8.0, 16, 15.75, "PCIe 3 x16"),
        (16.0, 8, 15.75, "PCIe 4 x8"),
        (32.0, 16, 63.02, "PCIe 5 x16"),
        (64.0, 16, 121.0, "PCIe 6 x16"),
    ],
)
def test_the_peak_of_a_link(gigatransfers_s, lanes, peak, name):
    link = Link(gigatransfers_s, lanes)
    assert link.peak_gb_s == pytest.approx(peak, abs=0.01)
    assert str(link) == name


def link_of(host, *, now, most):
    for which, (speed, lanes) in {"current": now, "max": most}.items():
        host.write(f"{PCI}/{GPU}/{which}_link_speed", f"{speed} GT/s PCIe")
        host.write(f"{PCI}/{GPU}/{which}_link_width", lanes)
    return checked(link_checks([GPU], host))["link of GPU 0"]


def test_links_are_told_beside_what_they_could_be(host):
    check = link_of(host, now=(32.0, 16), most=(32.0, 16))
    assert (check.state, check.seen, check.hint) == ("ok", "PCIe 5 x16, peak 63.0 GB/s each way", "")
    check = link_of(host, now=(2.5, 16), most=(32.0, 16))
    assert (check.state, check.wanted) == ("ok", "PCIe 5 x16, peak 63.0 GB/s")
    assert "idle" in check.hint
    check = link_of(host, now=(32.0, 8), most=(32.0, 16))
    assert (check.state, check.seen) == ("warn", "PCIe 5 x8, peak 31.5 GB/s each way")
    host.write(f"{PCI}/{GPU}/current_link_speed", "Unknown")
    assert checked(link_checks([GPU, "0000:ff:00.0"], host))["link of GPU 0"].seen == "unknown"


# --- Memory ---


def test_memory_is_what_one_rank_may_take(host):
    host.meminfo(available=64 * GIB)
    checks = checked(memory_checks(1, host))
    assert checks["host memory"].seen == (
        "68,719,476,736 B (64.00 GiB) for one rank, decided by MemAvailable in /proc/meminfo"
    )
    assert checks["container limit"].seen == "none"
    host.group_v2("/box")
    host.limit_v2("/sys/fs/cgroup/box", 16 * GIB, 3 * GIB, 1 * GIB)
    checks = checked(memory_checks(7, host))
    assert checks["host memory"].seen == (
        "2,147,483,648 B (2.00 GiB) for each of 7 ranks, decided by /sys/fs/cgroup/box/memory.max"
    )
    assert checks["container limit"].seen == (
        "17,179,869,184 B (16.00 GiB) in /sys/fs/cgroup/box/memory.max, 15,032,385,536 B (14.00 GiB) left"
    )


def test_locked_memory(host, monkeypatch):
    def locked(most):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
        return checked(memory_checks(1, host))["locked memory"]

    host.write("/proc/self/status", "CapEff:\t0000000000000000")
    assert (locked(resource.RLIM_INFINITY).state, locked(8 * MIB).state) == ("ok", "warn")
    assert locked(8 * MIB).seen == "8,388,608 B (8.00 MiB)"
    host.write("/proc/self/status", "CapEff:\t000001ffffffffff")
    assert locked(8 * MIB).state == "ok"


@pytest.mark.parametrize(
    ("capacity", "state"),
    [
        (Capacity(64 * GIB, 60 * GIB), "ok"),
        (Capacity(None, None), "ok"),
        (Capacity(64 * MIB, 63 * MIB), "warn"),
        (Capacity(64 * GIB, MIB - 1), "fail"),
    ],
)
def test_shared_memory(host, capacity, state):
    host.shared = capacity
    assert checked(memory_checks(1, host))["shared memory"].state == state


def test_no_shared_memory_at_all(tmp_path):
    checks = checked(memory_checks(1, SystemFiles(tmp_path)))
    assert (checks["shared memory"].state, checks["shared memory"].seen) == ("fail", "no /dev/shm")
    assert checks["host memory"].state == "warn"


@pytest.mark.parametrize(
    ("total", "setting", "state", "seen"),
    [
        (0, "always madvise [never]", "warn", "none reserved; transparent: never"),
        (0, "always [madvise] never", "ok", "none reserved; transparent: madvise"),
        (0, "[always] madvise never", "ok", "none reserved; transparent: always"),
        (0, "", "warn", "none reserved; transparent: unknown"),
        (9, "always madvise [never]", "ok",
         "9 of 2,097,152 B (2.00 MiB) reserved, 4 of them to be had; transparent: never"),
    ],
)  # fmt: skip
def test_huge_pages(host, total, setting, state, seen):
    page = 2 * MIB
    host.meminfo(huge_total=total * page, huge_free=min(total, 6) * page, huge_reserved=min(total, 2) * page)
    host.write("/sys/kernel/mm/transparent_hugepage/enabled", setting)
    check = checked(memory_checks(1, host))["huge pages"]
    assert (check.state, check.seen) == (state, seen)


# --- Copy path ---


@pytest.mark.parametrize(
    ("driver", "seen"),
    [
        (FakeDriver(), "cuda: the driver runs and finds 1 GPU"),
        (FakeDriver(devices=8), "cuda: the driver runs and finds 8 GPUs"),
        (FakeDriver(devices=0), "cpu: the CUDA driver finds no GPU"),
        (FakeDriver(error=DEAD_DRIVER), f"cpu: {DEAD_DRIVER}"),
        (NO_DRIVER, f"cpu: {NO_DRIVER}"),
    ],
)
def test_the_engine_that_auto_takes(driver, seen):
    assert copy_path_checks(driver, lambda _: FakeEngine(), lambda _: RATES)[0].seen == seen


RATES = {"to_host": 55.04, "to_device": 54.5}


class FakeEngine:
    """An engine of a GPU that has measured."""

    def __init__(self, error=None):
        self.error = error
        self.is_closed = False

    def calibrate(self):
        if self.error is not None:
            raise self.error

    def explain(self):
        return {"to_host, runs of 8448 bytes": "batch: 15.1 GB/s", "acks": "written by the stream"}

    def close(self):
        self.is_closed = True


def test_how_each_gpu_copies_and_why(host):
    engines = [FakeEngine(), FakeEngine()]
    _, *checks = copy_path_checks(FakeDriver(devices=2), engines.__getitem__, lambda _: RATES, host)
    assert [(check.name, check.seen) for check in checks] == [
        line
        for gpu in (0, 1)
        for line in (
            (
                f"link of GPU {gpu}, measured",
                "55.0 GB/s to host, 54.5 GB/s to device; the machine does not say what its peak is",
            ),
            (f"copy path of GPU {gpu}", "to_host, runs of 8448 bytes: batch: 15.1 GB/s"),
            (f"copy path of GPU {gpu}", "acks: written by the stream"),
        )
    ]
    assert {check.state for check in checks} == {"ok"}
    assert all(engine.is_closed for engine in engines)


@pytest.mark.parametrize(
    ("to_device", "state", "share"), [(54.5, "ok", "86%"), (50.5, "ok", "80%"), (50.0, "warn", "79%")]
)
def test_a_link_is_held_against_its_peak(host, to_device, state, share):
    link_of(host, now=(2.5, 16), most=(32.0, 16))
    rates = {"to_host": 55.0, "to_device": to_device}
    _, check, *_ = copy_path_checks(FakeDriver(), lambda _: FakeEngine(), lambda _: rates, host)
    assert (check.name, check.state) == ("link of GPU 0, measured", state)
    assert check.seen == (f"55.0 GB/s to host, {to_device} GB/s to device: {share} of the 63.0 GB/s of PCIe 5 x16")
    assert check.wanted == "at least 80% of it, 50.4 GB/s"
    assert bool(check.hint) == (state == "warn")


def test_a_link_that_cannot_be_measured_is_a_warning():
    def refuse(_):
        raise cpkv.CopyError("out of memory")

    _, link, *paths = copy_path_checks(FakeDriver(), lambda _: FakeEngine(), refuse)
    assert (link.state, link.seen, len(paths)) == ("warn", "out of memory", 2)


def test_the_rate_of_a_link_is_that_of_large_copies_both_ways():
    driver = cuda_driver.FakeDriver()
    driver.elapsed_ms = 10.0
    rates = link_rates(1, driver)
    assert rates == {way: pytest.approx(8 * (64 << 20) / 10e6) for way in ("to_host", "to_device")}
    names = [name for name, *_ in driver.calls]
    assert names.count("cuMemcpyAsync") == 2 * 3 * 8
    for given, taken in (("cuMemHostAlloc", "cuMemFreeHost"), ("cuMemAlloc", "cuMemFree")):
        assert names.count(given) == names.count(taken) == 1
        assert names.index("cuStreamDestroy") < names.index(taken)
    assert names.count("cuEventCreate") == names.count("cuEventDestroy") == 2
    assert names[-1] == "cuDevicePrimaryCtxRelease"


def test_a_link_that_fails_to_copy_gives_its_memory_back():
    driver = cuda_driver.FakeDriver()
    driver.fail("cuMemcpyAsync")
    with pytest.raises(cpkv.CopyError, match="cuMemcpyAsync failed with CUDA_ERROR_INVALID_VALUE"):
        link_rates(0, driver)
    names = [name for name, *_ in driver.calls]
    assert names.index("cuStreamSynchronize") < names.index("cuMemFree")
    assert names[-1] == "cuDevicePrimaryCtxRelease"


def test_without_a_gpu_nothing_is_measured():
    assert len(copy_path_checks(NO_DRIVER, pytest.fail, pytest.fail)) == 1


def test_an_engine_that_does_not_start_or_measure_is_a_warning():
    def refuse(_):
        raise cpkv.ConfigError("the driver has CUDA 11")

    _, _, check = copy_path_checks(FakeDriver(), refuse, lambda _: RATES)
    assert (check.state, check.seen) == ("warn", "the driver has CUDA 11")
    engine = FakeEngine(cpkv.CopyError("out of memory"))
    _, _, check = copy_path_checks(FakeDriver(), lambda _: engine, lambda _: RATES)
    assert (check.state, check.seen, engine.is_closed) == ("warn", "out of memory", True)


def test_without_a_driver_it_is_started(monkeypatch):
    monkeypatch.setattr("cpkv.doctor.copy_path.Driver", FakeDriver)
    assert (
        copy_path_checks(open_cuda=lambda _: FakeEngine(), measure=lambda _: RATES)[0].seen
        == "cuda: the driver runs and finds 1 GPU"
    )
    monkeypatch.setattr("cpkv.doctor.copy_path.Driver", lambda: cpkv.host.Driver("libno-such-driver.so"))
    driver = started_driver()
    assert isinstance(driver, cpkv.DriverError)
    assert (driver.code, str(driver).startswith("libno-such-driver.so cannot be loaded (")) == (None, True)


# --- All of it ---


@pytest.mark.parametrize("driver", [FakeDriver(), FakeDriver(error=DEAD_DRIVER), NO_DRIVER, DEAD_DRIVER])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_host_that_tells_nothing_is_examined(tmp_path, monkeypatch, driver, ranks):
    monkeypatch.setattr("cpkv.doctor.examination.started_driver", lambda: driver)
    names = list(checked(examine(ranks, SystemFiles(tmp_path))))
    assert names[:3] == ["python", "cpkv", "SGLang"]
    assert "CUDA driver" in names
    of_gpus = ("copy path of GPU 0", "link of GPU 0, measured")
    assert [name for name in names if name not in of_gpus][-6:] == [
        *("host memory", "container limit", "locked memory", "shared memory", "huge pages", "copy engine"),
    ]
    assert {name in names for name in of_gpus} == {"GPU 0" in names}
    assert ("link of GPU 0" in names) == (isinstance(driver, FakeDriver) and "GPU 0" in names)


def test_this_machine_is_examined():
    checks = checked(examine())
    assert checks["host memory"].seen != "unknown"


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failed_check_fails_the_command(monkeypatch, capsys, state, code):
    checks = [Check("first", "ok", "fine", "anything"), Check("second one", state, "thin", "more", "eat")]
    assert has_failed(checks) == (code == 1)
    monkeypatch.setattr("cpkv.cli.doctor.examine", lambda ranks: checks[: ranks + 1])
    ended = app(["doctor"], standalone_mode=False)
    assert (ended or 0) == code
    assert capsys.readouterr().out == (
        f"ok    first       fine\n{state:<4}  second one  thin; want more; eat\n"
    )  # fmt: skip


def test_ranks_that_cannot_be_are_refused():
    with pytest.raises(cpkv.ConfigError, match="ranks is 0, want at least 1"):
        app(["doctor", "--ranks", "0"], standalone_mode=False)
