"""Reading traces: what is accepted, and that each refusal names place, value seen and wanted."""

import gzip
import json

import pytest

from cpkv import TraceError
from cpkv.replay import read_trace

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}


def write(tmp_path, *lines, name="trace.jsonl"):
    file = tmp_path / name
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return file


def test_requests_in_order(tmp_path):
    file = write(tmp_path, GOOD, GOOD | {"hash_ids": [0, 2**63 - 1], "timestamp": 1.5})
    requests = list(read_trace(str(file)))
    assert [request.hash_ids.tolist() for request in requests] == [[0, 1], [0, 2**63 - 1]]
    assert requests[0].input_length == 600


def test_gzip_is_recognised_by_its_content(tmp_path):
    plain = write(tmp_path, GOOD, GOOD)
    for name in ("trace.jsonl.gz", "trace"):
        file = tmp_path / name
        file.write_bytes(gzip.compress(plain.read_bytes()))
        assert len(list(read_trace(str(file)))) == 2


def test_blank_lines_are_skipped_and_counted(tmp_path):
    file = write(tmp_path, GOOD, "", "  ", GOOD, "nonsense")
    with pytest.raises(TraceError, match=r"trace\.jsonl:5: "):
        list(read_trace(str(file)))


def test_a_byte_order_mark_is_no_nonsense(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\n")
    assert len(list(read_trace(str(file)))) == 1


def test_a_line_has_an_end():
    with pytest.raises(TraceError, match="/dev/zero:1: a line of 67,108,864 bytes or more"):
        list(read_trace("/dev/zero"))


def test_a_limit_reads_no_further(tmp_path):
    file = write(tmp_path, GOOD, GOOD, "nonsense")
    assert len(list(read_trace(str(file), limit=2))) == 2


def without(name):
    return {key: value for key, value in GOOD.items() if key != name}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", ":2: got 'nonsense', want a JSON object"),
        ('{"timestamp": 0', ":2: got '{\"timestamp\": 0', want a JSON object"),
        ("[1, 2]", r":2: got \[1, 2\], want a JSON object"),
        ("[" * 100_000, r":2: got '\[\[\[.*\.\.\., want a JSON object"),
        (without("timestamp"), ":2: timestamp: got nothing, want a number of at least 0"),
        (without("input_length"), ":2: input_length: got nothing, want an integer of at least 0"),
        (without("output_length"), ":2: output_length: got nothing, want an integer"),
        (without("hash_ids"), ":2: hash_ids: got nothing, want a list of block ids"),
        (GOOD | {"timestamp": -1}, ":2: timestamp: got -1, want"),
        (GOOD | {"timestamp": "now"}, ":2: timestamp: got 'now', want"),
        (GOOD | {"timestamp": float("nan")}, ":2: timestamp: got nan, want"),
        (GOOD | {"timestamp": float("inf")}, ":2: timestamp: got inf, want"),
        (GOOD | {"input_length": -600}, ":2: input_length: got -600, want"),
        (GOOD | {"input_length": 1.5}, ":2: input_length: got 1.5, want"),
        (GOOD | {"input_length": True}, ":2: input_length: got True, want"),
        (GOOD | {"output_length": None}, ":2: output_length: got None, want"),
        (GOOD | {"hash_ids": 7}, ":2: hash_ids: got 7, want a list"),
        (GOOD | {"hash_ids": [0, "x"]}, r":2: hash_ids\[1\]: got 'x', want an integer from 0 to 9223372036854775807"),
        (GOOD | {"hash_ids": [0, 1, 2.0]}, r":2: hash_ids\[2\]: got 2.0, want an integer"),
        (GOOD | {"hash_ids": [True]}, r":2: hash_ids\[0\]: got True, want an integer"),
        (GOOD | {"hash_ids": [-1]}, r":2: hash_ids\[0\]: got -1, want an integer"),
        (GOOD | {"hash_ids": [2**63]}, r":2: hash_ids\[0\]: got 9223372036854775808, want an integer"),
        (GOOD | {"hash_ids": [None]}, r":2: hash_ids\[0\]: got None, want an integer"),
    ],
)
def test_a_refusal_names_the_place_and_the_values(tmp_path, line, message):
    file = write(tmp_path, GOOD, line, GOOD)
    with pytest.raises(TraceError, match=message) as refused:
        list(read_trace(str(file)))
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < len(str(file)) + 200


def test_files_that_cannot_be_read(tmp_path):
    empty, blank = write(tmp_path, name="empty"), write(tmp_path, "", "", name="blank")
    empty.write_text("")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 1_000)[:-20])
    binary = tmp_path / "binary"
    binary.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    for file, message in (
        (empty, "no requests, want one JSON object a line"),
        (blank, "no requests, want one JSON object a line"),
        (tmp_path / "missing", "No such file or directory, want a trace file"),
        (tmp_path, "Is a directory, want a trace file"),
        (broken, ":1: broken gzip data"),
        (binary, ":2: byte 0xff at 0, want UTF-8 text"),
    ):
        with pytest.raises(TraceError, match=message) as refused:
            list(read_trace(str(file)))
        assert str(refused.value).startswith(str(file))
