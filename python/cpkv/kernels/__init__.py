"""Copy rows between an engine's device pools and host segments with few blocks of the GPU.

The engine keeps a buffer for each layer, page after page (layer-first). The host keeps *segments*:
inside one, the rows of one component and layer of all its slots lie side by side, and with one slot a
segment that is page-first. `LayerCopy` moves the rows of a layer, all its components in one launch, to
the host (`backup`) and back (`restore`). `cpkv.kernels.reference` does the same one row at a time.

Importing this package imports torch and triton; `import cpkv` does not.
"""

from cpkv.kernels.index_rows import IndexRows, join_index_rows, split_index_rows
from cpkv.kernels.layer import LayerCopy
from cpkv.kernels.layout import HostSegments, LayerRows
from cpkv.kernels.pairs import PagePairs

__all__ = [
    "HostSegments",
    "IndexRows",
    "LayerCopy",
    "LayerRows",
    "PagePairs",
    "join_index_rows",
    "split_index_rows",
]
