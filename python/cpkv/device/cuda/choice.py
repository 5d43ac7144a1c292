"""The ways to copy that an engine has, and which of them a plan gets."""

import ctypes
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

import numpy as np

from cpkv.device.cuda.abi import (
    ATTRIBUTE_HOST_POINTERS_IN_KERNELS,
    ATTRIBUTE_MAX_PITCH,
    POINTER_RANGE_SIZE,
    POINTER_RANGE_START,
    SUCCESS,
)
from cpkv.device.cuda.arrays import BlockArrays, CopyArrays, Path, PreparedPlan, Queue
from cpkv.device.cuda.batch import batch_copies
from cpkv.device.cuda.blocks import block_copies
from cpkv.device.cuda.calibration import Calibration
from cpkv.device.cuda.context import Context
from cpkv.device.cuda.cost import LEAST_BLOCK, CostModel
from cpkv.device.cuda.cost_file import cost_file, read_figures, write_figures
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.each import each_copy
from cpkv.device.cuda.failures import CudaError, release
from cpkv.device.cuda.figures import ON_H200, Figures
from cpkv.device.cuda.kernel import CopyKernel
from cpkv.device.cuda.machine import machine
from cpkv.device.cuda.stream import CopyStream
from cpkv.device.cuda.turns import are_better_in_turns, in_turns
from cpkv.device.plan import CopyPlan, Direction
from cpkv.errors import ConfigError
from cpkv.layout import HostPool, PageLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

CopyPath = Literal["auto", "batch", "blocks", "kernel", "each"]
VARIABLE: Final = "CPKV_COPY_PATH"
MOST_CHOSEN: Final = 256
_logger: Final = logging.getLogger("cpkv.device")
_figures_of: Final[dict[str, Figures]] = {}
"""What this process has read or measured, by machine."""


def wanted_path(given: CopyPath | None) -> CopyPath:
    """Return what the caller wants, or else the environment, or else `auto`.

    Raises:
        ConfigError: There is no such path.
    """
    path = given or os.environ.get(VARIABLE) or "auto"
    if path not in get_args(CopyPath):
        message = f"copy_path is {path!r}, want one of {', '.join(get_args(CopyPath))} (from code, or {VARIABLE})"
        raise ConfigError(message)
    return cast("CopyPath", path)


class Choice:
    """What queues copies, for the engine to use.

    Args:
        driver: The driver.
        context: Of the GPU, current.
        wanted: Which path, or `auto` to choose by cost.
        quota: Multiprocessors that the kernel may use.
        streams: The engine's.
        stack: Gives everything back.

    Raises:
        ConfigError: The wanted path cannot be had here.
    """

    def __init__(  # noqa: PLR0913 - what there is to choose from
        self,
        driver: Driver,
        context: Context,
        *,
        wanted: CopyPath,
        quota: int,
        streams: tuple[CopyStream, ...],
        stack: ExitStack,
    ) -> None:
        self._driver = driver
        self._context = context
        self._streams = streams
        self._stack = stack
        self.wanted = wanted
        self.queue_blocks = block_copies(driver)
        each, batch = each_copy(driver), batch_copies(driver)
        self.queues: dict[Path, Queue] = {"each": each}
        self.missing: dict[str, str] = {}
        """What cannot be had, and why."""
        if batch is None:
            self.missing["batch"] = f"the driver has CUDA {driver.version}, want 12080"
        else:
            self.queues["batch"] = batch
        self._kernel = self._load_kernel(quota, batch or each)
        if wanted in self.missing:
            message = f"copy_path is {wanted!r}, which cannot be had: {self.missing[wanted]}"
            raise ConfigError(message)
        self._kernel_is_ready = False
        if wanted == "kernel":
            self._prepare_kernel()
        self.costs: CostModel | None = None
        self._one_range: dict[tuple[int, int], bool] = {}
        self._chosen: dict[tuple[Direction, bytes], Path] = {}
        """What was chosen for runs of the same lengths before: chunks of a prompt are alike."""
        self._layout: PageLayout | None = None
        self._lengths: tuple[NDArray[np.intp], NDArray[np.intp]]
        """A row of each length that the rows of `_layout` have, and how many are as long."""
        self._most_pitch = context.attribute(ATTRIBUTE_MAX_PITCH)

    def _load_kernel(self, quota: int, instead: Queue) -> CopyKernel | None:
        if not self._context.attribute(ATTRIBUTE_HOST_POINTERS_IN_KERNELS):
            self.missing["kernel"] = "kernels cannot use the addresses of registered host memory on this GPU"
            return None
        try:
            kernel = CopyKernel(self._driver, quota, instead, self._stack)
        except CudaError as error:
            self.missing["kernel"] = str(error)
            return None
        self.queues["kernel"] = kernel.queue
        return kernel

    def _prepare_kernel(self) -> None:
        """Get what submissions of the kernel need, once."""
        if self._kernel is not None and not self._kernel_is_ready:
            with self._context.current():
                for stream in self._streams:
                    self._kernel.prepare(stream, self._stack)
            self._kernel_is_ready = True

    @property
    def runs_path(self) -> Path:
        """How runs are copied if there is nothing to weigh."""
        if self.wanted in self.queues:
            return self.wanted
        return "batch" if "batch" in self.queues else "each"

    def least_block(self, host: HostPool, direction: Direction) -> int | None:
        """Return from how many segments on `plan_copies` shall make blocks; `None` for none.

        A block's pitch on the host is a segment, and the driver has a longest one. A block spans segments,
        which may not all lie in one registration.
        """
        if self.wanted not in ("auto", "blocks"):
            return None
        if host.segment_bytes > self._most_pitch:
            self.missing["blocks"] = f"a segment of {host.segment_bytes} bytes is longer than a pitch may be"
            return None
        if not self._is_one_range(host):
            self.missing["blocks"] = "the host memory is not known to the driver as one range"
            return None
        return self.measured().least_block(direction) if self.wanted == "auto" else LEAST_BLOCK

    def _is_one_range(self, host: HostPool) -> bool:
        """Whether all of a pool is in one registration or allocation; the driver is asked once for each pool."""
        pool = (host.address, host.bytes)
        if pool not in self._one_range:
            begin, size = ctypes.c_uint64(), ctypes.c_size_t()
            with self._context.current():
                known = all(
                    self._driver.cuPointerGetAttribute(ctypes.byref(value), attribute, host.address) == SUCCESS
                    for attribute, value in ((POINTER_RANGE_START, begin), (POINTER_RANGE_SIZE, size))
                )
            end = begin.value + size.value
            self._one_range[pool] = known and begin.value <= host.address and host.address + host.bytes <= end
        return self._one_range[pool]

    def prepare(self, plan: CopyPlan) -> PreparedPlan:
        """Choose for a plan."""
        path = self._cheapest(plan) if self.wanted == "auto" else self.runs_path
        if path == "kernel":
            try:
                self._prepare_kernel()
            except CudaError as error:
                path = "batch" if "batch" in self.queues else "each"
                _logger.warning("the copy kernel gets no memory, %s is used: %s", path, error)
        runs = plan.destinations, plan.sources, plan.sizes
        if path == "batch" and are_better_in_turns(plan):
            runs = in_turns(plan, runs[0]), in_turns(plan, runs[1]), in_turns(plan, runs[2])
        return PreparedPlan(
            layout=plan.layout,
            direction=plan.direction,
            pages=plan.pages,
            slots=plan.slots,
            destinations=plan.destinations,
            sources=plan.sources,
            sizes=plan.sizes,
            blocks=plan.blocks,
            path=path,
            queue=self.queues[path],
            arrays=CopyArrays(*runs),
            lines=BlockArrays(plan.blocks, plan.direction) if plan.blocks is not None else None,
        )

    def _cheapest(self, plan: CopyPlan) -> Path:
        """Choose by one row of each length, as all rows of a length have the same runs."""
        if self._layout is not plan.layout:
            _, rows, counts = np.unique(plan.layout.row_bytes, return_index=True, return_counts=True)
            self._layout, self._lengths = plan.layout, (rows, counts)
            self._chosen.clear()
        rows, counts = self._lengths
        sizes = plan.sizes[rows]
        if not sizes.size:
            return self.runs_path
        key = (plan.direction, sizes.tobytes())
        path = self._chosen.get(key)
        if path is None:
            path = self.measured().path(plan.direction, sizes.ravel(), np.repeat(counts, sizes.shape[1]))
            if len(self._chosen) >= MOST_CHOSEN:
                self._chosen.clear()
            self._chosen[key] = path
        return path

    def measured(self) -> CostModel:
        """Return the costs of this machine, measured when they are first asked for."""
        if self.costs is None:
            self.costs = CostModel(self._figures(), tuple(self.queues))
        return self.costs

    def _figures(self) -> Figures:
        name, file = machine(self._driver, self._context), cost_file()
        known = _figures_of.get(name) or read_figures(file, name)
        if known is not None:
            _figures_of[name] = known
            return known
        with self._context.current(), ExitStack() as scratch:
            try:
                calibration = Calibration(self._driver, scratch)
                stream = cast("CopyStream", calibration.stream)
                if self._kernel is not None:
                    self._kernel.prepare(stream, scratch)
                    scratch.callback(self._kernel.forget, stream)
                # Whatever goes wrong: no memory is freed with copies under way.
                scratch.callback(release, self._driver, "cuStreamSynchronize", stream.handle)
                figures = calibration.measure(name, self.queues, self.queue_blocks)
            except CudaError as error:
                _logger.warning("the cost of copies could not be measured, figures of an H200 are used: %s", error)
                return ON_H200
        _figures_of[name] = figures
        write_figures(file, name, figures)
        return figures

    def explain(self) -> Mapping[str, str]:
        """Return what is chosen for what, and why."""
        said = {}
        if self.wanted != "auto":
            blocks = "blocks where whole segments follow each other, and " if self.wanted == "blocks" else ""
            said["every size"] = f"{blocks}{self.runs_path}, as copy_path is {self.wanted!r}"
        elif self.costs is None:
            said["every size"] = "by cost, which is measured when the first plan is prepared"
        else:
            said.update(self.costs.explain())
        said.update({f"not {path}": reason for path, reason in self.missing.items()})
        return said
