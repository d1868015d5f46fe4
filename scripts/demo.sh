#!/usr/bin/env bash
# From a fresh clone to a trained network: installs what is missing, builds, trains LeNet on MNIST
# and leaves the result, also as ONNX, in runs/demo.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release
motley=build/release/apps/motley/motley

# An earlier demo that was interrupted goes on; one that is complete is trained anew.
if [ -f runs/demo/summary.json ] && ! grep -q '"stop": "interrupted"' runs/demo/summary.json; then
  rm -r runs/demo
fi
"$motley" train --out runs/demo --resume auto
"$motley" export runs/demo --onnx runs/demo/lenet.onnx
