"""The copy engine of NVIDIA GPUs.

`CudaEngine` implements `cpkv.device.CopyEngine` over the driver alone (`driver`, `abi`), so that importing it
needs no GPU and making one needs no torch. A plan's arrays (`arrays`) go to the driver in one call for
each layer (`batch`), as blocks (`blocks`), through a kernel (`kernel`), or one by one (`each`), whichever
is measured to be best (`choice`, `cost`, `calibration`). Each copy stream (`stream`) writes its own ack word
(`words`). See `docs/copy-engines.md`.
"""

from cpkv.device.cuda.choice import CopyPath
from cpkv.device.cuda.engine import CudaEngine
from cpkv.device.cuda.failures import CudaError, CudaStreamError

__all__ = ["CopyPath", "CudaEngine", "CudaError", "CudaStreamError"]
