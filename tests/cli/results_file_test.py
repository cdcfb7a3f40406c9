"""Tests bench/results_file.py, and the form of the files in bench/results."""

import json
import subprocess
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from results_file import results_text, write_results  # noqa: E402

RESULTS = sorted((ROOT / "bench/results").glob("*.json"))
WIDE = "x" * 150


def test_a_row_of_a_table_is_a_line():
    rows = [{"name": WIDE, "seconds": [1.5, 2.5], "links": {"bytes": 7}}, {"name": "b", "phases": [{"name": "reduce", "seconds": [1]}]}]
    table = {"a": {"label": WIDE, "seconds": [1, 2]}, "b": {"label": WIDE, "link": {"bytes": 7}}}
    lines = results_text({"workers": 8, "rows": rows, "table": table, "texts": [WIDE, WIDE], "seconds": [0.125] * 100}).splitlines()
    assert lines == [
        "{",
        ' "workers": 8,',
        ' "rows": [',
        f"  {json.dumps(rows[0])},",
        f"  {json.dumps(rows[1])}",
        " ],",
        ' "table": {',
        f'  "a": {json.dumps(table["a"])},',
        f'  "b": {json.dumps(table["b"])}',
        " },",
        ' "texts": [',
        f'  "{WIDE}",',
        f'  "{WIDE}"',
        " ],",
        f' "seconds": {[0.125] * 100}',
        "}",
    ]


def test_nothing_is_lost(tmp_path):
    deep = {"a": {"b": {"c": {"d": {WIDE: [[1, [2]], {}, [], None, True]}, "e": WIDE}}}, "1": 1e-7, "ü\n": []}
    write_results(tmp_path / "deep.json", deep)
    assert json.loads((tmp_path / "deep.json").read_text(encoding="utf-8")) == deep
    write_results(tmp_path / "keys.json", {"seconds": {0: {1: WIDE, 2: [[1], [WIDE]]}}})
    assert json.loads((tmp_path / "keys.json").read_text(encoding="utf-8")) == {"seconds": {"0": {"1": WIDE, "2": [[1], [WIDE]]}}}
    indented = json.loads(RESULTS[0].read_text(encoding="utf-8"))
    (tmp_path / "indented.json").write_text(json.dumps(indented, indent=2), encoding="utf-8")
    program = [sys.executable, ROOT / "bench/results_file.py"]
    assert subprocess.run([*program, tmp_path / "indented.json"], check=False).returncode == 0
    assert (tmp_path / "indented.json").read_text(encoding="utf-8") == results_text(indented) + "\n"
    assert subprocess.run(program, check=False, stderr=subprocess.PIPE).returncode == 2


def test_results_are_short():
    lines = {path.name: path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "bench/results").iterdir()}
    assert len(RESULTS) > 20 and sum(lines.values()) < 3000, lines
