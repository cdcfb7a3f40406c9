#!/usr/bin/env bash
# smoke.sh SPARSESYNC ALLTOALLV: runs alltoallv briefly. Fails if its byte count differs from that of compare.
set -euo pipefail
mpirun=$(dirname "$0")/../../cmake/mpirun.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" trace synthetic --rows 5000 --width 16 --density 0.02 --zipf 1 --workers 3 --steps 1 --seed 1 \
  --out "$folder/trace" >/dev/null
"$mpirun" -np 3 "$2" "$folder/trace" 2 2 >"$folder/alltoallv.json"
"$1" compare "$folder/trace" --schemes balanced --repeat 1 --json - >"$folder/compare.json" 2>/dev/null
python3 - "$folder" <<'EOS'
import json, sys
ours = json.load(open(sys.argv[1] + "/alltoallv.json"))
(scheme,) = json.load(open(sys.argv[1] + "/compare.json"))["schemes"]
print(ours)
assert ours["bytes_sent_max"] == scheme["bytes_sent_max"], (ours, scheme)
assert len(ours["balanced_seconds"]) == len(ours["alltoallv_seconds"]) == len(ours["transport_seconds"]) == 4
EOS
