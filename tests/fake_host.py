"""A host that is made up: `/proc`, `/sys` and the size of `/dev/shm` below a folder of a test."""

from cpkv.host import Capacity, SystemFiles

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

V1_MOUNT = "35 31 0:32 {root} {mount} rw,nosuid shared:17 - cgroup cgroup rw,{controller}"
V2_MOUNT = "41 31 0:38 {root} {mount} rw,relatime - cgroup2 cgroup2 rw,nsdelegate{options}"


class FakeHost(SystemFiles):
    """What the kernel of a host tells that has plenty of everything, unless it is told otherwise."""

    def __init__(self, root, *, available=1 << 42, shared=None):
        super().__init__(root)
        self.shared = shared or Capacity(None, None)
        self.meminfo(available=available)
        (root / "dev/shm").mkdir(parents=True)

    def write(self, name, text):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def capacity(self, folder):
        return self.shared if folder == "/dev/shm" else super().capacity(folder)  # noqa: S108 - where it is

    def meminfo(self, *, available=1 << 42, huge_free=0, huge_reserved=0, huge_total=None, huge_page=2 * MIB):
        """Sizes in bytes; those of huge pages as well."""
        total = huge_free if huge_total is None else huge_total
        self.write(
            "/proc/meminfo",
            f"MemTotal:       {1 << 43 >> 10} kB\nMemFree:  12 kB\nMemAvailable:   {int(available) // KIB} kB\n"
            f"HugePages_Total:   {int(total // huge_page)}\nHugePages_Free:    {int(huge_free // huge_page)}\n"
            f"HugePages_Rsvd:    {int(huge_reserved // huge_page)}\nHugepagesize:       {huge_page // KIB} kB",
        )

    def group_v2(self, path, *, root="/", mount="/sys/fs/cgroup", options=""):
        """Be in a group of version 2, of which `root` and what is below are mounted."""
        self.write("/proc/self/cgroup", f"0::{path}")
        self.write("/proc/self/mountinfo", V2_MOUNT.format(root=root, mount=mount, options=options))

    def group_v1(self, path, *, root="/", mount="/sys/fs/cgroup/memory", controller="memory"):
        """Be in a group of version 1."""
        self.write("/proc/self/cgroup", f"9:name=systemd:/other\n4:cpu,{controller}:{path}\n0::/")
        self.write("/proc/self/mountinfo", V1_MOUNT.format(root=root, mount=mount, controller=controller))

    def limit_v2(self, folder, limit, current=0, inactive=0, high="max"):
        for name, value in {"max": limit, "high": high, "current": current}.items():
            self.write(f"{folder}/memory.{name}", value if value == "max" else int(value))
        self.write(f"{folder}/memory.stat", f"anon 1\nfile 2\ninactive_file {int(inactive)}\nactive_file 77")

    def limit_v1(self, folder, limit, current=0, inactive=0):
        self.write(f"{folder}/memory.limit_in_bytes", int(limit))
        self.write(f"{folder}/memory.usage_in_bytes", int(current))
        # The own cache is less than that of everything below, which is what counts.
        self.write(f"{folder}/memory.stat", f"inactive_file 5\ntotal_inactive_file {int(inactive)}")
