"""What tells machines apart whose copies cost differently: GPU, driver and link."""

from pathlib import Path

from cpkv.device.cuda.context import Context
from cpkv.device.cuda.driver import Driver


def machine(driver: Driver, context: Context, system: Path = Path("/sys")) -> str:
    """Return a name of what copies go through.

    Args:
        driver: The driver.
        context: Of the GPU.
        system: Where the kernel tells of devices.
    """
    bus = system / "bus/pci/devices" / context.bus_id()
    speed, width = _line(bus / "max_link_speed"), _line(bus / "max_link_width")
    module = _line(system / "module/nvidia/version")
    return f"{context.name()}; driver {module}, CUDA {driver.version}; link {speed} x{width}"


def _line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"
