#!/usr/bin/env bash
# smoke.sh BENCH: runs every row of a benchmark briefly, with small sizes only. Fails if the benchmark fails, if a
# row reports a wrong result, or if there are no rows.
set -euo pipefail
output=$(SPARSESYNC_BENCH_SMALL=1 "$1" --benchmark_min_time=0.001 --benchmark_format=json)
python3 -c '
import json, sys
rows = json.loads(sys.stdin.read())["benchmarks"]
wrong = [row["name"] + ": " + row["error_message"] for row in rows if row.get("error_occurred")]
print(len(rows), "rows", *wrong, sep="\n")
sys.exit(bool(wrong) or not rows)
' <<<"$output"
