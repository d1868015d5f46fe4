#!/usr/bin/env bash
# Feeds every reader of foreign bytes with libFuzzer under ASan and UBSan, SECONDS each (default
# 60), starting from the seeds of tests/fuzz. What the cluster exchanges has a program for each kind
# of message: calls, orders (member_…) and reports (coordinator_…). With --tsan only these, under
# ThreadSanitizer. One at a time on each processor, JOBS says otherwise. Stops at the first finding;
# the input that caused it is left in build/fuzz.
#
#   bench/fuzz.sh [--tsan] [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=asan targets='*_fuzz' built=fuzzers memory=2048
if [ "${1:-}" = --tsan ]; then
  preset=tsan-fuzz targets='cluster*_fuzz coordinator*_fuzz member*_fuzz' memory=4096
  built='cluster_fuzz coordinator_fuzz member_fuzz'
  shift
fi
seconds=${1:-60}

scripts/setup.sh --tests
cmake --preset "$preset" >/dev/null
# shellcheck disable=SC2086  # several words
cmake --build --preset "$preset" --target $built
python3 tests/fuzz/make_seeds.py build/fuzz/seeds
export preset seconds memory
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 suppressions=$PWD/tests/tsan.supp"

fuzz() {
  local name=$1 out=build/fuzz/$preset leaks=1
  # What the threads of a server have in hand at some moment is no leak (tests/fuzz/CMakeLists.txt).
  case "$name" in coordinator_* | member_*) leaks=0 ;; esac
  mkdir -p "$out/corpus/$name" "build/fuzz/seeds/$name"
  # ThreadSanitizer may hang in its report, and then listens to nothing else.
  if ! timeout -s KILL $((seconds + 120)) "build/$preset/tests/fuzz/$name" \
    -max_total_time="$seconds" -rss_limit_mb="$memory" -timeout=20 -detect_leaks=$leaks \
    -artifact_prefix="$out/$name-" "$out/corpus/$name" "build/fuzz/seeds/$name" \
    >"$out/$name.log" 2>&1; then
    tail -60 "$out/$name.log" >&2
    echo "$name: found something; the input is in $out" >&2
    return 255  # so that no other begins
  fi
  echo "$name: $(grep -E '^Done ' "$out/$name.log" | tail -1)"
}
export -f fuzz

# shellcheck disable=SC2086  # the patterns are to be expanded
names=$(cd "build/$preset/tests/fuzz" && ls -1d $targets)
xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'fuzz {}' <<<"$names"
echo "$(wc -w <<<"$names") fuzz targets under $preset, $seconds s each, nothing found"
