"""Compile the kernel for a GPU that is not there, as a launch would, and print what came out as JSON.

A process of its own: the tests beside it run under TRITON_INTERPRET, which leaves nothing to compile.
"""

import json
import re
from collections import Counter

import torch
import triton
from triton.backends.compiler import GPUTarget

from cpkv.kernels.rows import FIELDS, TILE_WORDS, WARPS, copy_rows

SHAPES = {"16": ((41_984, 16), (8_448, 16)), "8": ((41_984, 8),), "4": ((132, 4),), "1": ((51, 1),)}


class Hopper:
    """What Triton asks a driver when it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):  # noqa: ARG002 - Triton's
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def main():
    triton.runtime.driver.set_active(Hopper())
    compiled = []
    for words, shapes in SHAPES.items():
        for to_host in (True, False):
            for count in (1, 7, 512):
                ids = torch.zeros(2, count, dtype=torch.int64)
                kernel = copy_rows.warmup(
                    torch.zeros(len(shapes), FIELDS, dtype=torch.int64),
                    ids[0],
                    ids[1],
                    count,
                    to_host=to_host,
                    shapes=shapes,
                    segment_pages=32,
                    fields=FIELDS,
                    tile_words=TILE_WORDS,
                    num_warps=WARPS,
                    grid=(4,),
                )
            ptx = kernel.asm["ptx"]
            compiled.append(
                {
                    "words": words,
                    "to_host": to_host,
                    "accesses": Counter(re.findall(r"\b(?:ld|st)\.(?:global|shared|local)\.[\w.]+", ptx)),
                    "signature": list(kernel.src.signature.values()),
                    "variants": sum(len(cache[0]) for cache in copy_rows.device_caches.values()),
                }
            )
    print(json.dumps(compiled))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
