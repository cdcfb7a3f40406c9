"""Tests docs/developers/schedules.md, whose tables its benchmarks print, and the commands and the model of docs/tools/simulate.md."""

import json
import re
import shlex
import subprocess

import pytest
from conftest import ROOT, tables_printed_by

DOCUMENT = ROOT / "docs/developers/schedules.md"
SIMULATE = ROOT / "docs/tools/simulate.md"
RESULTS = ROOT / "bench/results"


def rows_of(name):
    """Returns a table of the engine's runs in the document's form."""
    for each in json.loads((RESULTS / name).read_text())["rows"]:
        yield (
            f"| {each['case']} | {each['schedule']} | {1e3 * each['simulated_s']:.0f} | {1e3 * each['run_s']:.0f} | "
            f"{each['run_over_simulated']:.3f} | {each['gain_over_wfbp']:.3f} | {each['simulated_gain_over_wfbp']:.3f} |"
        )


def missing(tables, document):
    return [table for table in tables if table not in document]


def test_the_tables_are_those_that_the_bench_prints(program, tmp_path):
    tables = tables_printed_by("bench/analysis/schedule_claims.py", program, "--out", tmp_path / "s.json")
    assert len(tables) == 7
    document = DOCUMENT.read_text()
    assert missing(tables, document) == [], "put these into docs/developers/schedules.md"
    kept = json.loads((RESULTS / "schedules.json").read_text())
    assert kept["tables"] == json.loads((tmp_path / "s.json").read_text())["tables"], "run bench/analysis/schedule_claims.py --out"
    assert f"above takes {kept['grid_seconds']:.1f} s" in document
    assert f"65,536 workers {kept['all_models_65536_workers_seconds']:.1f} s" in document
    assert missing([tables[0].replace("1", "2", 1)], document), "a different table is found"


@pytest.mark.parametrize("name", ["schedules_run.json", "schedules_lstm.json"])
def test_runs_are_those_of_the_results(name):
    rows = list(rows_of(name))
    assert len(rows) >= 16
    assert missing(rows, DOCUMENT.read_text()) == []


def test_figures_to_reach_are_reached():
    run = {(each["case"], each["schedule"]): each for each in json.loads((RESULTS / "schedules_run.json").read_text())["rows"]}
    assert len(run) == 3 * 8
    assert all(abs(each["run_over_simulated"] - 1) <= 0.1 for each in run.values())
    for case in ("dense", "rows", "rows, announced"):
        dear = run[case, "dear"]
        # The closed form leaves out the time that a step in PyTorch takes beyond its expected time. 79% to 100% of the gain is reached.
        assert dear["gain_over_wfbp"] - 1 >= 0.75 * (dear["closed_form_of_dear"] - 1), case
        assert dear["gather_hidden"] >= 0.8, case
    for each in json.loads((RESULTS / "schedules_lstm.json").read_text())["rows"]:
        assert each["gain_over_wfbp"] == pytest.approx(each["simulated_gain_over_wfbp"], rel=0.1)
    kept = json.loads((RESULTS / "schedules.json").read_text())
    assert kept["grid_seconds"] <= 10 and kept["all_models_65536_workers_seconds"] <= 5


def test_the_commands_and_the_model_work(program, tmp_path):
    text = SIMULATE.read_text()
    (model,) = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "m.json").write_text(model)
    (tmp_path / "build/release").mkdir(parents=True)
    (tmp_path / "build/release/models").symlink_to(program.resolve().parents[1] / "models")
    (commands,) = re.findall(r"^## Options\n+```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [*commands.strip().splitlines(), "build/release/bin/sparsesync simulate m.json --rate 1gbit"]
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "build/release/bin/sparsesync"
        done = subprocess.run([program, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, (line, done.stderr)
    assert json.loads((tmp_path / "steps.json").read_text())["traceEvents"]
