# Functions that the other scripts source: timed steps, a summary, and a list of skipped parts.
# shellcheck shell=bash

# --help prints the comment at the head of the script.
if [[ ${1:-} =~ ^(-h|--help)$ ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
  exit 0
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Exit status of a step that could not run here, as for ctest's SKIP_RETURN_CODE.
# shellcheck disable=SC2034  # used by the scripts that source this
SKIPPED=77

SUMMARY=()
FAILED=()
SKIPS=()
STARTED=$EPOCHREALTIME

elapsed() { # SINCE: seconds with one decimal
  local now=$EPOCHREALTIME
  local micros=$((${now/[.,]/} - ${1/[.,]/}))
  printf '%d.%d' $((micros / 1000000)) $((micros / 100000 % 10))
}

# step NAME COMMAND...: runs COMMAND and prints its name and duration. A failure ends the script; with
# KEEP_GOING=1 it is reported at the end. Exit status 77 means skipped. Do not call it in a condition: bash would then
# ignore failures inside COMMAND.
step() {
  local name=$1 began=$EPOCHREALTIME status
  shift
  printf '\n==> %s: %s\n' "$name" "$*"
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  local seconds
  seconds=$(elapsed "$began")
  case $status in
    0)
      SUMMARY+=("ok      ${seconds} $name")
      printf -- '--- %s: done in %s s\n' "$name" "$seconds"
      ;;
    "$SKIPPED")
      SUMMARY+=("skipped ${seconds} $name")
      SKIPS+=("$name")
      printf -- '--- %s: SKIPPED\n' "$name"
      ;;
    *)
      SUMMARY+=("FAILED  ${seconds} $name")
      FAILED+=("$name")
      printf -- '*** %s: FAILED with status %d after %s s\n' "$name" "$status" "$seconds" >&2
      [[ ${KEEP_GOING:-0} == 1 ]] || exit 1
      ;;
  esac
}

# skip NAME REASON: reports a skipped part, now and in the summary.
skip() {
  SUMMARY+=("skipped 0.0 $1")
  SKIPS+=("$1 ($2)")
  printf '\n==> %s: SKIPPED, %s\n' "$1" "$2"
}

# Prints all parts with their times, then the names of skipped parts.
summary() {
  local line state seconds name
  printf '\n%-9s %9s  %s\n' state seconds part
  for line in "${SUMMARY[@]}"; do
    read -r state seconds name <<<"$line"
    printf '%-9s %9s  %s\n' "$state" "$seconds" "$name"
  done
  printf '%-9s %9s  %s\n' '' "$(elapsed "$STARTED")" 'all parts'
  if ((${#SKIPS[@]})); then
    printf 'skipped:\n'
    printf '  %s\n' "${SKIPS[@]}"
  fi
  if ((${#FAILED[@]})); then
    printf 'FAILED: %s\n' "$(printf '%s; ' "${FAILED[@]}" | sed 's/; $//')" >&2
  fi
}

# configure_and_build PRESET [TARGET...]
configure_and_build() {
  local preset=$1
  shift
  cmake --preset "$preset" >"$(log_of "configure-$preset")" 2>&1 || {
    cat "$(log_of "configure-$preset")" >&2
    return 1
  }
  cmake --build --preset "$preset" ${1:+--target "$@"}
}

# prepare_build WHAT PRESET [TARGET...]: quietly installs missing packages and builds targets in build/PRESET.
# WHAT names them in an error message.
prepare_build() {
  local what=$1 preset=$2 log
  log=$(log_of "prepare-$preset")
  if ! { scripts/setup --for test && configure_and_build "$preset" "${@:3}"; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "$what cannot be built"
  fi
}

# prepare_python_build: builds the Python module in build/dev.
prepare_python_build() {
  prepare_build "the Python module" dev sparsesync_package
}

# log_of NAME: prints the path of a log in build/logs, for output that would be noise on a terminal.
log_of() {
  mkdir -p "$ROOT/build/logs"
  printf '%s/build/logs/%s.log' "$ROOT" "$1"
}

# find_nvcc: prints its path, or fails.
find_nvcc() {
  command -v nvcc || { [[ -x /usr/local/cuda/bin/nvcc ]] && printf '/usr/local/cuda/bin/nvcc\n'; }
}

# The demo's trace: words and punctuation of the sources of Python's standard library. Every Debian with Python has these
# hundreds of files of human text, and they are equal on machines of one release.
DEMO_TRACE=build/demo/stdlib.trace
DEMO_LINK=(--rate 200mbit --latency 50us)
DEMO_REPORT=build/demo/report.html
SPARSESYNC=build/release/bin/sparsesync

make_demo_trace() {
  local sources
  sources=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])') ||
    die "/usr/bin/python3 does not run; scripts/setup installs it"
  [[ -f $sources/ast.py ]] ||
    die "no sources of Python's standard library in '$sources'; install the package libpython3-stdlib"
  mkdir -p "$(dirname "$DEMO_TRACE")"
  local words=(from-text "$sources" --width 32 --workers 8 --batch 2560 --vocabulary 100000)
  "$SPARSESYNC" trace "${words[@]}" --steps 1 --out "$DEMO_TRACE" --force
  # profile and plan need more steps than compare.
  "$SPARSESYNC" trace "${words[@]}" --steps 32 --out "$DEMO_TRACE.steps" --force >/dev/null
}

compare_demo_trace() {
  "$SPARSESYNC" compare "$DEMO_TRACE" "${DEMO_LINK[@]}" --transport local --json build/demo/compare.json
}

# Run after compare_demo_trace: profile, plan, and a page with all three results.
report_on_demo_trace() {
  "$SPARSESYNC" profile "$DEMO_TRACE.steps" --json build/demo/profile.json
  "$SPARSESYNC" plan "$DEMO_TRACE.steps" --workers 2..1024 "${DEMO_LINK[@]}" --json build/demo/plan.json
  .venv/bin/python -m sparsesync.report build/demo/{profile,compare,plan}.json -o "$DEMO_REPORT" \
    --title "Gradients of Python's standard library"
}

# Compares in four processes, on a small trace.
compare_over_mpi() {
  local trace=build/demo/mpi-trace
  "$SPARSESYNC" trace synthetic --rows 100000 --width 32 --density 0.01 --zipf 1.1 --workers 4 --steps 1 \
    --seed 1 --out "$trace" --force
  cmake/mpirun.sh -np 4 "$SPARSESYNC" compare "$trace" --transport mpi
}
