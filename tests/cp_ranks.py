"""Rank processes that gather with gloo and report what they got.

    python tests/cp_ranks.py RANK RANKS FILE

Prints, as JSON, the collected hidden states, the restored batch, and the bytes of each collective.
"""

import json
import sys

import torch
import torch.distributed as dist

from cpkv.cp import interleave_split, zigzag_split
from cpkv.cp.tensors import CpTensors, all_gather_over

HIDDEN = 16
PREFIX, EXTEND = [0, 64, 3], [700, 130, 1]
SPLITS = {"zigzag": zigzag_split, "interleave": interleave_split}


def batch_of(tokens):
    return torch.arange(tokens * HIDDEN, dtype=torch.float32).reshape(tokens, HIDDEN)


def main(rank, ranks, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    over, sent = all_gather_over(), []

    def all_gather(tensor):
        sent.append(tensor.numel() * tensor.element_size())
        return over(tensor)

    said = {}
    for name, split_batch in SPLITS.items():
        split = split_batch(PREFIX, EXTEND, cp_size=ranks, page_size=16)
        tensors = CpTensors.of(split.view(rank))
        mine = tensors.take(batch_of(split.tokens))
        sent.clear()
        last = tensors.collect_last_token_hidden(mine, all_gather)
        whole = tensors.gather(mine, all_gather)
        said[name] = {
            "last": last.rows.tolist(),
            "is_whole": torch.equal(whole, batch_of(split.tokens)),
            "sent": sent[:],
        }
    dist.destroy_process_group()
    print(json.dumps(said))  # noqa: T201 - what it is asked for


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
