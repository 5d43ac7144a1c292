"""Between pages of cpkv and the token indices of SGLang's tensors.

A page of SGLang is `page_size` consecutive rows of its pools; row 0, with page size 1, or page 0 is padding and
never given out.
"""

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

        Args:
            row: Token indices from the first token on, integer, shape `(tokens,)` or longer.
            first_page: Place in the prompt of the first page.
            end_page: Place behind the last one.
        """
        size = self.page_size
        firsts = row[first_page * size : end_page * size : size].to(torch.int64)
        array: NDArray[np.int64] = (firsts // size if size > 1 else firsts).cpu().numpy()
        return array


def device_of(allocator: Any) -> torch.device:  # noqa: ANN401 - SGLang's
    """Return where an allocator keeps its indices."""
    return torch.device(allocator.device)
