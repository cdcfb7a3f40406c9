"""Checks docs/kernels.md: it has one row for each operation that kernels/*.h declares, and no others."""
# ctest: LABELS quick

import os
import re
from pathlib import Path

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
ROW = re.compile(r"^\| `(\w+)` \|", re.M)
DECLARED = re.compile(r"^SPARSESYNC_OPERATION\((\w+)\);", re.M)


def faults_of(root):
    text = (root / "docs/kernels.md").read_text(encoding="utf-8")
    section = re.search(r"^## Operations$(.*?)(?=^## |\Z)", text, re.M | re.S)
    rows = ROW.findall(section.group(1)) if section else []
    headers = sorted((root / "kernels").rglob("*.h"))
    declared = [name for header in headers for name in DECLARED.findall(header.read_text(encoding="utf-8"))]
    faults = [f"{name} has no row" for name in declared if name not in rows]
    faults += [f"'{name}' is no operation" for name in rows if name not in declared]
    return faults + [f"{name} has two rows" for name in sorted(set(rows)) if rows.count(name) > 1], len(declared)


def test_our_document():
    faults, declared = faults_of(ROOT)
    assert faults == []
    assert declared > 40


def made(root, header, document):
    (root / "kernels/rows").mkdir(parents=True)
    (root / "kernels/rows/a.h").write_text(header, encoding="utf-8")
    (root / "docs").mkdir()
    (root / "docs/kernels.md").write_text(document, encoding="utf-8")
    return root


def test_finds_what_differs(tmp_path):
    header = "SPARSESYNC_OPERATION(compact);\nSPARSESYNC_OPERATION(copy);\n"
    document = "| `other` |\n\n## Operations\n\n| `compact` | 8 |\n| `compact` | 8 |\n| `gone` | 8 |\n\n## Else\n\n| `copy` | 8 |\n"
    assert faults_of(made(tmp_path, header, document)) == (["copy has no row", "'gone' is no operation", "compact has two rows"], 2)


def test_a_document_without_the_table_has_no_row(tmp_path):
    assert faults_of(made(tmp_path, "SPARSESYNC_OPERATION(copy);\n", "# Kernels\n")) == (["copy has no row"], 1)
