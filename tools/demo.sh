#!/bin/sh
# Run the demo with the torch that $PYTHON has, or with one of its own in .venv-torch.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

torch=$("$python" - <<'END'
import importlib.util
from pathlib import Path

spec = importlib.util.find_spec("torch")
print(Path(spec.origin).parent.parent if spec and spec.origin else "")
END
)
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
    echo "cpkv: the demo needs torch, which $python has not: installing it into $environment, once" >&2
    echo "cpkv: that takes 2.3 GB of disk; TORCH_INDEX_URL names another index than PyPI, such as one of CPU builds" >&2
    make $environment/.installed
  fi
fi
PYTHONPATH=python exec $environment/bin/python -m cpkv demo "$@"
