#!/usr/bin/env bash
# Feeds every reader of foreign bytes with libFuzzer under ASan and UBSan, SECONDS each (default
# 60; the protocol that long for each of its kinds of message), starting from the seeds of
# tests/fuzz. Stops at the first finding; the input that caused it is left in build/fuzz.
#
#   bench/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

scripts/setup.sh --tests
cmake --preset asan >/dev/null
cmake --build --preset asan
python3 tests/fuzz/make_seeds.py build/fuzz/seeds
count=0
for fuzzer in build/asan/tests/fuzz/*_fuzz; do
  name=$(basename "$fuzzer")
  corpus=build/fuzz/corpus/$name
  log=build/fuzz/$name.log
  mkdir -p "$corpus" "build/fuzz/seeds/$name"
  kinds=1
  [ "$name" = cluster_fuzz ] && kinds=14
  if ! "$fuzzer" -max_total_time=$((seconds * kinds)) -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="build/fuzz/$name-" "$corpus" "build/fuzz/seeds/$name" >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "$name: found something; the input is in build/fuzz" >&2
    exit 1
  fi
  echo "$name: $(grep -E '^Done ' "$log" | tail -1)"
  count=$((count + 1))
done
echo "$count fuzz targets, $seconds s each, nothing found"
