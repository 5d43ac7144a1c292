"""Which copy engine a machine gets."""

import logging
from typing import Final, Literal, get_args

from cpkv.device.cpu import CpuEngine
from cpkv.device.cuda import CopyPath, CudaEngine
from cpkv.device.engine import CopyEngine
from cpkv.device.manual import ManualEngine
from cpkv.errors import ConfigError

EngineName = Literal["auto", "cuda", "cpu", "manual"]

_logger: Final = logging.getLogger("cpkv.device")


def open_engine(
    name: EngineName = "auto", *, device: int | None = None, copy_path: CopyPath | None = None
) -> CopyEngine:
    """Make a copy engine; whoever asks for it closes it.

    Args:
        name: As `CacheConfig.engine` has it. `"auto"` is `"cuda"` if the CUDA driver runs and has a GPU, and
            else `"cpu"`, which is logged with the reason.
        device: Which GPU, as the process counts them; `None` for that of the current context, or the first.
        copy_path: How a GPU copies: see `CudaEngine`.

    Raises:
        ConfigError: There is no engine of that name, or it cannot be had here.
        CopyError: The driver of the GPU refuses.
    """
    if name not in get_args(EngineName):
        message = f"engine is {name!r}, want one of {', '.join(get_args(EngineName))}"
        raise ConfigError(message)
    if name == "manual":
        return ManualEngine()
    if name == "cpu":
        return CpuEngine()
    try:
        return CudaEngine(device, copy_path=copy_path)
    except ConfigError as error:
        if name == "cuda" or copy_path is not None:
            raise
        _logger.info("engine 'auto' is 'cpu': %s", error)
        return CpuEngine()
