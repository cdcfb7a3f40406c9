#!/usr/bin/env bash
# smoke.sh SPARSESYNC: makes the smallest part of figures.py's tables, from a small input. Fails if the JSON does
# not hold what is expected.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$folder" <<'EOS'
import array, random, sys

draw = random.Random(1)
header = "{'descr': '<i4', 'fortran_order': False, 'shape': (20000,), }"
header += " " * (-(len(header) + 11) % 64) + "\n"
tokens = array.array("i", [int(2000 ** draw.random()) for _ in range(20000)])
with open(f"{sys.argv[1]}/lm1b_tokens.npy", "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + tokens.tobytes())
EOS
"$(dirname "$0")/figures.py" "$folder" --program "$1" --small --repeat 1 --out "$folder/figures.json"
python3 - "$folder/figures.json" <<'EOS'
import json, sys
found = json.load(open(sys.argv[1]))
assert all(found["speed"][name]["seconds"] > 0 and found["speed"][name]["memory_bytes"] > 1e6 for name in ("profile", "plan"))
(link,) = found["known_links"]
assert link["rate_ratio"] > 0 and link["latency_ratio"] >= 0 and link["rate_ratio_loaded"] > 0, link
(pair,) = found["twice_over_mpi"]
assert [[low <= high for low, high in ci] for ci in pair["ci"]] == [[True, True]] * 2, pair
growth = {each["workers"]: each for each in found["growth"]}
assert list(growth) == [8, 16, 32, 64]
assert all(1 <= each["densification"] <= n and 1 <= each["told_from_8"] <= n for n, each in growth.items()), growth
EOS
