#!/bin/sh
# Run the demo with the torch that $PYTHON has, or with one of its own in .venv-torch.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if "$python" -c 'import importlib.util as util, sys; sys.exit(util.find_spec("torch") is None)'; then
  environment=.venv-demo
  if [ ! -e $environment/.installed ]; then
    echo "cpkv: the demo runs with the torch of $python" >&2
    "$python" -m venv --system-site-packages $environment
    $environment/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/run.txt
    touch $environment/.installed
  fi
else
  environment=.venv-torch
  if [ ! -e $environment/.installed ]; then
    echo "cpkv: the demo needs torch, which $python has not: installing it into $environment, once" >&2
    echo "cpkv: that is 2.2 GB from PyPI; TORCH_INDEX_URL names another index, such as one of CPU builds" >&2
    make $environment/.installed
  fi
fi
PYTHONPATH=python exec $environment/bin/python -m cpkv demo "$@"
