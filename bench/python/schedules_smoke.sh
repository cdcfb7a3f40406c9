#!/usr/bin/env bash
# schedules_smoke.sh SOURCE_DIR PACKAGE: runs bench/python/schedules.py with small layers. Fails if it fails, or if
# its JSON lacks a row or a figure. Exit status 77 means skipped, with a reason on standard output.
set -euo pipefail
python=$1/.venv/bin/python
if [[ ! -x $python ]]; then
  echo "SKIPPED: there is no .venv; run scripts/setup"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" "$1/bench/python/schedules.py" --package "$2" --workers 2 --layers 3 --steps 3 --rate 1gbit --compute 30ms \
  --schedules sequential lazy dear --cases dense "rows, announced" --out "$folder/schedules.json"
python3 - "$folder/schedules.json" <<'EOS'
import json, sys

rows = json.load(open(sys.argv[1]))["rows"]
assert [(row["case"], row["schedule"]) for row in rows] == [
    (case, schedule) for case in ("dense", "rows, announced") for schedule in ("sequential", "lazy", "dear")
]
for row in rows:
    # No bound on their ratio: other tests on the same processors make passes late, and links slow while they are measured.
    assert min(row[key] for key in ("simulated_s", "run_s", "reduce_s", "gather_s")) > 0, row
    assert row["run_s"] >= 0.03, "a step takes its passes at least"
    assert row["gather_hidden"] >= 0 and row["closed_form_of_dear"] > 0, row
    assert (row["announce_s"] > 0) == ("announced" in row["case"]), row
EOS
