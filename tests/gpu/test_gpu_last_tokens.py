"""The last tokens' hidden states on a GPU: collecting them waits for nothing, and gets what the CPU gets."""

import pytest
from gpu_needed import needs_gpu

from cpkv.cp import interleave_split, zigzag_split
from cpkv.cp.tensors import CpTensors

torch = needs_gpu()
# That torch does not detect every wait is a warning of its own.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

RANKS = 2


@pytest.mark.parametrize("split_batch", [zigzag_split, interleave_split])
@pytest.mark.parametrize("extend", [[640], [640, 641, 300]])
def test_collecting_does_not_wait_for_the_gpu(split_batch, extend):
    split = split_batch([0] * len(extend), extend, cp_size=RANKS, page_size=16)
    batch = torch.randn(split.tokens, 64).to(torch.bfloat16)
    hidden = batch.cuda()
    ranks = [CpTensors.of(split.view(rank), "cuda") for rank in range(RANKS)]
    mine = [rank.take(hidden) for rank in ranks]
    anything = torch.zeros(RANKS, len(extend), 64, dtype=torch.bfloat16, device="cuda")
    sent, collected = [], []
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for rank, rows in zip(ranks, mine, strict=True):
            rank.collect_last_token_hidden(rows, lambda own: sent.append(own) or anything)
        gathered = torch.stack(sent)
        for rank, rows in zip(ranks, mine, strict=True):
            collected.append(rank.collect_last_token_hidden(rows, lambda _: gathered).rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ends = torch.tensor(extend).cumsum(0) - 1
    assert all(torch.equal(rows.cpu(), batch[ends]) for rows in collected)
