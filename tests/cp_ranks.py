"""Rank processes that gather with gloo and report what they got.

    python tests/cp_ranks.py RANK RANKS FILE

Prints, as JSON, the collected hidden states, the restored batch, the bytes of each collective, and what a collection
queues.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from cpkv.cp import interleave_split, zigzag_split
from cpkv.cp.tensors import CpTensors, all_gather_over

HIDDEN = 16
PREFIX, EXTEND = [0, 64, 3], [700, 130, 1]
SPLITS = {"zigzag": zigzag_split, "interleave": interleave_split}
BATCHES = {"of one request": [130], "of one rank": [130, 66], "of several ranks": [130, 65]}
"""Whose last tokens: with the zigzag split all of them are of one rank."""
VIEWS = {torch.ops.aten.slice, torch.ops.aten.select, torch.ops.aten.view}


def batch_of(tokens):
    return torch.arange(tokens * HIDDEN, dtype=torch.float32).reshape(tokens, HIDDEN)


class Queued(TorchDispatchMode):
    """What is called in this thread, but what makes a view. Gloo gathers in a thread of its own, and copies there."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, called, _, arguments=(), named=None):
        if called.overloadpacket not in VIEWS:
            self.names.append(str(called.overloadpacket))
        return called(*arguments, **(named or {}))


def queued(split, rank):
    """What a collection queues, in memory that is there."""
    tensors = CpTensors.of(split.view(rank))
    hidden = torch.ones(split.padded_tokens, HIDDEN)
    over = all_gather_over(out=hidden.new_empty((split.cp_size * len(split.batch), HIDDEN)))
    # The first one makes what is made once.
    tensors.collect_last_token_hidden(hidden, over)
    with Queued() as queue:
        tensors.collect_last_token_hidden(hidden, over)
    return queue.names


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
            "queued": {},
        }
        for batch, extend in BATCHES.items():
            split = split_batch([0] * len(extend), extend, cp_size=ranks, page_size=16)
            owners = set(split.last_ranks.tolist())
            said[name]["queued"][batch] = (rank in owners, len(owners), queued(split, rank))
    dist.destroy_process_group()
    print(json.dumps(said))  # noqa: T201 - what it is asked for


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
