#!/usr/bin/env bash
# Compiles as device code the headers that CPU and GPU share; for ctest:
#   shared-headers.sh SOURCE_DIR WORK_DIR accepts      tests/kernels/shared_headers.cu must compile
#   shared-headers.sh SOURCE_DIR WORK_DIR refuses      wrong sources must fail, each for the expected reason
# Exit status 77: no nvcc, skipped.
set -euo pipefail
source_dir=$1 work_dir=$2 what=$3

nvcc=$(command -v nvcc || true)
if [[ -z $nvcc && -x /usr/local/cuda/bin/nvcc ]]; then nvcc=/usr/local/cuda/bin/nvcc; fi
if [[ -z $nvcc ]]; then
  echo "SKIPPED: no nvcc on PATH or in /usr/local/cuda/bin"
  exit 77
fi
mkdir -p "$work_dir"

compile() { # SOURCE ARCHITECTURE...
  local source=$1 architecture targets=()
  shift
  for architecture in "$@"; do
    targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
  done
  "$nvcc" "${targets[@]}" -std=c++20 -O2 --fmad=false --Werror=all-warnings \
    -Xcompiler=-Wall,-Wextra,-Wconversion,-Werror -I "$source_dir" -I "$source_dir/include" -I "$work_dir" -c "$source" \
    -o "$work_dir/$(basename "$source" .cu).o"
}

refuses() { # SOURCE REASON: must not compile, and nvcc's output must match REASON, a regular expression
  local output
  if output=$(compile "$1" 90 2>&1); then
    echo "FAILED: $1 compiled and should not"
    return 1
  fi
  if ! grep -qE -- "$2" <<<"$output"; then
    printf 'FAILED: %s was refused, but not for "%s":\n%s\n' "$1" "$2" "$output"
    return 1
  fi
  echo "$(basename "$1") is refused, as it must be"
}

case $what in
  accepts)
    compile "$source_dir/tests/kernels/shared_headers.cu" 80 90 100
    echo "compiled for sm_80, sm_90, sm_100 by $("$nvcc" --version | grep release)"
    ;;
  refuses)
    cat >"$work_dir/host_only.cu" <<'CUDA'
#include <cstdint>
inline std::uint64_t host_only(std::uint64_t x) { return x + 1; }
__global__ void use(std::uint64_t* out) { *out = host_only(*out); }
CUDA
    cat >"$work_dir/converts.cu" <<'CUDA'
#include <cstdint>
inline std::int32_t narrower(std::int64_t x) { return x; }
__global__ void use(std::int64_t* out) { *out += 1; }
std::int32_t call(std::int64_t x) { return narrower(x); }
CUDA
    refuses "$work_dir/host_only.cu" '__host__ function.*host_only.*not allowed'
    refuses "$work_dir/converts.cu" 'Werror=conversion'
    ;;
  *)
    echo "unknown: $what" >&2
    exit 2
    ;;
esac
