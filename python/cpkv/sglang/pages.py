"""Between pages of cpkv and the token indices of SGLang's tensors.

A page of SGLang is `page_size` consecutive rows of its pools; row 0, with page size 1, or page 0 is padding and
never given out.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cpkv._core import PageIds, PageTable

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
        self.are_at_hand = device.type == "cpu"
        """Whether a row can be read without waiting for anything."""
        self._device = device
        self._offsets = torch.arange(page_size, dtype=torch.int64, device=device)
        self._none = torch.empty(0, dtype=torch.int64, device=device)
        self._table: torch.Tensor | None = None
        """The table that was read last, on a CPU."""
        self._table_pages: PageTable | None = None

    def tensor(self, pages: PageIds) -> torch.Tensor:
        """Return pages where SGLang keeps its indices, dtype `int64`, shape `(len(pages),)`."""
        return self._there(bytearray(pages)) if len(pages) else self._none

    def token_indices(self, pages: PageIds) -> torch.Tensor:
        """Return the rows of pages, in order, dtype `int64`, shape `(len(pages) * page_size,)`."""
        if self.page_size == 1 or not len(pages):
            return self.tensor(pages)
        if self.are_at_hand:
            return self._there(pages.rows(self.page_size))
        return (self.tensor(pages)[:, None] * self.page_size + self._offsets).reshape(-1)

    def of(self, token_indices: torch.Tensor) -> NDArray[np.int64]:
        """Return the pages of token indices, which are all of each page, dtype `int64`."""
        return _pages_at(token_indices[:: self.page_size].cpu().numpy(), self.page_size)

    def of_row(self, table: torch.Tensor, row: int, first_page: int, end_page: int) -> PageIds | NDArray[np.int64]:
        """Return the pages that a request's row of token indices has at some places, dtype `int64`.

        On a GPU the calling thread waits until its stream is there.

        Args:
            table: Token indices of all rows, dtype `int32`, shape `(rows, tokens)`.
            row: The row of the request.
            first_page: Place in the prompt of the first page.
            end_page: Place behind the last one.
        """
        if not self.are_at_hand:
            places = slice(first_page * self.page_size, end_page * self.page_size, self.page_size)
            return _pages_at(table[row, places].cpu().numpy(), self.page_size)
        if self._table_pages is None or table is not self._table:
            self._table, self._table_pages = table, PageTable(table.numpy(), self.page_size)
        return self._table_pages.pages(row, first_page, end_page)

    def of_rows(self, table: torch.Tensor, spans: Sequence[tuple[int, int, int]]) -> "AskedPages":
        """Ask for the pages of several rows. The calling thread waits for nothing.

        Args:
            table: Token indices of all rows, integer, shape `(rows, tokens)`.
            spans: Of each the row, the place of its first page and that behind its last one.
        """
        size = self.page_size
        firsts = [table[row, first * size : end * size : size] for row, first, end in spans]
        lengths = [end - first for _, first, end in spans]
        return AskedPages(torch.cat(firsts) if firsts else None, lengths, size)

    def _there(self, numbers: bytearray) -> torch.Tensor:
        tensor = torch.frombuffer(numbers, dtype=torch.int64)
        if self.are_at_hand:
            return tensor
        if len(tensor) > _STAGED_IDS:
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


class AskedPages:
    """Pages that a GPU was asked for. It answers when its stream is there: behind the forward that runs now.

    Args:
        firsts: The first token index of each, integer, or `None` for none.
        lengths: How many pages there are of each row.
        page_size: Tokens in a page.
    """

    def __init__(self, firsts: torch.Tensor | None, lengths: Sequence[int], page_size: int) -> None:
        self._lengths = lengths
        self._page_size = page_size
        self._answered: torch.cuda.Event | None = None
        if firsts is not None and firsts.is_cuda:
            answer = torch.empty(firsts.shape, dtype=firsts.dtype, pin_memory=True)
            answer.copy_(firsts, non_blocking=True)
            self._answered = torch.cuda.Event()
            self._answered.record()
            firsts = answer
        self._firsts = firsts
        self._pages: list[NDArray[np.int64]] | None = None

    def are_there(self) -> bool:
        """Whether they can be had without waiting."""
        return self._answered is None or bool(self._answered.query())

    def get(self) -> list[NDArray[np.int64]]:
        """Wait for them; return those of each row. Each row of a large batch may ask."""
        if self._pages is None:
            self._pages = self._answer()
        return self._pages

    def _answer(self) -> list[NDArray[np.int64]]:
        if self._firsts is None:
            return []
        if self._answered is not None:
            self._answered.synchronize()
        pages = _pages_at(self._firsts.cpu().numpy(), self._page_size)
        ends = accumulate(self._lengths)
        return [pages[end - length : end] for end, length in zip(ends, self._lengths, strict=True)]


class ToldPages:
    """The pages of one row among those that were asked for.

    Args:
        asked: Those of several rows.
        place: Of the row among them.
        first_page: Place in the prompt of the first of them.
    """

    def __init__(self, asked: AskedPages, place: int, first_page: int) -> None:
        self._asked = asked
        self._place = place
        self.first_page = first_page

    def get(self) -> NDArray[np.int64]:
        """Wait for them."""
        return self._asked.get()[self._place]


def _pages_at(firsts: NDArray[np.integer[Any]], page_size: int) -> NDArray[np.int64]:
    """The pages that token indices are the first of."""
    if page_size == 1:
        return firsts.astype(np.int64)
    pages: NDArray[np.int64] = np.floor_divide(firsts, page_size, dtype=np.int64)
    return pages


def device_of(allocator: Any) -> torch.device:  # noqa: ANN401 - SGLang's
    """Return where an allocator keeps its indices."""
    return torch.device(allocator.device)
