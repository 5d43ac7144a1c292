"""Between pages of cpkv and the token indices of SGLang's tensors.

A page of SGLang is `page_size` consecutive rows of its pools; row 0, with page size 1, or page 0 is padding and
never given out.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cpkv._core import PageIds

_STAGED_IDS: Final = 8_192
"""So many, 64 KiB, the driver takes from pageable memory at once. With more the caller would wait for the stream."""


class Pages:
    """The pages of one allocator.

    Args:
        page_size: Tokens in a page.
        device: Where SGLang keeps its indices.
    """

    def __init__(self, page_size: int, device: torch.device) -> None:
        self.page_size = page_size
        self._device = device
        self._offsets = torch.arange(page_size, dtype=torch.int64, device=device)

    def token_indices(self, pages: PageIds) -> torch.Tensor:
        """Return the rows of pages, in order, dtype `int64`, shape `(len(pages) * page_size,)`."""
        ids = torch.from_numpy(np.array(pages, np.int64))
        if self._device.type == "cuda":
            if len(ids) > _STAGED_IDS:
                ids = ids.pin_memory()
            ids = ids.to(self._device, non_blocking=True)
        if self.page_size == 1:
            return ids
        return (ids[:, None] * self.page_size + self._offsets).reshape(-1)

    def of_row(self, row: torch.Tensor, first_page: int, end_page: int) -> NDArray[np.int64]:
        """Return the pages that a request's row of token indices has at some places, dtype `int64`.

        On a GPU the calling thread waits until its stream is there.

        Args:
            row: Token indices from the first token on, integer, shape `(tokens,)` or longer.
            first_page: Place in the prompt of the first page.
            end_page: Place behind the last one.
        """
        return self._pages(row[first_page * self.page_size : end_page * self.page_size : self.page_size])

    def of_rows(self, table: torch.Tensor, spans: Sequence[tuple[int, int, int]]) -> "AskedPages":
        """Ask for the pages of several rows. The calling thread waits for nothing.

        Args:
            table: Token indices of all rows, integer, shape `(rows, tokens)`.
            spans: Of each the row, the place of its first page and that behind its last one.
        """
        size = self.page_size
        firsts = [table[row, first * size : end * size : size] for row, first, end in spans]
        lengths = [end - first for _, first, end in spans]
        return AskedPages(self._ids(torch.cat(firsts)) if firsts else None, lengths)

    def _pages(self, firsts: torch.Tensor) -> NDArray[np.int64]:
        """The pages that token indices are the first of."""
        array: NDArray[np.int64] = self._ids(firsts).cpu().numpy()
        return array

    def _ids(self, firsts: torch.Tensor) -> torch.Tensor:
        """The same, where the indices are."""
        firsts = firsts.to(torch.int64)
        return firsts // self.page_size if self.page_size > 1 else firsts


class AskedPages:
    """Pages that a GPU was asked for. It answers when its stream is there: behind the forward that runs now.

    Args:
        ids: All of them, `int64`, or `None` for none.
        lengths: How many there are of each row.
    """

    def __init__(self, ids: torch.Tensor | None, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._answered: torch.cuda.Event | None = None
        if ids is not None and ids.is_cuda:
            answer = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
            answer.copy_(ids, non_blocking=True)
            self._answered = torch.cuda.Event()
            self._answered.record()
            ids = answer
        self._ids = ids

    def are_there(self) -> bool:
        """Whether they can be had without waiting."""
        return self._answered is None or bool(self._answered.query())

    def get(self) -> list[NDArray[np.int64]]:
        """Wait for them; return those of each row."""
        if self._ids is None:
            return []
        if self._answered is not None:
            self._answered.synchronize()
        pages: NDArray[np.int64] = self._ids.numpy()
        return np.split(pages, np.cumsum(self._lengths)[:-1])


def device_of(allocator: Any) -> torch.device:  # noqa: ANN401 - SGLang's
    """Return where an allocator keeps its indices."""
    return torch.device(allocator.device)
