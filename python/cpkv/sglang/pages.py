"""Between pages of cpkv and the token indices of SGLang's tensors.

A page of SGLang is `page_size` consecutive rows of its pools; row 0, with page size 1, or page 0 is padding and
never given out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpkv._core import PageIds


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
        ids = torch.from_numpy(np.array(pages, np.int64)).to(self._device, non_blocking=True)
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

    def of_rows(self, table: torch.Tensor, spans: Sequence[tuple[int, int, int]]) -> list[NDArray[np.int64]]:
        """Return the pages of several rows at once, so that the calling thread waits once.

        Args:
            table: Token indices of all rows, integer, shape `(rows, tokens)`.
            spans: Of each the row, the place of its first page and that behind its last one.
        """
        size, width = self.page_size, table.shape[1]
        places = [row * width + np.arange(first * size, end * size, size) for row, first, end in spans]
        if not places:
            return []
        there = torch.from_numpy(np.concatenate(places)).to(self._device, non_blocking=True)
        pages = self._pages(table.reshape(-1)[there])
        return np.split(pages, np.cumsum([len(each) for each in places])[:-1])

    def _pages(self, firsts: torch.Tensor) -> NDArray[np.int64]:
        """The pages that token indices are the first of."""
        firsts = firsts.to(torch.int64)
        array: NDArray[np.int64] = (firsts // self.page_size if self.page_size > 1 else firsts).cpu().numpy()
        return array


def device_of(allocator: Any) -> torch.device:  # noqa: ANN401 - SGLang's
    """Return where an allocator keeps its indices."""
    return torch.device(allocator.device)
