"""What the allocator of pages computes by kernels before 0.5.22, also for a pool on a CPU."""

import torch
from sglang.srt.mem_cache.allocator import paged


def allocate_on_cpu():
    """Let the allocator launch something else, if it does not do without by itself."""
    if "use_triton_kernels" not in paged.PagedTokenToKVPoolAllocator.__init__.__code__.co_names:
        paged.alloc_extend_kernel = Launched(extend)
        paged.alloc_decode_kernel = Launched(decode)


class Launched:
    """What is called as a kernel is launched."""

    def __init__(self, function):
        self._function = function

    def __getitem__(self, grid):
        return self._function


def extend(begins, ends, last_indices, free_pages, indices, _, page_size):
    """Where the tokens of requests are stored: behind what each has in its last page, and then in free pages."""
    done = used = 0
    for begin, end, last in zip(begins.tolist(), ends.tolist(), last_indices.tolist(), strict=True):
        places = torch.arange(begin, end)
        pages = places // page_size - -(-begin // page_size)
        taken = -(-end // page_size) - -(-begin // page_size)
        if used + taken > len(free_pages):
            return  # the allocator counts, and gives nothing
        fresh = free_pages[used : used + taken]
        in_fresh = pages >= 0
        found = last + 1 + places - begin
        found[in_fresh] = fresh[pages[in_fresh]] * page_size + places[in_fresh] % page_size
        indices[done : done + len(places)] = found
        done, used = done + len(places), used + taken


def decode(ends, last_indices, free_pages, indices, batch, page_size):
    """The same, for one token of each."""
    extend(ends - 1, ends, last_indices, free_pages, indices, batch, page_size)
