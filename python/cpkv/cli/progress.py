"""Progress of long work, on standard error and only if that is a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def _is_shown() -> bool:
    # Not rich's own idea of a terminal, which an environment variable can force.
    return sys.stderr is not None and sys.stderr.isatty()


def watched(items: Iterable[T], doing: str) -> Iterator[T]:
    """Pass `items` on and show how many have come."""
    if not _is_shown():
        yield from items
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} requests"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=None)
        for item in items:
            progress.advance(task)
            yield item


@contextmanager
def steps(total: int, doing: str) -> Iterator[Callable[[], None] | None]:
    """Give a function to be called after each of `total` steps, or `None` if nothing is shown.

    No thread refreshes the bar: its CPU time would be taken for that of the work.
    """
    if not _is_shown():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(doing, total=total)
        progress.refresh()
        every = max(total // 100, 1)
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            if done % every == 0:
                progress.update(task, completed=done, refresh=True)

        yield step
