"""The documents: relative links and named files exist, and the scripts in the README's commands can be run."""
# ctest: LABELS quick

import os
import re
import shlex

import pytest
from trees import ROOT, tree

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\s*\[[^\]]+\]:\s*(\S+)")
DOCUMENTS = ["docs/architecture.md", "CONTRIBUTING.md"]
NAMED = re.compile(r"`((?:include|kernels|schemes|analysis|engine|tests|bench|scripts|docs|cmake)/[\w./-]+)`")
FENCE = re.compile(r"^\s*```+\s*(\w*)")


def lines_of(path):
    """(line number, line, language of the fence that it stands in or None)"""
    language = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence:
            language = (fence.group(1) or "text") if language is None else None
            continue
        yield number, line, language


def broken_links(root):
    faults = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for number, line, language in lines_of(path):
            if language is not None:
                continue
            for match in LINK.finditer(line):
                link = match.group(1) or match.group(2)
                if re.match(r"[a-z][a-z0-9+.-]*:|#", link, flags=re.IGNORECASE):
                    continue
                target = link.split("#")[0].split("?")[0]
                start = root if target.startswith("/") else path.parent
                if not (start / target.lstrip("/")).exists():
                    faults.append(f"{path.relative_to(root)}:{number}: {link} does not exist")
    return faults


def broken_commands(root):
    faults, seen = [], 0
    for number, line, language in lines_of(root / "README.md"):
        if language not in ("sh", "bash", "console"):
            continue
        command = line.strip().removeprefix("$ ")
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # a quotation over several lines
            words = command.split()
        for word in words:
            name = word.removeprefix("./")
            if not name.startswith("scripts/"):
                continue
            seen += 1
            if not (root / name).is_file():
                faults.append(f"README.md:{number}: {name} does not exist")
            elif not os.access(root / name, os.X_OK):
                faults.append(f"README.md:{number}: {name} is not executable")
    return faults, seen


def missing(root, document):
    """Files that a document names and that do not exist. A name without an ending stands for a header or a source, one with
    NAME for a file that the reader will write."""
    text = (root / document).read_text(encoding="utf-8")
    return [
        name
        for name in NAMED.findall(text)
        if "NAME" not in name and not any((root / (name + ending)).exists() for ending in ("", ".h", ".cpp"))
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_our_documents_name_files_that_exist(document):
    assert missing(ROOT, document) == []
    assert len(NAMED.findall((ROOT / document).read_text(encoding="utf-8"))) > 20


def test_finds_a_name_of_nothing(tmp_path):
    text = "`kernels/a` `schemes/b.cpp` `schemes/gone` `kernels/a.cpp`"
    tree(tmp_path, {"kernels/a.h": "", "schemes/b.cpp": "", "docs/architecture.md": text})
    assert missing(tmp_path, "docs/architecture.md") == ["schemes/gone", "kernels/a.cpp"]


def test_our_links():
    assert broken_links(ROOT) == []


def test_our_commands():
    faults, seen = broken_commands(ROOT)
    assert faults == []
    assert seen >= 2  # scripts/demo and scripts/test


def test_good_links(tmp_path):
    text = "[a](docs/a.md) [b](docs/a.md#part) [c](https://example.org/x) [d](#here)\n\n```sh\n[e](nowhere)\n```\n"
    assert broken_links(tree(tmp_path, {"README.md": text, "docs/a.md": "[up](../README.md)"})) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("README.md", "x\n[a](docs/b.md)\n", "README.md:2: docs/b.md does not exist"),
        ("README.md", "![a](b.png#x)\n", "README.md:1: b.png#x does not exist"),
        ("README.md", "[a]: gone.md\n", "README.md:1: gone.md does not exist"),
        ("docs/a.md", "[a](README.md)\n", "docs/a.md:1: README.md does not exist"),
    ],
)
def test_finds_a_broken_link(tmp_path, name, text, fault):
    files = {"README.md": "", "docs/a.md": ""} | {name: text}
    assert broken_links(tree(tmp_path, files)) == [fault]


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("scripts/gone --x", "README.md:2: scripts/gone does not exist"),
        ("cd x && ./scripts/gone  # y", "README.md:2: scripts/gone does not exist"),
        ("$ scripts/plain", "README.md:2: scripts/plain is not executable"),
    ],
)
def test_finds_a_broken_command(tmp_path, command, fault):
    tree(tmp_path, {"README.md": f"```sh\n{command}\n```\n", "scripts/plain": ""})
    assert broken_commands(tmp_path) == ([fault], 1)
