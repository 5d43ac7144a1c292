"""The same conversations, served by SGLang with one prefix cache and with another, in turns.

Each cache has engines of its own, with the same options but for the cache. All are started first, and one of them
serves at a time, so that a slow minute of the machine slows all. The first repeats load kernels and are left out. Of
the last one, which is not timed, two profilers say where time goes: py-spy in the scheduler, and torch's on the GPU.

python benchmarks/sglang_serve.py --model-path PATH [--options JSON] --cache NAME=JSON [--cache NAME=JSON ...]
    [--engines 2] [--repeats 3] [--py-spy FILE] [--gpu] [--json FILE]

The cache named first is what the others are compared with. Options are those of `sglang.Engine`, such as
'{"page_size": 64, "max_total_tokens": 65536}'.
"""

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from sglang_profile import GpuTrace, SchedulerSamples

from cpkv.bench import machine

LEFT_OUT: Final = 1
"""Repeats, the first ones."""
START_SECONDS: Final = 600
CALL_SECONDS: Final = 300
PORTS: Final = 40
"""From one engine to the next."""


class Load(NamedTuple):
    """Conversations. Each turn goes on from the answer to the one before it."""

    conversations: int = 24
    turns: int = 5
    first_tokens: int = 3_000
    new_tokens: int = 600
    answer_tokens: int = 48
    at_once: int = 8
    vocabulary: int = 30_000
    """Of which tokens are drawn."""


class Answer(NamedTuple):
    """What one request has got, and when."""

    turn: int
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    first_token_s: float
    between_tokens_s: list[float]
    accepted: float | None
    digest: str


class Served:
    """An engine, in the process that has started it."""

    def __init__(self, options: dict[str, Any]) -> None:
        from sglang.srt.entrypoints.engine import Engine  # noqa: PLC0415 - not in the process that only asks

        self._engine = Engine(**options)
        self._samples: SchedulerSamples | None = None

    def serve(self, load: Load, seed: int) -> tuple[float, list[Answer]]:
        """Serve conversations and return the seconds that it took, and the answers."""
        begun = time.perf_counter()
        answers = self._engine.loop.run_until_complete(self._conversations(load, seed))
        return time.perf_counter() - begun, answers

    def flush(self) -> None:
        """Forget what is cached, when all that is under way has ended."""
        for _ in range(100):
            flushed = self._engine.flush_cache()
            if getattr(flushed, "success", flushed):
                return
            time.sleep(0.1)
        message = "the cache was not flushed in 10 s: requests are still running"
        raise TimeoutError(message)

    def start_sampling(self, py_spy: str, file: str) -> None:
        """Let py-spy sample the scheduler."""
        self._samples = SchedulerSamples(py_spy, file)

    def stop_sampling(self) -> dict[str, Any]:
        """Return in which of the cache's functions the scheduler was seen, as shares of all samples."""
        return self._samples.shares()

    def start_trace(self, folder: str) -> None:
        """Let torch's profiler note what the GPU does."""
        self._engine.start_profile(output_dir=folder, activities=["GPU"])

    def stop_trace(self, folder: str) -> dict[str, Any]:
        """Return how long the GPU has computed and copied."""
        self._engine.stop_profile()
        return GpuTrace(Path(folder)).summary()

    def close(self) -> None:
        """End the engine."""
        self._engine.shutdown()

    async def _conversations(self, load: Load, seed: int) -> list[Answer]:
        gate = asyncio.Semaphore(load.at_once)
        each = (self._conversation(load, random.Random(1_000 * seed + i), gate) for i in range(load.conversations))
        return [answer for answers in await asyncio.gather(*each) for answer in answers]

    async def _conversation(self, load: Load, draw: random.Random, gate: asyncio.Semaphore) -> list[Answer]:
        history = draw.choices(range(load.vocabulary), k=load.first_tokens)
        answers = []
        for turn in range(load.turns):
            async with gate:
                answer, generated = await self._request(turn, list(history), load.answer_tokens)
            answers.append(answer)
            history += generated + draw.choices(range(load.vocabulary), k=load.new_tokens)
        return answers

    async def _request(self, turn: int, prompt: list[int], answer_tokens: int) -> tuple[Answer, list[int]]:
        sampling = {"temperature": 0, "max_new_tokens": answer_tokens, "ignore_eos": True}
        begun = last = time.perf_counter()
        first, gaps, generated, meta = None, [], [], {}
        async for part in await self._engine.async_generate(input_ids=prompt, sampling_params=sampling, stream=True):
            now = time.perf_counter()
            meta, got = part["meta_info"], part["output_ids"]
            count = meta["completion_tokens"]
            if first is None:
                first = now - begun
            else:
                gaps.append((now - last) / max(1, count - len(generated)))
            # Some versions tell the new tokens, others all of them.
            generated = got if len(got) == count else generated + got
            last = now
        details = meta.get("cached_tokens_details") or {}
        digest = hashlib.sha256(repr((prompt, generated)).encode()).hexdigest()
        host = details.get("host", 0)
        device = meta["cached_tokens"] - host
        accepted = meta.get("spec_accept_length")
        return Answer(turn, len(prompt), device, host, first, gaps, accepted, digest), list(generated)


def run_engine(connection: Connection, options: dict[str, Any], log: str) -> None:
    """Be the process of an engine: start it, and do what is asked for until nothing more is."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    served = Served(options)
    connection.send(None)
    while (call := connection.recv()) is not None:
        name, arguments = call
        connection.send(getattr(served, name)(*arguments))
    served.close()


class EngineProcess:
    """An engine in a process of its own."""

    def __init__(self, name: str, options: dict[str, Any], log: Path) -> None:
        self.name = name
        self._log = log
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=run_engine, args=(theirs, options, str(log)))
        self._process.start()
        theirs.close()

    def wait_until_started(self) -> None:
        """Wait until requests can be sent."""
        self._receive(START_SECONDS)

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - what that function of `Served` returns
        """Call a function of `Served`."""
        self._connection.send((name, arguments))
        return self._receive(CALL_SECONDS)

    def close(self) -> None:
        """End it, also if it does not answer."""
        try:
            self._connection.send(None)
            self._process.join(60)
        except OSError:
            pass
        if self._process.is_alive():
            self._process.kill()

    def _receive(self, seconds: int) -> Any:  # noqa: ANN401 - see `call`
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
        except EOFError:
            pass
        end = "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
        message = f"the engine of {self.name} is gone, or has not answered for {seconds} s; the end of its log:\n{end}"
        raise RuntimeError(message)


def figures(seconds: float, answers: list[Answer]) -> dict[str, Any]:
    """Return the figures of a repeat."""
    first = [1e3 * answer.first_token_s for answer in answers if answer.turn == 0]
    later = [1e3 * answer.first_token_s for answer in answers if answer.turn > 0]
    between = [1e3 * gap for answer in answers for gap in answer.between_tokens_s]
    accepted = [answer.accepted for answer in answers if answer.accepted is not None]
    return {
        "seconds": seconds,
        "requests": len(answers),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "device_tokens": sum(answer.device_tokens for answer in answers),
        "host_tokens": sum(answer.host_tokens for answer in answers),
        "first_token_first_turns_p50_ms": part_of(first, 0.5),
        "first_token_later_turns_p50_ms": part_of(later, 0.5),
        "first_token_later_turns_p90_ms": part_of(later, 0.9),
        "first_token_later_turns_p99_ms": part_of(later, 0.99),
        "between_tokens_p50_ms": part_of(between, 0.5),
        "between_tokens_p99_ms": part_of(between, 0.99),
        "accepted": statistics.mean(accepted) if accepted else None,
        "digest_of_answers": hashlib.sha256("".join(sorted(answer.digest for answer in answers)).encode()).hexdigest()[
            :12
        ],
    }


def part_of(values: list[float], part: float) -> float | None:
    """Return the value that this part of them are not above."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else None


def profile(engine: EngineProcess, arguments: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Serve once more for each profiler, and return what they have seen."""
    seed = 1 + LEFT_OUT + arguments.repeats
    seen: dict[str, Any] = {}
    if arguments.py_spy:
        engine.call("start_sampling", arguments.py_spy, str(logs / f"samples of {engine.name}"))
        seconds, _ = engine.call("serve", arguments.load, seed)
        seen["scheduler"] = {"seconds": seconds} | engine.call("stop_sampling")
        engine.call("flush")
    if arguments.gpu:
        with tempfile.TemporaryDirectory() as folder:
            engine.call("start_trace", folder)
            seconds, answers = engine.call("serve", arguments.load, seed)
            host_tokens = sum(answer.host_tokens for answer in answers)
            seen["gpu"] = {"seconds": seconds, "host_tokens": host_tokens} | engine.call("stop_trace", folder)
        engine.call("flush")
    return seen


def table(repeats: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a row of Markdown for each figure: medians of each cache, and their ratios to those of the first."""
    names = list(repeats)
    others = "".join(f" {name} | to {names[0]} |" for name in names[1:])
    yield f"| | {names[0]} |{others}"
    yield "|---" * (2 * len(names)) + "|"
    for figure, example in repeats[names[0]][0].items():
        if not isinstance(example, int | float):
            continue
        medians = [statistics.median(repeat[figure] for repeat in repeats[name]) for name in names]
        cells = [f"{medians[0]:,.2f}"]
        for median in medians[1:]:
            cells += [f"{median:,.2f}", f"{median / medians[0]:.2f}" if medians[0] else ""]
        yield f"| {figure} | {' | '.join(cells)} |"


def measure(arguments: argparse.Namespace, engines: list[EngineProcess], logs: Path) -> dict[str, Any]:
    """Serve with each engine in turn; return all figures by cache."""
    load = arguments.load
    for engine in engines:
        engine.wait_until_started()
        engine.call("serve", load._replace(conversations=4, turns=2, answer_tokens=8), 0)
        engine.call("flush")
    print(f"{len(engines)} engines serve", flush=True)
    repeats: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    order = list(engines)
    for repeat in range(LEFT_OUT + arguments.repeats):
        for engine in order:
            seconds, answers = engine.call("serve", load, 1 + repeat)
            engine.call("flush")
            if repeat >= LEFT_OUT:
                repeats[engine.name].append(figures(seconds, answers))
        order.append(order.pop(0))
    one_of_each = {engine.name: engine for engine in engines}
    profiles = {name: profile(engine, arguments, logs) for name, engine in one_of_each.items()}
    return {"repeats": repeats, "profiles": profiles}


def named_options(text: str) -> tuple[str, dict[str, Any]]:
    """Return what `NAME=JSON` says."""
    name, _, options = text.partition("=")
    try:
        return name, json.loads(options or "{}")
    except json.JSONDecodeError as error:
        message = f"{text!r}, want NAME=JSON: {error}"
        raise argparse.ArgumentTypeError(message) from error


def parsed() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--options", type=json.loads, default={}, help="of every engine")
    parser.add_argument("--cache", type=named_options, action="append", required=True, help="NAME=JSON")
    parser.add_argument("--engines", type=int, default=1, help="of each cache")
    parser.add_argument("--repeats", type=int, default=3, help="of each engine, beside the one that is left out")
    parser.add_argument("--py-spy", help="the program that samples the scheduler")
    parser.add_argument("--gpu", action="store_true", help="trace what the GPU does")
    parser.add_argument("--logs", type=Path, help="a folder to keep the logs of engines in")
    parser.add_argument("--json", type=Path)
    for field, default in Load._field_defaults.items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=int, default=default)
    arguments = parser.parse_args()
    arguments.load = Load(*(getattr(arguments, field) for field in Load._fields))
    return arguments


def main() -> None:
    """Measure, print a table, and write what was measured."""
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        logs = arguments.logs or Path(folder)
        names = [(name, options) for _ in range(arguments.engines) for name, options in arguments.cache]
        engines = []
        try:
            for i, (name, options) in enumerate(names):
                every = {"model_path": arguments.model_path, "skip_tokenizer_init": True, "sleep_on_idle": True}
                own = {"port": 30_000 + PORTS * i} | options
                engines.append(EngineProcess(name, every | arguments.options | own, logs / f"engine_{i}.log"))
            measured = measure(arguments, engines, logs)
        finally:
            for engine in engines:
                engine.close()
    print("\n".join(table(measured["repeats"])))
    for name, repeats in measured["repeats"].items():
        digests = Counter(repeat["digest_of_answers"] for repeat in repeats)
        print(f"answers of {name}: {', '.join(sorted(digests))}")
    print(json.dumps(measured["profiles"], indent=1))
    if arguments.json:
        about = {"machine": machine(), "load": arguments.load._asdict(), "caches": dict(arguments.cache)}
        arguments.json.write_text(json.dumps(about | measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
