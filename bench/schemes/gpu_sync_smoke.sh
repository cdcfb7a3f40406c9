#!/usr/bin/env bash
# gpu_sync_smoke.sh GPU_SYNC: makes a small table on the build's GPU, which may be emulated. Passes without a GPU
# if the program reports that in one line.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if ! "$1" --rows 20000 --width 64 --batch 200 --workers 4 --steps 2 --json "$folder/sync.json" 2>"$folder/errors"; then
  cat "$folder/errors" >&2
  [ "$(wc -l <"$folder/errors")" -eq 1 ] && grep -qE "no GPU|no CUDA" "$folder/errors" && exit 0
  exit 1
fi
python3 - "$folder/sync.json" <<'EOS'
import json, sys
told = json.load(open(sys.argv[1]))
assert told["correct"] and told["provenance"] and told["copy_bytes_per_second"] > 0, told
assert [phase["phase"] for phase in told["phases"]] == ["reduce", "gather"]
for phase in told["phases"]:
    assert 0 < phase["launches"] <= 25 and 0 < phase["host_synchronizations"] <= 2, phase
    assert phase["seconds_median"] > 0 and phase["busy_seconds"] > 0, phase
assert 0 < told["touched_rows_mean"] < told["united_rows"] <= 800, told
EOS
