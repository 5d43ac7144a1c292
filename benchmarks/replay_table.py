"""Replay the public traces against the cache sizes of `docs/benchmarks.md`.

Writes one JSON per run and prints the tables. Every timed row is repeated, the rows taking turns,
and so is a floor measured in the same process: an LRU over block ids in a plain `OrderedDict`,
which is no tree and knows nothing of pages. On a machine that is shared with others, the ratio to
the floor says more than the microseconds.

    CPKV_TRACES=<folder> python benchmarks/replay_table.py [--repeats N] [--out FOLDER]
"""

import argparse
import json
import os
import statistics
import subprocess
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from time import process_time_ns

from cpkv import TraceError
from cpkv.bench import machine
from cpkv.replay import UNLIMITED, Replay, ReplayResult, ReplaySettings, Request, read_trace

CONVERSATION = "conversation_trace.jsonl"
SYNTHETIC = "synthetic_trace.jsonl"
SIZES = (1_000, 3_000, 10_000, 30_000, 50_000, UNLIMITED)
TWO_TIERS = ((1_000, 9_000), (3_000, 27_000), (10_000, 40_000))
ALONE = (9_000, 27_000, 40_000)
PAGES_PER_BLOCK = 8
"""Pages of 64 tokens in a block of 512."""

Row = tuple[str, ReplaySettings]


def rows() -> Iterator[Row]:
    """Every trace and setting of the tables."""
    for trace in (CONVERSATION, SYNTHETIC):
        for pages in SIZES:
            yield trace, ReplaySettings(device_pages=pages)
    for pages in ALONE:
        yield CONVERSATION, ReplaySettings(device_pages=pages)
    for device_pages, host_pages in TWO_TIERS:
        yield CONVERSATION, ReplaySettings(device_pages=device_pages, host_pages=host_pages)
    for pages in (1_000, 10_000, 50_000, UNLIMITED):
        pages_of_tokens = pages if pages == UNLIMITED else pages * PAGES_PER_BLOCK
        yield CONVERSATION, ReplaySettings(unit="tokens", device_pages=pages_of_tokens)
    yield CONVERSATION, ReplaySettings(unit="tokens", device_pages=80_000, host_pages=320_000)
    yield CONVERSATION, ReplaySettings(unit="tokens", key="pair", device_pages=80_000)


def floor_us(requests: list[Request], capacity: int) -> float:
    """CPU microseconds per request of an LRU of block ids that is no tree."""
    held: OrderedDict[int, None] = OrderedDict()
    prompts = [request.hash_ids.tolist() for request in requests]
    start = process_time_ns()
    for blocks in prompts:
        for block in blocks:
            if block not in held:
                break
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
        while len(held) > capacity:
            held.popitem(last=False)
    return (process_time_ns() - start) / len(prompts) / 1_000


def commit() -> str:
    """The commit that was measured."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    return done.stdout.strip()


def capacity(pages: int | None) -> str:
    """A capacity as the tables show it."""
    if pages is None:
        return "-"
    return "unlimited" if pages == UNLIMITED else f"{pages:,}"


HEADINGS = (
    "trace",
    "unit, key",
    "device",
    "host",
    "hit ratio: device, host, both",
    "us per request: least, median",
    "to the floor",
    "match, evict, insert",
    "metadata bytes",
)


def measure(traces: dict[str, list[Request]], repeats: int) -> tuple[dict[Row, list[ReplayResult]], list[float]]:
    """Run all rows `repeats` times in turns, and the floor with each turn."""
    runs: dict[Row, list[ReplayResult]] = {row: [] for row in rows()}
    floors = []
    for _ in range(repeats):
        floors.append(floor_us(traces[CONVERSATION], 10_000))
        for (trace, settings), results in runs.items():
            results.append(Replay(settings).run(traces[trace], source=trace))
    return runs, floors


def show(runs: dict[Row, list[ReplayResult]], floors: list[float]) -> None:
    """Print the table of `docs/benchmarks.md`."""
    floor = statistics.median(floors)
    print(f"| {' | '.join(HEADINGS)} |")
    print("|---" * len(HEADINGS) + "|")
    for (trace, settings), results in runs.items():
        best = min(results, key=lambda result: result.us_per_request)
        median = statistics.median(result.us_per_request for result in results)
        cells = (
            trace.split("_")[0],
            f"{settings.unit}, {settings.key}",
            capacity(settings.device_pages),
            capacity(settings.host_pages),
            f"{best.device_hit_ratio:.4f}, {best.host_hit_ratio:.4f}, {best.hit_ratio:.4f}",
            f"{best.us_per_request:.2f}, {median:.2f}",
            f"{median / floor:.2f}",
            f"{best.us_match:.2f}, {best.us_evict:.2f}, {best.us_insert:.2f}",
            f"{best.metadata_bytes:,}",
        )
        print(f"| {' | '.join(cells)} |")
    print(f"\nfloor (OrderedDict, 10,000 blocks): {min(floors):.2f} least, {floor:.2f} median")


def main() -> None:
    """Run everything, print the table and keep the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    folder = os.environ.get("CPKV_TRACES")
    if not folder:
        parser.error("CPKV_TRACES has to name the folder with the traces")
    try:
        traces = {name: list(read_trace(str(Path(folder) / name))) for name in (CONVERSATION, SYNTHETIC)}
    except TraceError as error:
        parser.error(str(error))
    runs, floors = measure(traces, arguments.repeats)
    show(runs, floors)

    about = machine() | {"commit": commit()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"replay-{about['date']}.json"
    everything = [result.as_json() for results in runs.values() for result in results]
    file.write_text(json.dumps({"machine": about, "floor_us": floors, "runs": everything}, indent=1) + "\n")
    print(", ".join(f"{name} {value}" for name, value in about.items()), file, sep=": ")


if __name__ == "__main__":
    main()
