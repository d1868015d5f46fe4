#!/usr/bin/env bash
# install_test.sh BUILD_FOLDER SOURCE_FOLDER: installs into a folder of its own, builds a consumer
# against the package and runs it.
set -euo pipefail
build=$1
source=$2
work=$build/install_test
rm -rf "$work"
cmake --install "$build" --prefix "$work/prefix" >/dev/null
"$work/prefix/bin/motley" --version
cmake -S "$source/tests/install" -B "$work/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/consumer"
