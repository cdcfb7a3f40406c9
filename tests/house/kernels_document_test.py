"""docs/kernels.md: a row for each operation that kernels/*.h declares, and for no other."""

import re

from trees import ROOT, tree

ROW = re.compile(r"^\| `(\w+)` \|", re.M)
DECLARED = re.compile(r"^SPARSESYNC_OPERATION\((\w+)\);", re.M)


def faults_of(root):
    text = (root / "docs/kernels.md").read_text(encoding="utf-8")
    section = re.search(r"^## Operations$(.*?)(?=^## |\Z)", text, re.M | re.S)
    rows = ROW.findall(section.group(1)) if section else []
    headers = sorted((root / "kernels").glob("*.h"))
    declared = [name for header in headers for name in DECLARED.findall(header.read_text(encoding="utf-8"))]
    faults = [f"{name} has no row" for name in declared if name not in rows]
    faults += [f"'{name}' is no operation" for name in rows if name not in declared]
    return faults + [f"{name} has two rows" for name in sorted(set(rows)) if rows.count(name) > 1], len(declared)


def test_our_document():
    faults, declared = faults_of(ROOT)
    assert faults == []
    assert declared > 40


def test_finds_what_differs(tmp_path):
    header = "SPARSESYNC_OPERATION(compact);\nSPARSESYNC_OPERATION(copy);\n"
    document = "| `other` |\n\n## Operations\n\n| `compact` | 8 |\n| `compact` | 8 |\n| `gone` | 8 |\n\n## Else\n\n| `copy` | 8 |\n"
    made = tree(tmp_path, {"kernels/a.h": header, "docs/kernels.md": document})
    assert faults_of(made) == (["copy has no row", "'gone' is no operation", "compact has two rows"], 2)


def test_a_document_without_the_table_has_no_row(tmp_path):
    made = tree(tmp_path, {"kernels/a.h": "SPARSESYNC_OPERATION(copy);\n", "docs/kernels.md": "# Kernels\n"})
    assert faults_of(made) == (["copy has no row"], 1)
