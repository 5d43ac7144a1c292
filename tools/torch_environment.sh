#!/bin/sh
# Make the environment of what needs torch: tools/torch_environment.sh FOLDER
#
# From PyPI without dependencies, which keeps out 3 GB of CUDA libraries that a machine without a GPU does
# not call. If TORCH_INDEX_URL is set, torch comes from there with all that it needs, in a version that
# pyproject.toml accepts.
set -eu
folder=$1
${PYTHON:-python3} -m venv "$folder"
install() {
  # Byte-compiling all of torch would take a minute, and the tests import a small part of it.
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}
install -r requirements/run.txt
if [ -z "${TORCH_INDEX_URL:-}" ]; then
  install --no-deps -r requirements/torch.txt
  "$folder/bin/python" tools/stand_in_cuda.py
else
  others=$(mktemp)
  trap 'rm -f "$others"' EXIT
  grep -v -e '^torch=' -e '^triton=' -e '^nvidia-' requirements/torch.txt >"$others"
  install --no-deps -r "$others"
  wanted=$("$folder/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(tomllib.load(file)["project"]["optional-dependencies"]["torch"][0])
')
  install --index-url "$TORCH_INDEX_URL" "$wanted"
fi
