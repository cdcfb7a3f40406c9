#!/usr/bin/env bash
# smoke.sh AUTO_TABLE SCALING: makes the smallest part of both tables, from small inputs. Fails if a scheme's
# result is wrong, or if the JSON does not hold what is expected.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$folder" <<'EOS'
import array, random, sys

def save(name, numbers, shape):
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': %s, }" % (shape,)
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(f"{sys.argv[1]}/{name}.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + array.array("i", numbers).tobytes())

draw = random.Random(1)
save("lm1b_tokens", [int(2000 ** draw.random()) for _ in range(20000)], (20000,))
save("criteo_fields", [draw.randrange(50) for _ in range(26 * 3000)], (3000, 26))
EOS
"$1" "$folder" --small --most-workers 2 --repeat 1 --out "$folder/auto.json"
"$1" "$folder" --small --clock real --most-workers 2 --repeat 1 --out "$folder/real.json"
"$2" "$folder" --small --most-workers 4 --width 16 --repeat 1 --out "$folder/scaling.json"
python3 - "$folder" <<'EOS'
import json, sys
for name, links in ("auto", 6), ("real", 3):
    table = json.load(open(f"{sys.argv[1]}/{name}.json"))
    cells = table["cells"]
    assert len(cells) == table["summary"]["cells"] and len(cells) % links == 0 and len(cells) > links, len(cells)
    assert {cell["trace"] for cell in cells} > {"lm1b", "criteo"}
    for cell in cells:
        seconds = {way["way"]: way["seconds"] for way in cell["ways"]}
        assert min(seconds.values()) == seconds[cell["best"]] > 0, cell
        assert abs(cell["over_best"] - seconds[cell["auto"]] / seconds[cell["best"]]) < 1e-9, cell
    assert 0 <= table["summary"]["otherwise_than_predicted"] <= len(cells)
schemes = {way["way"]: way["points"] for way in json.load(open(f"{sys.argv[1]}/scaling.json"))["schemes"]}
assert {"balanced", "owned", "dense_ring", "all_gather (hierarchy)"} <= set(schemes), schemes.keys()
for points in schemes.values():
    assert [point["workers"] for point in points] == [2, 4]
    assert all(point["over_lower_bound"] > 0.99 and point["seconds"] > 0 for point in points), points
EOS
