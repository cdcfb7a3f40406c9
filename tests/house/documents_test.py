"""Checks the documents: relative links and named files exist, and the scripts in the README's commands are executable."""
# ctest: LABELS quick

import os
import re

import pytest
from trees import ROOT, tree

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\s*\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
DOCUMENTS = ["docs/architecture.md", "docs/developers/recipes.md"]
NAMED = re.compile(r"`((?:include|kernels|schemes|analysis|engine|tests|bench|scripts|docs|cmake)/[\w./-]+)`")
FENCED = re.compile(r"^\s*```+(\w*)[^\n]*\n(.*?)^\s*```+$", re.MULTILINE | re.DOTALL)


def broken_links(root):
    faults = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for pair in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
            link = "".join(pair)
            target = re.split("[#?]", link)[0]
            start = root if target.startswith("/") else path.parent
            if not re.match(r"[a-z][a-z0-9+.-]*:|#", link, re.IGNORECASE) and not (start / target.lstrip("/")).exists():
                faults.append(f"{path.relative_to(root)}: {link} does not exist")
    return faults


def broken_commands(root):
    """Returns the scripts in the README's commands that are not executable, and the number of scripts."""
    blocks = FENCED.findall((root / "README.md").read_text(encoding="utf-8"))
    commands = "\n".join(text for language, text in blocks if language in ("sh", "bash", "console"))
    names = re.findall(r"(?:^|\s|\./)(scripts/[\w./-]+)", re.sub(r"#.*", "", commands))
    return [name for name in names if not ((root / name).is_file() and os.access(root / name, os.X_OK))], len(names)


def missing(root, document):
    """Returns the files that a document names and that do not exist. A name without an extension matches a header or a source. A name
    with NAME is a file that the reader will write.
    """
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


def test_finds_a_name_without_a_file(tmp_path):
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
        ("README.md", "x\n[a](docs/b.md)\n", "README.md: docs/b.md does not exist"),
        ("README.md", "```sh\nx\n```\n[a](docs/b.md)\n", "README.md: docs/b.md does not exist"),
        ("README.md", "![a](b.png#x)\n", "README.md: b.png#x does not exist"),
        ("README.md", "[a]: gone.md\n", "README.md: gone.md does not exist"),
        ("docs/a.md", "[a](README.md)\n", "docs/a.md: README.md does not exist"),
    ],
)
def test_finds_a_broken_link(tmp_path, name, text, fault):
    files = {"README.md": "", "docs/a.md": ""} | {name: text}
    assert broken_links(tree(tmp_path, files)) == [fault]


@pytest.mark.parametrize("command", ["scripts/gone --x", "cd x && ./scripts/gone  # scripts/y", "$ scripts/plain"])
def test_finds_a_broken_command(tmp_path, command):
    tree(tmp_path, {"README.md": f"```sh\n{command}\n```\n", "scripts/plain": ""})
    assert broken_commands(tmp_path) == ([re.findall(r"scripts/\w+", command)[0]], 1)
