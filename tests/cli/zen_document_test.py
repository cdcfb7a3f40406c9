"""docs/zen.md: its tables are what the bench prints that makes them, from real data."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_tables_are_those_that_the_bench_prints(program, real_data, tmp_path):
    made = subprocess.run(
        [sys.executable, ROOT / "bench/analysis/zen_cases.py", real_data, "--program", program, "--out", tmp_path / "z.json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ,
    )
    assert made.returncode == 0, made.stderr
    document = (ROOT / "docs/zen.md").read_text()
    tables = made.stdout.strip().split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert table in document, f"docs/zen.md does not have this table; put it there:\n{table}"
