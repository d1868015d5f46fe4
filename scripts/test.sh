#!/usr/bin/env bash
# Everything that must hold before a change is merged: set-up, the arrows between the folders, the
# development build with all tests, those of the kernels once more as on an old processor, and the
# sanitizer builds with the tests labelled `sanitize`.
#
#   scripts/test.sh          all of it
#   scripts/test.sh --quick  without the sanitizer builds
#
# Tests labelled `data` need real files, those labelled `root` need root; they are skipped where
# these are missing, except when CI=true.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  *)
    echo "usage: scripts/test.sh [--quick]" >&2
    exit 2
    ;;
esac

scripts/setup.sh --tests
python3 scripts/check_arrows.py

build() {
  echo "== building $1"
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1"
}

# One more than there are processors: many tests wait for a heartbeat or a deadline.
run_tests() { ctest -j $(($(nproc) + 1)) --preset "$@"; }

build dev
run_tests dev
echo "== the kernels with the oldest instructions"
# Without the two large nets: every kernel is compared with the reference here, and PyTorch would be
# made slow as well.
ONEDNN_MAX_CPU_ISA=SSE41 run_tests dev -L kernels \
  -E 'GoldenTest.*(Resnet18|MobilenetV2)'
if $quick; then exit 0; fi

build asan
run_tests asan  # the fuzz targets among them, a few seconds each
build tsan
run_tests tsan
