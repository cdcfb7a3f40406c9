"""docs/architecture.md: its picture is of these sources, and the files that it and CONTRIBUTING.md name exist."""

import re
import subprocess
import sys

import pytest
from trees import ROOT, tree

SCRIPT = "draw-architecture"
DOCUMENTS = ["docs/architecture.md", "CONTRIBUTING.md"]
TOP = r"kernels|schemes|analysis|engine|tests|bench|scripts|docs|cmake"
NAMED = re.compile(rf"`((?:{TOP})/[\w./-]+)`")

FILES = {
    "kernels/a.h": "",
    "schemes/b.h": '#include "kernels/a.h"\n',
    "schemes/b.cpp": '#include "schemes/b.h"\n',
    "docs/architecture.md": "| step | where |\n|---|---|\n| 1 | `schemes/b` |\n| 2 | `kernels/a` |\n",
}


def draw(root, *options):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / SCRIPT), *options, str(root)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def missing(root, document):
    """Files that a document names and that are not there: a name without an ending stands for a header or a source, one
    with NAME for a file to be written."""
    text = (root / document).read_text(encoding="utf-8")
    return [
        name
        for name in NAMED.findall(text)
        if "NAME" not in name and not any((root / (name + ending)).exists() for ending in ("", ".h", ".cpp"))
    ]


def test_our_picture():
    assert draw(ROOT, "--check") == (0, "")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_our_documents_name_files_that_exist(document):
    assert missing(ROOT, document) == []
    assert len(NAMED.findall((ROOT / document).read_text(encoding="utf-8"))) > 20


def test_finds_a_name_of_nothing(tmp_path):
    tree(tmp_path, FILES | {"docs/architecture.md": "`kernels/a` `schemes/b.cpp` `schemes/gone` `kernels/a.cpp`"})
    assert missing(tmp_path, "docs/architecture.md") == ["schemes/gone", "kernels/a.cpp"]


def test_draws_rooms_and_steps(tmp_path):
    assert draw(tree(tmp_path, FILES))[0] == 0
    picture = (tmp_path / "docs/architecture.svg").read_text(encoding="utf-8")
    assert picture.count('class="step"') == 2
    assert "kernels 1" in picture
    assert draw(tmp_path, "--check")[0] == 0


@pytest.mark.parametrize("change", [{"kernels/new.h": ""}, {"schemes/b.h": ""}, {"docs/architecture.md": "| 1 | `kernels/a` |"}])
def test_finds_a_picture_of_other_sources(tmp_path, change):
    draw(tree(tmp_path, FILES))
    status, output = draw(tree(tmp_path, change), "--check")
    assert status == 1
    assert "run scripts/draw-architecture" in output


def test_refuses_a_step_in_no_file(tmp_path):
    status, output = draw(tree(tmp_path, FILES | {"docs/architecture.md": "| 1 | `kernels/gone` |"}))
    assert status == 1
    assert "kernels/gone" in output
