"""Which page goes with which slot, brought to the device once and used by all layers.

Ids that come from the host are checked here: in range, each once. Ids that are on the GPU already are
taken as they are, because looking at them would make the host wait for it.
"""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from cpkv.errors import InputError, InputTypeError, PageError

if TYPE_CHECKING:
    from cpkv.types import Int64s

Ids: TypeAlias = "Int64s | torch.Tensor"
IdArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


class PagePairs:
    """Pairs of (device page, host slot), in the order in which they are copied.

    Keep it until the copies have ended. The upload is queued on the current stream: build it on the
    stream that copies, or order the two.
    """

    def __init__(
        self,
        pages: Ids,
        slots: Ids,
        *,
        device_pages: int,
        host_slots: int,
        device: "torch.device | str" = "cuda",
    ) -> None:
        """Check the ids and bring them to the device.

        Args:
            pages: Device page ids, `int64`, shape `(n,)`: an array, or a tensor on the CPU or on `device`.
            slots: Host slots, the same.
            device_pages: Every page is less than this.
            host_slots: Every slot is less than this.
            device: Where the kernel runs.

        Raises:
            InputTypeError: Ids are not one row of `int64`.
            InputError: There are not as many slots as pages, or only one of the two is on the GPU.
            PageError: An id is out of range or given twice. Ids on the GPU are not looked at.
        """
        self.device = torch.device(device)
        self.device_pages = device_pages
        self.host_slots = host_slots
        if isinstance(pages, torch.Tensor) and isinstance(slots, torch.Tensor) and pages.is_cuda and slots.is_cuda:
            self.pages, self.slots = _on_gpu("pages", pages, self.device), _on_gpu("slots", slots, self.device)
            _same_length(len(pages), len(slots))
        else:
            page_array, slot_array = _on_host("pages", pages), _on_host("slots", slots)
            _same_length(len(page_array), len(slot_array))
            _in_range("page", page_array, device_pages)
            _in_range("slot", slot_array, host_slots)
            both = torch.from_numpy(np.stack([page_array, slot_array]))
            if self.device.type == "cuda":
                both = both.pin_memory().to(self.device, non_blocking=True)
            self.pages, self.slots = both[0], both[1]

    def __len__(self) -> int:
        return len(self.pages)


def _on_gpu(name: str, ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    if ids.dtype != torch.int64 or ids.dim() != 1 or not ids.is_contiguous():
        message = f"{name}: {ids.dtype} of shape {tuple(ids.shape)}, want contiguous int64 of shape (n,)"
        raise InputTypeError(message)
    if device.type != "cuda" or (device.index is not None and device.index != ids.get_device()):
        message = f"{name} are on {ids.device}, want {device} or the CPU"
        raise InputError(message)
    return ids


def _on_host(name: str, ids: Ids) -> IdArray:
    if isinstance(ids, torch.Tensor):
        if ids.is_cuda:
            message = f"{name} are on {ids.device} and the others are not: want both there or both on the CPU"
            raise InputError(message)
        ids = ids.detach().numpy()
    # numpy makes an empty list one of floats.
    array: IdArray = np.asarray(ids, np.int64 if isinstance(ids, (list, tuple, range)) and not ids else None)
    if array.dtype != np.int64 or array.ndim != 1:
        message = f"{name}: {array.dtype} of shape {array.shape}, want int64 of shape (n,)"
        raise InputTypeError(message)
    return array


def _same_length(pages: int, slots: int) -> None:
    if pages != slots:
        message = f"{pages} pages and {slots} slots, want as many of each"
        raise InputError(message)


def _in_range(name: str, ids: IdArray, end: int) -> None:
    outside = ids[(ids < 0) | (ids >= end)]
    if len(outside):
        message = f"{name} {outside[0]} is out of range, want 0 to {end - 1} ({len(outside)} of {len(ids)} are outside)"
        raise PageError(message)
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        message = f"{name} {twice[0]} is given twice, want each once: copies of one launch have no order"
        raise PageError(message)
