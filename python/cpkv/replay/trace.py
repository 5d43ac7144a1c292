"""Request traces: one JSON object a line, as Mooncake has released them.

Fields: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (one id for each
block of 512 prompt tokens; equal ids mean equal tokens in front of and in the block).
"""

import gzip
import io
import json
import math
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cpkv.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_QUOTE = 60
_LONGEST_LINE = 2**26
_MOST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Args:
        hash_ids: Block ids of the prompt, dtype `int64`, shape `(blocks,)`.
        input_length: Prompt tokens.
    """

    hash_ids: npt.NDArray[np.int64]
    input_length: int


def read_trace(path: str, *, limit: int | None = None) -> Iterator[Request]:
    """Read the requests of a trace, one by one.

    Args:
        path: A file, or `-` for standard input; both may be compressed with gzip.
        limit: Requests to read at most.

    Raises:
        TraceError: The file is missing, empty or malformed; names file, line, the value seen and
            the value wanted.
    """
    name = "standard input" if path == "-" else path
    requests = 0
    with _open(path, name) as lines:
        line_number = 0
        while limit is None or requests < limit:
            line = _next_line(lines, f"{name}:{line_number + 1}")
            if not line:
                break
            line_number += 1
            if line.isspace():
                continue
            yield _parse(line, f"{name}:{line_number}")
            requests += 1
    if requests == 0 and limit != 0:
        message = f"{name}: no requests, want one JSON object a line"
        raise TraceError(message)


@contextmanager
def _open(path: str, name: str) -> Iterator[io.BufferedIOBase]:
    is_stdin = path == "-"
    if is_stdin and sys.stdin is None:
        message = f"{name}: closed, want a trace"
        raise TraceError(message)
    try:
        raw = open(sys.stdin.fileno() if is_stdin else path, "rb", closefd=not is_stdin)  # noqa: SIM115
    except OSError as error:
        message = f"{name}: {error.strerror}, want a trace file"
        raise TraceError(message) from None
    with raw:
        is_compressed = _peek(raw, name).startswith(_GZIP_MAGIC)
        yield gzip.GzipFile(fileobj=raw) if is_compressed else raw


def _peek(buffered: io.BufferedReader, name: str) -> bytes:
    try:
        return buffered.peek(len(_GZIP_MAGIC))
    except OSError as error:
        message = f"{name}: {error.strerror}, want a trace file"
        raise TraceError(message) from None


def _next_line(lines: io.BufferedIOBase, place: str) -> str:
    try:
        line = lines.readline(_LONGEST_LINE)
        # Some editors begin a file with a byte order mark.
        text = line.decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"{place}: broken gzip data ({error}), want a whole file"
        raise TraceError(message) from None
    except UnicodeDecodeError as error:
        message = f"{place}: byte 0x{error.object[error.start]:02x} at {error.start}, want UTF-8 text"
        raise TraceError(message) from None
    except OSError as error:
        message = f"{place}: {error.strerror}, want a trace file"
        raise TraceError(message) from None
    if len(line) == _LONGEST_LINE:
        message = f"{place}: a line of {_LONGEST_LINE:,} bytes or more, want one request a line"
        raise TraceError(message)
    return text


def _parse(line: str, place: str) -> Request:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        message = f"{place}: got {_quote(line.strip())}, want a JSON object"
        raise TraceError(message) from None
    if not isinstance(fields, dict):
        message = f"{place}: got {_quote(fields)}, want a JSON object"
        raise TraceError(message)
    _check_number(fields, "timestamp", (int, float), "a number of at least 0", place)
    _check_number(fields, "input_length", (int,), "an integer of at least 0", place)
    _check_number(fields, "output_length", (int,), "an integer of at least 0", place)
    return Request(hash_ids=_block_ids(fields, place), input_length=fields["input_length"])


def _check_number(fields: dict[str, object], name: str, types: tuple[type, ...], wanted: str, place: str) -> None:
    value = fields.get(name)
    # `True` is an `int` to Python, `NaN` and `Infinity` are numbers to its JSON reader.
    if isinstance(value, bool) or not isinstance(value, types) or not 0 <= value < math.inf:  # type: ignore[operator]
        seen = _quote(value) if name in fields else "nothing"
        message = f"{place}: {name}: got {seen}, want {wanted}"
        raise TraceError(message)


def _block_ids(fields: dict[str, object], place: str) -> npt.NDArray[np.int64]:
    ids = fields.get("hash_ids")
    if not isinstance(ids, list):
        seen = _quote(ids) if "hash_ids" in fields else "nothing"
        message = f"{place}: hash_ids: got {seen}, want a list of block ids"
        raise TraceError(message)
    for index, value in enumerate(ids):
        # `type` and not `isinstance`: `True` is no block id.
        if type(value) is not int or not 0 <= value <= _MOST_ID:
            message = f"{place}: hash_ids[{index}]: got {_quote(value)}, want an integer from 0 to {_MOST_ID}"
            raise TraceError(message)
    return np.array(ids, dtype=np.int64)


def _quote(value: object) -> str:
    """Return a value on one line, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
