#!/bin/sh
# Install SGLang into the environment that tools/torch_environment.sh has made: tools/sglang_environment.sh FOLDER
#
# Byte-compiled, unlike torch: an engine consists of three processes, and where nothing may be written each of them
# would compile what it imports. torchvision fits one version of torch, so it comes from where torch came from.
set -eu
folder=$1
install() {
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
if [ -z "${TORCH_INDEX_URL:-}" ]; then
  install --no-deps -r requirements/sglang.txt
else
  others=$(mktemp)
  trap 'rm -f "$others"' EXIT
  grep -v '^torchvision=' requirements/sglang.txt >"$others"
  install --no-deps -r "$others"
  torch=$("$folder/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')
  install --index-url "$TORCH_INDEX_URL" torchvision "torch==$torch"
fi
