"""What profilers see of an engine of SGLang: its scheduler by py-spy, the GPU by torch's profiler."""

import gzip
import itertools
import json
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

SAMPLES_PER_SECOND: Final = 400
TRACE_SECONDS: Final = 60
OF_CACHE: Final = re.compile(
    r"(site-packages|python|site)/cpkv/|/mem_cache/(?!allocator|memory_pool\.|common\.py|allocation\.py)|/managers/cache_controller",
)
"""Files of a prefix cache, its host pools and its copies. SGLang's allocator and rows are used without a cache, too."""
OF_SCHEDULER: Final = re.compile(
    r"/sglang/srt/(managers/(?!cache_controller)|model_executor|models|layers|speculative)"
)
"""What may be called from within a function of the cache that has taken the place of one of SGLang's."""
SHOWN: Final = 12
"""Functions of the cache, those that take most."""


class SchedulerSamples:
    """Samples of the scheduler that this process has started."""

    def __init__(self, py_spy: str, file: str) -> None:
        import psutil  # noqa: PLC0415 - SGLang brings it

        children = psutil.Process().children(recursive=True)
        [scheduler] = [child for child in children if "scheduler" in " ".join(child.cmdline())]
        self._file = Path(file)
        command = [py_spy, "record", "--pid", str(scheduler.pid), "--rate", str(SAMPLES_PER_SECOND)]
        command += [
            "--format",
            "raw",
            "--full-filenames",
            "--idle",
            "--nonblocking",
            "--duration",
            "600",
            "--output",
            file,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603 - named by the user
        time.sleep(1)  # until it has read the symbols

    def shares(self) -> dict[str, Any]:
        """End sampling, and return the share of samples in the cache, and in each function that SGLang calls of it."""
        self._process.send_signal(signal.SIGINT)
        said, _ = self._process.communicate(timeout=60)
        if not self._file.exists():
            message = f"py-spy has written nothing; it said: {said}"
            raise RuntimeError(message)
        return shares(self._file.read_text(encoding="utf-8").splitlines())


def shares(stacks: Iterable[str]) -> dict[str, Any]:
    """Return the share of the scheduler's samples that lies in the cache.

    Args:
        stacks: Frames from the outermost on, each `function (file:line)`, joined by semicolons, and how many samples.
    """
    functions: Counter[str] = Counter()
    samples = 0
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if not any(frame.startswith(("event_loop", "dispatch_event_loop")) for frame in frames):
            continue
        samples += int(count)
        within = itertools.takewhile(lambda frame: not OF_SCHEDULER.search(frame), reversed(frames))
        if of_cache := [frame for frame in within if OF_CACHE.search(frame)]:
            functions[_name(of_cache[-1])] += int(count)
    return {
        "samples": samples,
        "in_cache": sum(functions.values()) / samples if samples else None,
        "functions": {name: count / samples for name, count in functions.most_common(SHOWN)},
    }


def _name(frame: str) -> str:
    """Return a frame without its folder and line."""
    function, _, place = frame.partition(" (")
    return f"{function} ({Path(place.rpartition(':')[0]).name})"


class GpuTrace:
    """A trace that SGLang's profiler has written."""

    def __init__(self, folder: Path) -> None:
        end = time.monotonic() + TRACE_SECONDS
        while not (files := [*folder.rglob("*.trace.json.gz")]):
            if time.monotonic() > end:
                message = f"no trace after {TRACE_SECONDS} s"
                raise TimeoutError(message)
            time.sleep(0.1)
        with gzip.open(files[0], "rt", encoding="utf-8") as file:
            self._events = json.load(file)["traceEvents"]

    def summary(self) -> dict[str, Any]:
        """Return how long the GPU has computed, and how long and how much each stream has copied."""
        computing = []
        copies: dict[tuple[str, Any], list[dict[str, Any]]] = defaultdict(list)
        for event in self._events:
            if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
                continue
            name, stream = event["name"], event.get("args", {}).get("stream")
            if event["cat"] == "gpu_memcpy" and ("DtoH" in name or "HtoD" in name):
                copies["to host" if "DtoH" in name else "to device", stream].append(event)
            elif "transfer" in name:
                copies["by kernels", stream].append(event)
            else:
                computing.append(event)
        return {
            "computing_s": _seconds(computing),
            "busy_s": _seconds([*computing, *(event for events in copies.values() for event in events)]),
            "copies": [
                {
                    "direction": direction,
                    "stream": stream,
                    "count": len(events),
                    "seconds": _seconds(events),
                    "bytes": sum(event["args"].get("bytes", 0) for event in events),
                }
                for (direction, stream), events in sorted(copies.items(), key=str)
            ],
        }


def _seconds(events: list[dict[str, Any]]) -> float:
    """Return the time that at least one of them covers."""
    total = end = 0.0
    for begun, duration in sorted((event["ts"], event["dur"]) for event in events):
        total += max(0.0, begun + duration - max(begun, end))
        end = max(end, begun + duration)
    return total / 1e6
