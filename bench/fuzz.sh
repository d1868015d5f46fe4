#!/usr/bin/env bash
# Feeds every reader of foreign bytes with libFuzzer under ASan and UBSan, SECONDS each (default
# 60). Builds the asan preset first if it is not there. Stops at the first finding; the input that
# caused it is left in build/fuzz.
#
#   bench/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

if [ ! -d build/asan/tests/fuzz ]; then
  cmake --preset asan >/dev/null
  cmake --build --preset asan
fi
count=0
for fuzzer in build/asan/tests/fuzz/*_fuzz; do
  name=$(basename "$fuzzer")
  folder=build/fuzz/$name
  mkdir -p "$folder"
  echo "== $name for $seconds s"
  if ! "$fuzzer" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=65536 \
    -print_final_stats=0 -artifact_prefix="$folder/" "$folder" >"$folder.log" 2>&1; then
    tail -40 "$folder.log" >&2
    echo "$name: found something; the input is in $folder" >&2
    exit 1
  fi
  grep -E '^Done ' "$folder.log" | tail -1
  count=$((count + 1))
done
echo "$count fuzz targets, nothing found"
