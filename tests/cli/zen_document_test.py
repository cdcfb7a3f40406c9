"""Tests docs/zen.md: its tables match the output of the benchmark on real data."""
# ctest: LABELS counted SLOW ALL

from conftest import ROOT, tables_printed_by


def test_the_tables_are_those_that_the_bench_prints(program, real_data, tmp_path):
    tables = tables_printed_by("bench/analysis/zen_cases.py", program, real_data, "--out", tmp_path / "z.json")
    document = (ROOT / "docs/zen.md").read_text()
    assert len(tables) == 3
    for table in tables:
        assert table in document, f"docs/zen.md does not have this table; put it there:\n{table}"
