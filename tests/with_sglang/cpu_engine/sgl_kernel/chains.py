"""What EAGLE calls of the kernels when it drafts a chain: no tree, one token a step."""

import torch


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    """The last accepted token of each request."""
    rows = accept_tokens.view(-1, accept_stride)
    last = accept_lens.to(torch.int64)[:, None] - 1
    bonus_tokens.copy_(rows.gather(1, last).squeeze(1))


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    """The slots of all accepted tokens, in a row; -1 stands for a token that was not accepted."""
    accepted = accept_index[accept_index >= 0].to(torch.int64)
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_cols
):
    """As many slots behind the end of each request as it drafts."""
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_cols, out_cache_loc, pool_len
    )


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):  # noqa: ARG001 - as SGLang calls it
    """The slots of a span of each request, one request behind the other."""
    filled = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[filled : filled + end - start] = req_to_token[request, start:end]
        filled += end - start


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):  # noqa: ARG001 - as SGLang calls it
    """The way back: the row of each request gets the slots of its span."""
    taken = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[request, start:end] = out_cache_loc[taken : taken + end - start]
        taken += end - start


def _spans(*tensors):
    return zip(*(tensor.tolist() for tensor in tensors), strict=True)


def build_tree_kernel_efficient_cpu(
    parent_list,  # noqa: ARG001 - a chain needs no parents
    selected_index,  # noqa: ARG001 - nor a choice
    seq_lens,
    tree_mask,  # noqa: ARG001 - torch_native does not read it
    positions,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,  # noqa: ARG001 - nobody has one: it is -1 everywhere
    topk,
    depth,  # noqa: ARG001 - of a tree
    draft_token_num,
    tree_mask_mode,  # noqa: ARG001 - of what is not read
):
    """A chain as a tree: each token follows the one before."""
    if topk != 1:
        message = f"topk is {topk}, want 1: only chains are written for the CPU"
        raise NotImplementedError(message)
    steps = torch.arange(draft_token_num)
    requests = len(seq_lens)
    positions.view(requests, -1).copy_(seq_lens[:, None] + steps)
    retrive_index.view(requests, -1).copy_(torch.arange(requests)[:, None] * draft_token_num + steps)
    retrive_next_token.view(requests, -1)[:, :-1] = steps[1:]


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,  # noqa: ARG001 - in a chain the next one is the next one
    retrive_next_sibling,  # noqa: ARG001 - and has none beside it
    target_predict,
):
    """Accept drafts up to the first that the target would not have chosen, whose place its own choice takes."""
    wanted = target_predict.view_as(candidates)
    matches = candidates[:, 1:] == wanted[:, :-1]
    matches = matches[:, : accept_index.shape[1] - 1]
    accepted = matches.to(torch.int64).cumprod(dim=1).sum(dim=1)
    accept_token_num.copy_(accepted)
    for request, count in enumerate(accepted.tolist()):
        places = retrive_index[request, : count + 1]
        accept_index[request, : count + 1] = places
        predicts[places] = wanted[request, : count + 1].to(predicts.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):  # noqa: ARG001 - nothing is copied
    """The KV of accepted tokens moves to the front, where it is in a chain."""
    if not torch.equal(tgt_loc, src_loc):
        message = f"KV has to move from {src_loc.tolist()} to {tgt_loc.tolist()}, which no chain needs"
        raise NotImplementedError(message)
