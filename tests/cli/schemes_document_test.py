"""Tests docs/concepts/schemes.md: it has one section for each scheme of the program, with its row of the design space below the heading."""
# ctest: LABELS quick

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
PROGRAM = Path(os.environ.get("SPARSESYNC_PROGRAM", ROOT / "build/release/bin/sparsesync"))
DOCUMENT = ROOT / "docs/concepts/schemes.md"

DIMENSIONS = ("communication", "aggregation", "partition", "balance", "format")
OTHER_SECTIONS = {"At a glance", "Common properties", "The lower bound", "Automatic choice"}


def faults_of(text, schemes):
    """Returns the wrong statements of a document about schemes {name: line in italics}."""
    said, faults, fenced = {}, [], False
    lines = text.splitlines()
    for at, line in enumerate(lines):
        fenced ^= line.startswith("```")
        heading = re.fullmatch(r"##\s+(.*?)\s*", line)
        if fenced or not heading or heading.group(1) in OTHER_SECTIONS:
            continue
        name = heading.group(1)
        if name not in schemes:
            faults.append(f"'{name}' is no scheme")
        elif name in said:
            faults.append(f"{name} has two sections")
        else:
            said[name] = lines[at + 1] if at + 1 < len(lines) else ""
            if said[name] != schemes[name]:
                faults.append(f"{name}: '{said[name]}' should be '{schemes[name]}'")
    return faults + [f"{name} has no section" for name in schemes if name not in said]


@pytest.fixture(scope="module")
def schemes():
    command = [str(PROGRAM), "info", "--schemes", "--json", "-"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    rows = {scheme["name"]: f"*{' · '.join(scheme[key] for key in DIMENSIONS)}*" for scheme in told["schemes"]}
    assert {"balanced", "owned", "dense_ring"} <= set(rows)
    return rows


@pytest.fixture(scope="module")
def document():
    return DOCUMENT.read_text(encoding="utf-8")


def test_our_document(document, schemes):
    assert faults_of(document, schemes) == []


def test_finds_a_changed_row(document, schemes):
    row = schemes["owned"]
    assert document.count(row) == 1
    wrong = row.replace("one_shot", "incremental")
    assert faults_of(document.replace(row, wrong), schemes) == [f"owned: '{wrong}' should be '{row}'"]
    (fault,) = faults_of(document.replace(row, "\n" + row), schemes)
    assert fault.startswith("owned: ''")


def test_finds_a_missing_scheme(document, schemes):
    (fault,) = faults_of(document.replace("## owned\n", ""), schemes)
    assert fault == "owned has no section"
    assert "telepathy has no section" in faults_of(document, {**schemes, "telepathy": "*-*"})
    assert len(faults_of("", schemes)) == len(schemes)


def test_finds_a_section_of_no_scheme(document, schemes):
    assert faults_of(document + "\n## telepathy\n*-*\n", schemes) == ["'telepathy' is no scheme"]
    assert faults_of(document + f"\n## owned\n{schemes['owned']}\n", schemes) == ["owned has two sections"]
