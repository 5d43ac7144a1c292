"""SGLang's server with cpkv on a machine without a GPU: what the device has evicted is found on the host.

    demo.py

Serves a tiny model with a draft over HTTP, with a device pool that does not hold three prompts, and asks for the first
one again. Prints what the server was started with, what cpkv has logged, and what each answer says. Exits with 1 if the
last prompt was not found on the host, or is answered differently than before, or by other steps.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from engines import LINES_TOLD, START_SECONDS, environment
from prompts import Prompts
from tiny_models import write_models

MODEL = "dsa_nextn"
OPTIONS = f"""
--model-path {MODEL} --skip-tokenizer-init --dtype float32 --page-size 64 --max-total-tokens 640
--device cpu --attention-backend torch_native --disable-cuda-graph --skip-server-warmup
--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4
--radix-cache-backend cpkv --enable-hierarchical-cache --hicache-ratio 8 --hicache-io-backend direct
"""
PROMPT_TOKENS = 400
ASKED = "ABCA"
"""Prompts, in order."""
CALL_SECONDS = 120


def main():
    """Serve, ask and tell; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="cpkv-") as folder:
        models, log = Path(folder), Path(folder, "server.log")
        write_models(models)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "sglang.launch_server", *shlex.split(OPTIONS), "--port", str(port)]
        say("python -m sglang.launch_server" + OPTIONS.rstrip().replace("\n", " \\\n    "))
        with log.open("wb") as file:
            server = subprocess.Popen(
                command,
                cwd=models,  # the model's path is its name there
                env=environment() | {"TMPDIR": folder},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            wait(server, f"http://127.0.0.1:{port}/model_info", log)
            said = [line.partition("] ")[2] for line in log.read_text().splitlines()]
            say("", *(line for line in said if line.startswith(("cpkv ", "host tier: "))), "")
            return ask(f"http://127.0.0.1:{port}/generate")
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait(server, address, log):
    """Return when the server answers."""
    end = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            call(address)
        except URLError:
            time.sleep(0.5)
        else:
            return
    last = "\n".join(log.read_text().splitlines()[-LINES_TOLD:])
    sys.exit(f"cpkv: the server does not answer, last lines of its log:\n{last}")


def ask(address):
    """Send the prompts, one after another."""
    prompts = Prompts(1)
    tokens = {name: prompts.tokens(PROMPT_TOKENS) for name in sorted(set(ASKED))}
    said = {}
    say("prompt  cached_tokens  spec_accept_length  cached_tokens_details")
    for name in ASKED:
        answer = call(address, input_ids=tokens[name], sampling_params={"max_new_tokens": 16, "temperature": 0})
        told = answer["meta_info"]
        details = told["cached_tokens_details"]
        say(f"{name:6}  {told['cached_tokens']:13}  {told['spec_accept_length']:18.2f}  {json.dumps(details)}")
        answered = answer["output_ids"], told["spec_accept_length"]
        is_same = said.setdefault(name, answered) == answered
    found = (details or {}).get("host", 0)
    say("", f"{found} tokens came from the host, and the answer is {'the same' if is_same else 'ANOTHER'}")
    return 0 if found and is_same else 1


def call(address, **body):
    """Return what the server answers."""
    data = json.dumps(body).encode() if body else None
    asked = Request(address, data, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urlopen(asked, timeout=CALL_SECONDS) as answer:  # noqa: S310 - the same
        return json.load(answer)


def say(*lines):
    """Print lines at once, for those who wait."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
