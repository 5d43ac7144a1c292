"""What the backups of an engine are of, so that somebody can look at their bytes when they become visible."""

from collections.abc import Iterable
from dataclasses import dataclass

from cpkv._core import CacheManager, Transaction


@dataclass(frozen=True, slots=True)
class Backup:
    """Pages of a sequence that are being copied to the host.

    Args:
        tokens: The sequence they belong to.
        first_page: The place of the first of them in it.
        slots: Their host slots, of all lanes.
        is_late: Whether they were in the cache before it was decided, and not reserved for a forward.
    """

    tokens: tuple[int, ...]
    first_page: int
    slots: tuple[int, ...]
    is_late: bool = False


def late_backups(cache: CacheManager, started: Iterable[Transaction]) -> dict[int, Backup]:
    """Return what late backups are of, by their `id`. Reads the whole state of the cache: for tests and the demo.

    Args:
        cache: With pair keys: a page also depends on the token behind it.
        started: What the last tick has started.
    """
    late = {transaction.id: transaction for transaction in started}
    if not late:
        return {}
    state = cache.dump()
    nodes = {node["index"]: node for node in state["nodes"]}
    backups = {}
    for operation in state["operations"]:
        if operation["id"] not in late:
            continue
        node = nodes[operation["node"]]
        tokens = [node["successor"]]
        while node is not None:
            tokens[:0] = node["token_ids"]
            node = nodes.get(node["parent"])
        first_page, slots = operation["first_page"], operation["host_slots"]
        known = (first_page + len(slots)) * cache.page_size + 1
        backups[operation["id"]] = Backup(tuple(tokens[:known]), first_page, tuple(slots), is_late=True)
    return backups
