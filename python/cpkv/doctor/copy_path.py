"""Which way copies take here, and why."""

from collections.abc import Callable, Iterator
from typing import Final

from cpkv.device import Direction
from cpkv.device.cuda import CudaEngine
from cpkv.doctor.check import Check
from cpkv.errors import CpkvError, DriverError
from cpkv.host import Driver

DIRECTIONS: Final[tuple[Direction, ...]] = ("to_host", "to_device")


def copy_path_checks(
    driver: Driver | DriverError | None = None, open_cuda: Callable[[], CudaEngine] = CudaEngine
) -> list[Check]:
    """Return the engine that `auto` takes, and how it copies.

    On a GPU that measures for a moment, unless it was done on this machine before.

    Args:
        driver: What came of starting the CUDA driver, if that was done already.
        open_cuda: Makes the engine.
    """
    if driver is None:
        driver = started_driver()
    engine = _engine(driver)
    checks = [Check("copy engine", "ok", engine)]
    return [*checks, *_measured(open_cuda)] if engine.startswith("cuda") else checks


def _measured(open_cuda: Callable[[], CudaEngine]) -> Iterator[Check]:
    try:
        engine = open_cuda()
    except CpkvError as error:
        hint = "the engine 'auto' takes the CPU instead"
        yield Check("copy path", "warn", str(error), wanted="an engine that starts", hint=hint)
        return
    try:
        engine.calibrate()
        rates = [f"{engine.link_peak(way):.1f} GB/s {way.replace('_', ' ')}" for way in DIRECTIONS]
        yield Check("link, measured", "ok", ", ".join(rates))
        for what, why in engine.explain().items():
            yield Check("copy path", "ok", f"{what}: {why}")
    except CpkvError as error:
        yield Check(
            "copy path", "warn", str(error), wanted="copies that can be measured", hint="look at the driver's log"
        )
    finally:
        engine.close()


def started_driver() -> Driver | DriverError:
    """Start the CUDA driver, and return why not if it does not."""
    try:
        return Driver()
    except DriverError as error:
        return error


def _engine(driver: Driver | DriverError) -> str:
    if isinstance(driver, DriverError):
        return f"cpu: {driver}"
    try:
        devices = driver.devices()
    except DriverError as error:
        return f"cpu: {error}"
    if not devices:
        return "cpu: the CUDA driver finds no GPU"
    return f"cuda: the driver runs and finds {len(devices)} GPU{'' if len(devices) == 1 else 's'}"
