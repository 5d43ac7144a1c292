#!/bin/sh
# Run the demo with the torch that $PYTHON has, or with one of its own in .venv-torch.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

# Where a torch is that is new enough, or nothing; what is wanted; what is there.
found=$("$python" - <<'END'
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:2]]


project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
wanted = project["optional-dependencies"]["torch"][0].partition(">=")[2]
spec = find_spec("torch")
place, there = "", "none"
if spec and spec.origin:
    try:
        there = version("torch")
    except PackageNotFoundError:  # built in place
        import torch

        there = torch.__version__
    if numbers(there) >= numbers(wanted):
        place = Path(spec.origin).parent.parent
print(place, wanted, there, sep="\n")
END
)
torch=$(echo "$found" | sed -n 1p)
if [ -n "$torch" ]; then
  environment=.venv-demo
  if [ "$(cat $environment/.made-of 2>/dev/null)" != "$torch" ] || [ requirements/run.txt -nt $environment/.made-of ]; then
    echo "cpkv: the demo runs with the torch of $python, in $environment" >&2
    "$python" -m venv --clear $environment
    $environment/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/run.txt
    # Behind what was installed here.
    echo "$torch" >"$($environment/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/torch-of-python.pth"
    $environment/bin/python -c 'import torch'
    echo "$torch" >$environment/.made-of
  fi
else
  environment=.venv-torch
  if [ ! -e $environment/.installed ]; then
    wanted=$(echo "$found" | sed -n 2p)
    there=$(echo "$found" | sed -n 3p)
    echo "cpkv: the demo needs torch $wanted or newer, and $python has $there: installing it into $environment, once" >&2
    if [ -z "${TORCH_INDEX_URL:-}" ]; then
      echo "cpkv: that takes 2.3 GB of disk; TORCH_INDEX_URL names another index than PyPI, such as one of CPU builds" >&2
    else
      echo "cpkv: from TORCH_INDEX_URL, with all that it needs; how much disk that takes depends on the build" >&2
    fi
    make $environment/.installed
  fi
fi
PYTHONPATH=python exec $environment/bin/python -m cpkv demo "$@"
