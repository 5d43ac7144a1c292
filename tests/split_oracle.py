"""Context-parallel splits, token by token: who computes each, found by walking over a view's lists."""

from collections import defaultdict


def computed_by(split):
    """Return for each (request, position) the ranks that compute it, in the order in which they are seen."""
    ranks = defaultdict(list)
    for rank in range(split.cp_size):
        for request, position, _ in rows_of(split, rank):
            ranks[request, position].append(rank)
    return ranks


def rows_of(split, rank):
    """Yield request, position and batch row of each row of a rank, from the plain lists of its parts."""
    firsts = [0]
    for count in split.batch.extend_tokens.tolist():
        firsts.append(firsts[-1] + count)
    for part in split.view(rank).parts:
        for request, first, count in zip(
            part.requests.tolist(), part.first_positions.tolist(), part.token_counts.tolist(), strict=True
        ):
            for index in range(count):
                position = first + index * part.step
                yield request, position, firsts[request] + position - int(split.batch.prefix_tokens[request])


def ranks_of_pages(split):
    """Return for each (request, page) the ranks that compute a token of it."""
    pages = defaultdict(set)
    for (request, position), ranks in computed_by(split).items():
        pages[request, position // split.page_size].update(ranks)
    return pages


def pages_for(split, first_page=0):
    """Give each page that a request begins an id in the lane of its owner, and open pages one of rank 0's.

    Returns a dict from (request, page) to the id; every id is given once.
    """
    next_of_lane = [first_page] * split.cp_size
    ids = {}
    for (request, page), ranks in sorted(ranks_of_pages(split).items()):
        (lane,) = ranks
        ids[request, page] = next_of_lane[lane] * split.cp_size + lane
        next_of_lane[lane] += 1
    return ids


def locations_of(split, rank, ids):
    """Return where each row of a rank lies, given the ids of pages."""
    size = split.page_size
    return [ids[request, position // size] * size + position % size for request, position, _ in rows_of(split, rank)]
