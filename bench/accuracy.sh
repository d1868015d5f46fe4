#!/usr/bin/env bash
# Trains real networks on real data to the accuracies that the README states, and prints one line
# per run. About half an hour on two cores.
#
#   bench/accuracy.sh [CIFAR10_JPEG_TAR]   default: ../shared/data/cifar10-jpeg.tar.gz
set -euo pipefail
cd "$(dirname "$0")/.."
cifar=${1:-../shared/data/cifar10-jpeg.tar.gz}
out=build/accuracy
if [ ! -f "$cifar" ]; then
  echo "accuracy: $cifar is not there: give the CIFAR-10 JPEG archive as argument" >&2
  exit 2
fi

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release >/dev/null
motley=build/release/apps/motley/motley
rm -rf "$out"
mkdir -p "$out"

# NAME, then the arguments of `motley train`.
run() {
  local name=$1
  shift
  "$motley" train "$@" --out "$out/$name" >"$out/$name.log" 2>&1
  echo "$name: $(grep '^trained ' "$out/$name.log")"
}

for seed in 1 2 3; do
  run "lenet-mnist-seed-$seed" --set train.seed="$seed"
done
run cifar-quick examples/cifar-quick.toml --set data.train="images:$cifar"
# The first minutes of a long job: it must neither stall nor diverge.
run resnet18-cifar examples/resnet18-cifar.toml --set data.train="images:$cifar" \
  --set train.max_seconds=600
