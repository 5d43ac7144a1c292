"""What a host can give: which limit decides, for how many ranks, and what is told."""

import resource

import pytest

import cpkv
from cpkv.host import Capacity, HostLimits, HostMemory, Limit, Placement, read_limits
from cpkv.host.limits import shown
from fake_host import GIB, MIB, FakeHost

GB = 10**9
RESERVED = Placement(pages="reserved")
SMALL = Placement(pages="small")
MOUNT = "/sys/fs/cgroup"


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def fits(host, asked, placement=SMALL, ranks=1):
    return read_limits(placement, ranks, files=host).refusal(int(asked)) is None


# --- Reserved huge pages (MemAvailable does not count them) ---


def test_reserved_huge_pages_are_room_only_for_who_uses_them(host):
    host.meminfo(available=2.04 * GB, huge_free=7.5 * GB)
    assert fits(host, 7.05 * GB, RESERVED)
    assert not fits(host, 7.05 * GB)
    assert not fits(host, 7.05 * GB, Placement(pages="transparent"))
    assert fits(host, 2 * GB)


def test_huge_pages_that_are_promised_are_not_free(host):
    host.meminfo(available=2.04 * GB, huge_free=7.5 * GB, huge_reserved=1 * GB)
    assert not fits(host, 7.05 * GB, RESERVED)
    assert fits(host, 6.4 * GB, RESERVED)
    host.meminfo(available=2.04 * GB, huge_free=1 * GB, huge_reserved=2 * GB)
    assert not fits(host, 1, RESERVED), "more promised than free is no room, and no negative one"


def test_huge_pages_of_other_sizes(host):
    host.meminfo(available=1 * GB, huge_free=8 * GIB, huge_page=1 * GIB)
    assert fits(host, 8 * GIB, RESERVED)
    assert not fits(host, 8 * GIB + 1, RESERVED)


@pytest.mark.parametrize("size", [("2MB", 2 * MIB), ("1GB", GIB), ("64KB", 64 << 10)], ids=lambda size: size[0])
@pytest.mark.parametrize("file", ["", ".rsvd"])
def test_the_container_limits_huge_pages_too(host, size, file):
    name, page = size
    host.meminfo(huge_free=8 * GIB, huge_page=page)
    host.group_v2("/pod/box")
    host.write(f"{MOUNT}/pod/hugetlb.{name}{file}.max", 3 * GIB)
    host.write(f"{MOUNT}/pod/hugetlb.{name}{file}.current", 1 * GIB)
    assert fits(host, 2 * GIB, RESERVED)
    assert not fits(host, 2 * GIB + 1, RESERVED)
    host.group_v1("/pod", mount="/sys/fs/cgroup/hugetlb", controller="hugetlb")
    host.write(f"/sys/fs/cgroup/hugetlb/pod/hugetlb.{name}{file}.limit_in_bytes", 2 * GIB)
    host.write(f"/sys/fs/cgroup/hugetlb/pod/hugetlb.{name}{file}.usage_in_bytes", 1 * GIB)
    assert fits(host, 1 * GIB, RESERVED)
    assert not fits(host, 1 * GIB + 1, RESERVED)


def test_huge_pages_count_as_memory_where_the_mount_says_so(host):
    host.meminfo(huge_free=8 * GIB)
    host.group_v2("/box")
    host.limit_v2(f"{MOUNT}/box", 1 * GIB)
    assert fits(host, 8 * GIB, RESERVED)
    host.group_v2("/box", options=",memory_hugetlb_accounting")
    assert not fits(host, 2 * GIB, RESERVED)


# --- Control groups ---


def container(host, version, limit=8 * GIB, current=7.6 * GIB, inactive=6.9 * GIB):
    if version == 2:
        host.group_v2("/box")
        host.limit_v2(f"{MOUNT}/box", limit, current, inactive)
    else:
        host.group_v1("/box")
        host.limit_v1(f"{MOUNT}/memory/box", limit, current, inactive)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_the_container_decides_and_its_cache_is_room(host, version):
    host.meminfo(available=76 * GIB)
    container(host, version)
    assert not fits(host, 16 * GIB)
    assert fits(host, 6 * GIB)
    limits = read_limits(SMALL, files=host)
    assert limits.available_bytes == int(8 * GIB) - int(7.6 * GIB) + int(6.9 * GIB)
    assert limits.deciding.name.endswith("/box/memory.max" if version == 2 else "/box/memory.limit_in_bytes")
    assert fits(host, limits.available_bytes)
    assert not fits(host, limits.available_bytes + 1)


@pytest.mark.parametrize("version", [1, 2])
def test_no_limit_is_none(host, version):
    host.meminfo(available=76 * GIB)
    container(host, version, limit="max" if version == 2 else 9223372036854771712)
    assert read_limits(SMALL, files=host).limits == (
        Limit("MemAvailable in /proc/meminfo", 76 * GIB, "free memory or ask for less"),
    )


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tight", ["/pod/box/inner", "/pod/box", "/pod", ""])
def test_the_tightest_group_on_the_way_up_decides(host, version, tight):
    make, limit, top = (
        (host.group_v2, host.limit_v2, MOUNT)
        if version == 2
        else (host.group_v1, host.limit_v1, f"{MOUNT}/memory")
    )  # fmt: skip
    make("/pod/box/inner")
    for folder in ("/pod/box/inner", "/pod/box", "/pod", ""):
        limit(f"{top}{folder}", 5 * GIB if folder == tight else 50 * GIB, 1 * GIB)
    limit(f"{top}/pod/neighbour", 1)
    limits = read_limits(SMALL, files=host)
    assert limits.available_bytes == 4 * GIB
    assert limits.deciding.name.startswith(f"{top}{tight}/memory.")


def test_the_limit_that_only_slows_down_counts(host):
    host.group_v2("/box")
    host.limit_v2(f"{MOUNT}/box", 50 * GIB, current=1 * GIB, high=4 * GIB)
    limits = read_limits(SMALL, files=host)
    assert (limits.available_bytes, limits.deciding.name) == (3 * GIB, f"{MOUNT}/box/memory.high")


@pytest.mark.parametrize(
    ("path", "root", "folder"),
    [
        ("/", "/", ""),  # a namespace of its own
        ("/docker/box", "/docker/box", ""),  # the own group is all that is mounted
        ("/docker/box/inner", "/docker/box", "/inner"),
        ("/docker/box", "/docker", "/box"),
        ("/elsewhere", "/docker/box", ""),  # not mounted: the nearest is what is seen
        ("/docker/boxes", "/docker/box", ""),  # a name that begins alike
        ("/../other", "/", ""),  # outside of the namespace
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_own_group_is_found_in_what_is_mounted(host, version, path, root, folder):
    mount = "/sys/fs/c\\040group"  # how the kernel writes a space
    make, limit = (host.group_v2, host.limit_v2) if version == 2 else (host.group_v1, host.limit_v1)
    make(path, root=root, mount=mount)
    limit(f"/sys/fs/c group{folder}", 3 * GIB, 1 * GIB)
    limit("/sys/fs/other", 1)  # what the way out of the mount would lead to
    assert read_limits(SMALL, files=host).available_bytes == 2 * GIB


def test_a_group_over_its_limit_leaves_nothing(host):
    container(host, 2, limit=1 * GIB, current=3 * GIB, inactive=0)
    assert read_limits(SMALL, files=host).available_bytes == 0
    container(host, 2, limit=1 * GIB, current=0, inactive=5 * GIB)
    assert read_limits(SMALL, files=host).available_bytes == 1 * GIB, "and never more than the limit"


# --- Ranks ---


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 7, 8])
def test_ranks_of_a_host_share_what_is_left(host, version, ranks):
    container(host, version, limit=16 * GIB, current=0, inactive=0)
    share = 16 * GIB // ranks
    assert fits(host, share, ranks=ranks)
    assert not fits(host, share + 1, ranks=ranks)
    host.meminfo(available=8 * GIB, huge_free=4 * GIB)
    assert read_limits(SMALL, ranks, files=host).available_bytes == 8 * GIB // ranks
    assert read_limits(RESERVED, ranks, files=host).available_bytes == 4 * GIB // ranks


def test_what_is_a_process_own_is_not_shared():
    limits = HostLimits((Limit("shared", 80, ""), Limit("own", 30, "", is_per_process=True)), 8)
    assert (limits.available_bytes, limits.deciding.name) == (10, "shared")
    limits = HostLimits((Limit("shared", 800, ""), Limit("own", 30, "", is_per_process=True)), 8)
    assert (limits.available_bytes, limits.deciding.name) == (30, "own")
    assert "own leaves 30 B for this process; " in limits.refusal(31)


# --- Shared memory, locked memory ---


def test_a_full_shm_is_a_limit_of_shared_memory_only(host):
    host.shared = Capacity(64 * MIB, 63 * MIB)
    shared = Placement(kind="shared")
    assert fits(host, 63 * MIB, shared)
    assert not fits(host, 63 * MIB + 1, shared)
    assert fits(host, 64 * MIB)
    host.shared = None
    assert fits(host, 64 * MIB, shared), "who does not say has no limit"


@pytest.fixture
def few_locks(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64 * MIB, 128 * MIB))


@pytest.mark.usefixtures("few_locks")
def test_the_limit_on_locked_memory_holds_for_what_is_locked(host):
    host.write("/proc/self/status", "VmLck:\t  1024 kB\nCapEff:\t0000000000000000")
    limits = read_limits(SMALL, 8, is_locked=True, files=host)
    assert (limits.available_bytes, limits.deciding.name) == (63 * MIB, "RLIMIT_MEMLOCK")
    assert fits(host, 64 * MIB, ranks=8), "what is not locked is not held by it"
    host.write("/proc/self/status", "CapEff:\t0000000000004000")
    assert read_limits(SMALL, 8, is_locked=True, files=host).available_bytes > GIB, "CAP_IPC_LOCK"


def test_locked_memory_without_a_limit(host, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    host.write("/proc/self/status", "CapEff:\t0")
    assert [limit.name for limit in read_limits(SMALL, is_locked=True, files=host).limits] == [
        "MemAvailable in /proc/meminfo"
    ]


# --- What is told ---


def test_the_refusal_has_all_figures(host):
    container(host, 2, limit=8 * GIB, current=2 * GIB, inactive=1 * GIB)
    with pytest.raises(cpkv.HostMemoryError) as refused:
        read_limits(SMALL, 4, files=host).check(2 * GIB)
    assert str(refused.value) == (
        "host memory: asked for 2,147,483,648 B (2.00 GiB), want at most 1,879,048,192 B (1.75 GiB): "
        "/sys/fs/cgroup/box/memory.max leaves 7,516,192,768 B (7.00 GiB) for 4 ranks of this host; "
        "raise the limit of the container or ask for less"
    )
    with pytest.raises(MemoryError, match=r"for 1 rank of this host"):
        read_limits(SMALL, files=host).check(8 * GIB)


def test_sizes_are_exact_and_readable():
    assert [shown(size) for size in (0, 1023, 1024, 1 << 50)] == [
        "0 B", "1,023 B", "1,024 B (1.00 KiB)", "1,125,899,906,842,624 B (1024.00 TiB)",
    ]  # fmt: skip


def test_sizes_beyond_32_and_52_bits_are_exact(host):
    size = (1 << 53) + 4096
    host.meminfo(available=size)
    assert fits(host, size)
    assert not fits(host, size + 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/proc/meminfo", "\n\nMemAvailable\nMemAvailable: much kB\n:\n"),
        ("/proc/self/cgroup", "\n0\n0:\n::::\n4:memory"),
        ("/proc/self/mountinfo", "\n - \n1 2 3 - cgroup2\n1 2 3 4 5 - cgroup2 a\n1 2 3 / /x - cgroup cgroup rw,memory"),
        ("/proc/self/status", "CapEff:\nCapEff: many\nVmLck:"),
        (f"{MOUNT}/box/memory.max", "-"),
        (f"{MOUNT}/box/memory.current", ""),
        (f"{MOUNT}/box/memory.stat", "\ninactive_file\ninactive_file x"),
    ],
)
@pytest.mark.usefixtures("few_locks")
def test_what_cannot_be_read_is_no_limit_and_no_crash(host, name, text):
    container(host, 2)
    host.write(name, text)
    for placement in (SMALL, RESERVED, Placement(kind="shared")):
        read_limits(placement, is_locked=True, files=host)


def test_a_host_that_tells_nothing_has_no_known_limit(tmp_path):
    host = FakeHost(tmp_path)
    host.path("/proc/meminfo").unlink()
    limits = read_limits(SMALL, files=host)
    assert (limits.deciding, limits.available_bytes, limits.refusal(1 << 60)) == (None, None, None)


# --- Refused before anything is taken ---


@pytest.mark.parametrize("kind", ["anonymous", "shared"])
def test_nothing_is_taken_before_the_refusal(host, kind, monkeypatch):
    container(host, 2)

    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr("cpkv.host.memory.Mapping", never)
    with pytest.raises(cpkv.HostMemoryError, match=r"asked for 17,179,869,184 B"):
        HostMemory(16 * GIB, GIB, Placement(kind=kind), before_mapping=never, progress=never, files=host)


def test_the_check_is_of_whole_pages(host):
    host.meminfo(available=8192)
    with pytest.raises(cpkv.HostMemoryError, match=r"asked for 12,288 B"):
        HostMemory(8193, 1, files=host)
    HostMemory(8192, 1, files=host).close()


def test_ranks_may_all_look_before_one_takes(host):
    """What the first rank takes is missing where the others look: they wait for each other in between."""
    host.meminfo(available=8 * MIB)
    order = []

    def others_look():
        order.append("others")
        assert read_limits(Placement(), 2, files=host).refusal(4 * MIB) is None
        host.meminfo(available=4 * MIB)

    with HostMemory(4 * MIB, 4096, ranks_on_host=2, before_mapping=others_look, files=host):
        assert order == ["others"]
    host.meminfo(available=8 * MIB)
    with pytest.raises(cpkv.HostMemoryError, match=r"want at most 2,796,202 B .* for 3 ranks of this host"):
        HostMemory(4 * MIB, 4096, ranks_on_host=3, files=host)
