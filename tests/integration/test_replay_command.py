"""`cpkv replay` from the outside: output, files, exit codes, signals."""

import contextlib
import gzip
import json
import os
import pty
import select
import signal
import stat
import subprocess
from functools import partial

import pytest

from command_line import cpkv_command, run_command

run = partial(run_command, timeout=60)
LINE = '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [%s]}'


@pytest.fixture
def trace(tmp_path):
    """The second request finds all of the first, the third half of it."""
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join([LINE % "1, 2", LINE % "1, 2, 3", LINE % "1, 4, 5"]) + "\n")
    return file


def test_the_table(trace):
    done = run("replay", trace, "--device-pages", "100")
    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(line.strip().rsplit(maxsplit=1) for line in done.stdout.splitlines()[2:] if line)
    assert rows["requests"] == "3"
    assert rows["tokens"] == "4,096"
    assert rows["hit ratio, device"] == "0.3750"
    assert {"us per request", "us per request, match", "us per request, insert", "us per request, evict"} < set(rows)
    assert int(rows["peak metadata bytes"].replace(",", "")) > 0
    assert "\x1b" not in done.stdout, "readable without colour"


def test_the_json(trace, tmp_path):
    file = tmp_path / "out.json"
    done = run(
        "replay", trace, "--unit", "tokens", "--key", "pair", "--page-size", "16", "--device-pages", "96",
        "--host-pages", "192", "--lanes", "2", "--policy", "lru", "--limit", "2", "--json", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert figures["settings"] == {
        "unit": "tokens",
        "page_size": 16,
        "key": "pair",
        "device_pages": 96,
        "host_pages": 192,
        "lanes": 2,
        "policy": "lru",
        "limit": 2,
        "segment_pages": 1,
    }
    assert (figures["requests"], figures["tokens"]) == (2, 5 * 512)
    # 1,024 tokens make 63 pair pages of 16.
    assert figures["device_hit_ratio"] == pytest.approx(63 * 16 / (5 * 512))
    assert figures["hit_ratio"] == figures["device_hit_ratio"] + figures["host_hit_ratio"]
    parts = sum(figures[name] for name in ("us_match", "us_insert", "us_evict"))
    assert min(figures[name] for name in ("us_match", "us_place", "us_insert")) > 0
    assert figures["us_per_request"] == pytest.approx(parts + figures["us_place"])
    assert figures["evicted_pages"] == figures["host_hit_ratio"] == 0
    assert figures["metadata_bytes"] > 4 * 3 * 512, "the tokens, at 4 bytes each"
    assert list(tmp_path.glob(".*")) == [], "nothing half-written stays"
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def test_standard_input_and_gzip(trace, tmp_path):
    expected = run("replay", trace).stdout.splitlines()[2:5]
    with trace.open() as lines:
        done = run("replay", "-", stdin=lines)
    assert done.stdout.splitlines()[2:5] == expected
    assert done.stdout.startswith("standard input: ")
    zipped = tmp_path / "trace.gz"
    zipped.write_bytes(gzip.compress(trace.read_bytes()))
    assert run("replay", zipped).stdout.splitlines()[2:5] == expected
    done = subprocess.run(cpkv_command("replay", "-"), input=zipped.read_bytes(), capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[2:5] == expected


def test_a_made_up_workload_is_repeatable(tmp_path):
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file in files:
        done = run("replay", "--requests", "50", "--seed", "7", "--sharing", "0.9", "--json", file)
        assert done.returncode == 0, done.stderr
    first, second = (json.loads(file.read_text()) for file in files)
    assert first["hit_ratio"] == second["hit_ratio"] > 0.5
    assert first["settings"]["device_pages"] == "unlimited"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--device-pages", "0"], "device_pages is 0, want 1 to"),
        (["--host-pages", "0"], "host_pages is 0, want 1 to"),
        (["--lanes", "4294967294"], "lanes is 4294967294, want 1 to 1024"),
        (["--lanes", "99999999999999999999"], "lanes is 99999999999999999999, want 1 to 1024"),
        (["--device-pages", "many"], "got 'many', want a number of pages or 'unlimited'"),
        (["--unit", "tokens", "--page-size", "0"], "page_size is 0, want at least 1"),
        (["--unit", "tokens", "--page-size", "100"], "page_size is 100, want a divisor of the block of 512 tokens"),
        (["--page-size", "64"], "page_size is 64, want 512 with blocks"),
        (["--lanes", "0"], "lanes is 0, want 1 to 1024"),
        (["--limit", "0"], "limit is 0, want at least 1"),
        (["--policy", "best"], "'best' is not one of 'lru'"),
        (["--unit", "bytes"], "'bytes' is not one of 'blocks', 'tokens'"),
        (["--no-such-option"], "--no-such-option"),
        (["--seed", "1"], "--seed: got a trace as well"),
        (["--json", "/no/such/folder/out.json"], "--json: /no/such/folder is no folder"),
        (["--json", "/"], "--json: / is a folder, want a file"),
    ],
)
def test_bad_options_are_told_in_one_line(trace, arguments, wanted):
    done = run("replay", trace, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert wanted in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_trace_is_told_in_one_line_and_leaves_no_json(trace, tmp_path):
    with trace.open("a") as file:
        file.write(LINE % "1, -2")
    out = tmp_path / "out.json"
    out.write_text("from an earlier run")
    done = run("replay", trace, "--json", out)
    assert done.returncode == 2
    assert done.stderr == f"cpkv: {trace}:4: hash_ids[1]: got -2, want an integer from 0 to 9223372036854775807\n"
    assert out.read_text() == "from an earlier run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "trace.jsonl"]
    for missing in (tmp_path / "missing", ""):
        done = run("replay", missing)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_figures_of_two_tiers(tmp_path):
    """Device of 2 pages, host of 4: what is found where can be counted by hand."""
    file, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    # 1 2 | 3 4 evicts both to the host | 1 2 comes back from there, 3 4 stay | 5 6 7: too long by one.
    file.write_text("\n".join(LINE % ids for ids in ("1, 2", "3, 4", "1, 2", "1, 2", "5, 6, 7")))
    done = run("replay", file, "--device-pages", "2", "--host-pages", "4", "--json", out)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert (figures["pages"], figures["uncached_pages"]) == (11, 1)
    assert (figures["device_hit_pages"], figures["host_hit_pages"]) == (2, 2)
    assert figures["hit_ratio"] == pytest.approx(4 / 11)
    # Three times both device pages; 5 and 6 take the slots of the mirrors 1 and 2, which are copied
    # late in place of 3 and 4.
    assert figures["device_evicted_pages"] == 6
    assert figures["evicted_pages"] == 6 + figures["host_evicted_pages"]


@contextlib.contextmanager
def interrupted(arguments, **options):
    """Start the command; afterwards interrupt it, and expect it to end as it should."""
    with subprocess.Popen(
        cpkv_command(*arguments),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options,
    ) as process:
        yield process
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stdout.read() == ""


def test_an_interrupt_while_reading(tmp_path):
    pipe, out = tmp_path / "pipe", tmp_path / "out.json"
    os.mkfifo(pipe)
    with interrupted(["replay", pipe, "--json", out]) as process, pipe.open("w") as writer:
        # The pipe opens when the command reads it, and never ends.
        writer.write(LINE % "1, 2" + "\n")
        writer.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stderr.read() == "cpkv: interrupted\n"
        process.send_signal = process.poll = lambda *_: None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]


def test_an_interrupt_while_replaying(tmp_path):
    out = tmp_path / "out.json"
    leader, follower = pty.openpty()
    with interrupted(["replay", "--requests", "100000", "--json", out], stderr=follower) as process:
        os.close(follower)
        shown = b""
        while b"replaying" not in shown:
            shown += os.read(leader, 65_536)
        assert process.poll() is None
    os.close(leader)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_starting():
    """Whenever it comes, there is no traceback, and a code that tells it from success.

    Before that the interpreter itself is starting; how long it takes depends on the machine.
    """
    interrupted = 0
    for delay in range(40, 2_000, 30):
        with subprocess.Popen(cpkv_command("replay", "-"), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            select.select([process.stderr], [], [], delay / 1_000)
            process.send_signal(signal.SIGINT)
            process.stdin.close()
            code = process.wait(timeout=20)
            told = process.stderr.read().decode()
        assert code != 0
        if code == 130:
            assert told == "cpkv: interrupted\n"
            interrupted += 1
        if interrupted == 5:
            break
    assert interrupted == 5


def test_the_json_goes_where_it_should(trace, tmp_path):
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("replay", trace, "--json", link).returncode == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["requests"] == 3
    assert target.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    with subprocess.Popen(cpkv_command("replay", trace, "--json", pipe), stdout=subprocess.DEVNULL) as process:
        assert json.loads(pipe.read_text())["requests"] == 3
        assert process.wait(timeout=20) == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode), "written to, not replaced"
    for source in (trace, link):
        done = run("replay", source, "--json", source)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is the trace" in done.stderr
    assert trace.read_text().startswith("{")


@pytest.mark.parametrize(
    ("redirection", "told"),
    [
        ("- <&-", "standard input: closed, want a trace"),
        ("TRACE >&-", "standard output: closed, want somewhere to write"),
        ("TRACE >/dev/full", "standard output: No space left on device, want somewhere to write"),
    ],
)
def test_closed_and_full_streams(trace, redirection, told):
    command = f"{' '.join(cpkv_command('replay'))} {redirection.replace('TRACE', str(trace))}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (2, f"cpkv: {told}\n")


@pytest.mark.parametrize("name", ["a[/b].jsonl", "[red]x[/red].jsonl", ":smile:.jsonl", "g\u00f6.jsonl"])
def test_names_are_shown_as_they_are(trace, tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(trace.read_bytes())
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = run("replay", file, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    shown = str(file).encode("ascii", "backslashreplace").decode()
    assert done.stdout.startswith(f"{shown}: ")
    assert (
        run("replay", file, env=environment | {"COLUMNS": "10"}).stdout.splitlines()[:5] == done.stdout.splitlines()[:5]
    )


def test_a_reader_that_goes_away_is_no_error(trace):
    with subprocess.Popen(
        cpkv_command("replay", trace), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.wait(timeout=20) == -signal.SIGPIPE
        assert process.stderr.read() == ""


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text("\n".join(LINE % number for number in range(3_000)))
    leader, follower = pty.openpty()
    with subprocess.Popen(cpkv_command("replay", file), stdout=subprocess.PIPE, stderr=follower, text=True) as process:
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(leader, 65_536):
                shown += part
        os.close(leader)
        printed = process.stdout.read()
        assert process.wait(timeout=20) == 0
    assert b"replaying" in shown
    assert "replaying" not in printed
    forced = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"}
    assert run("replay", file, env=forced).stderr == ""


def test_help_and_version():
    for arguments in (["--help"], ["replay", "--help"], []):
        done = run(*arguments)
        assert "Usage: cpkv" in done.stdout + done.stderr
    shown = run("replay", "--help").stdout
    for option in ("--unit", "--page-size", "--key", "--device-pages", "--host-pages", "--lanes", "--policy",
                   "--limit", "--json", "--requests", "--sharing", "--seed"):  # fmt: skip
        assert option in shown
    assert run("--version").stdout.startswith("cpkv 0.")
