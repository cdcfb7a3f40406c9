"""Tests bench/side_by_side.py with programs that replace the builds: it reports different bytes and slower schemes."""
# ctest: LABELS counted

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2])) / "bench/side_by_side.py"
KEYS = ["bytes_busiest", "bytes_sent_max", "bytes_received_max", "bytes_total", "bytes_index", "bytes_values", "messages"]

# `trace` writes nothing; `compare` prints a report.
BUILD = """#!{python}
import json, sys
if sys.argv[1] == "compare":
    schemes = [{{"name": name, "correct": True, "seconds_median": seconds, **dict.fromkeys({keys}, count)}}
               for name, seconds, count in {schemes}]
    print(json.dumps({{"provenance": {{"commit": "{commit}"}}, "schemes": schemes}}))
"""
OLD = [("balanced", 1.0, 100), ("owned", 2.0, 90), ("auto", 1.0, 7)]


def build(folder, commit, schemes):
    """Makes a folder with a program that reports these schemes."""
    program = folder / "bin/sparsesync"
    program.parent.mkdir(parents=True)
    program.write_text(BUILD.format(python=sys.executable, keys=KEYS, schemes=schemes, commit=commit), encoding="utf-8")
    program.chmod(0o755)


def compare(tmp_path, new, *options, old=OLD):
    """Runs the script. Returns its exit status, its output, and its JSON."""
    build(tmp_path / "old", "a", old)
    build(tmp_path / "new/build/release", "b", new)  # a checkout
    out = tmp_path / "out.json"
    command = [sys.executable, PROGRAM, tmp_path / "old", tmp_path / "new", "--only", "compare", "--pairs", "2", "--json", out, *options]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=120, check=False)
    assert out.exists(), done.stderr
    return done.returncode, done.stdout, json.loads(out.read_text(encoding="utf-8"))


def test_builds_that_are_alike(tmp_path):
    status, output, found = compare(tmp_path, OLD, "--worst-ratio", "1.01")
    assert status == 0, output
    assert found["schemes"] == {"balanced": 1, "owned": 1} and found["differences"] == [] and found["slower"] == []
    assert [each["commit"] for each in found["provenance"]] == ["a", "b"]
    assert "bytes and messages: all equal" in output


def test_auto_may_choose_another_scheme(tmp_path):
    status, _, found = compare(tmp_path, [*OLD[:2], ("auto", 9.0, 8)], "--worst-ratio", "1.01")
    assert status == 0 and "auto" not in found["schemes"]


@pytest.mark.parametrize(("ratio", "expected"), [("1.01", 1), ("1.5", 0)])
def test_a_slower_scheme(tmp_path, ratio, expected):
    status, output, found = compare(tmp_path, [("balanced", 1.2, 100), ("owned", 2.0, 90)], "--worst-ratio", ratio, old=OLD[:2])
    assert status == expected
    assert found["schemes"] == {"balanced": pytest.approx(1.2), "owned": 1}
    assert found["slower"] == (["balanced"] if expected else [])
    assert ("slower than" in output) == bool(expected)


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ([("balanced", 1.0, 101), ("owned", 2.0, 90)], "balanced: bytes_busiest 100 and 101"),
        ([("balanced", 1.0, 100)], "owned in one build alone"),
    ],
)
def test_bytes_that_differ(tmp_path, new, problem):
    status, output, found = compare(tmp_path, new, old=OLD[:2])
    assert status == 1
    assert any(problem in each for each in found["differences"]), found["differences"]
    assert problem in output


def test_a_folder_without_a_build_is_named(tmp_path):
    done = subprocess.run([sys.executable, PROGRAM, tmp_path, tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "bin/sparsesync is missing" in done.stderr
