"""What arguments may be."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias


class Array(Protocol):
    """What numpy arrays, `array.array` and `memoryview` have in common."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...  # noqa: ANN401 - each has indices and elements of its own


Int64s: TypeAlias = Sequence[int] | Array
"""Integers from -2**63 to 2**63 - 1, shape `(n,)`.

A contiguous buffer of `int64` (numpy, `array('q')`, `memoryview`, `PageIds`; a torch CPU tensor as
`tensor.numpy()`) is read in place and only during the call. A list, tuple or range is copied.
"""

Namespace: TypeAlias = str | bytes | dict[str, str] | None
"""What separates equal tokens that must not share KV: adapter, cache salt, tenant.

`None` is a namespace of its own. A string, the same bytes, and a dict with one part are different
namespaces; the parts of a dict are compared by name, in any order.
"""
