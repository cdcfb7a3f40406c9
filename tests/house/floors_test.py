"""scripts/check-floors: our tree keeps the order of the floors, and each way of breaking it is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))


def check(root):
    program = [sys.executable, str(ROOT / "scripts/check-floors"), str(root)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


GOOD = {
    "kernels/a.h": "#pragma once\n#include <vector>\n",
    "kernels/cpu/a.cpp": '#include "kernels/a.h"\n#include "../a.h"\n',
    "kernels/CMakeLists.txt": "add_library(sparsesync_kernels STATIC cpu/a.cpp)\n",
    "schemes/b.h": '#include "kernels/a.h"  // down\n',
    "schemes/CMakeLists.txt": "target_link_libraries(sparsesync_schemes PUBLIC sparsesync_kernels)\n",
    "analysis/c.h": '#include "schemes/b.h"\n',
    "engine/d.h": '#include "analysis/c.h"\n// #include "tests/helper.h"\n/* \n#include "tests/helper.h"\n*/\n',
    "engine/CMakeLists.txt": "add_library(cli cli.cpp)\ntarget_link_libraries(sparsesync PRIVATE sparsesync_engine)\n",
    "tests/helper.h": "",
    "tests/engine/d_test.cpp": '#include "engine/d.h"\n#include "tests/helper.h"\n',
    "CMakeLists.txt": "target_link_libraries(sparsesync_engine PUBLIC sparsesync_analysis)\n",
}


def test_our_tree():
    status, output = check(ROOT)
    assert status == 0, output


def test_a_good_tree(tmp_path):
    status, output = check(tree(tmp_path, GOOD))
    assert status == 0, output


@pytest.mark.parametrize(
    ("name", "text", "where", "what"),
    [
        ("kernels/a.h", '\n#include "schemes/b.h"\n', "kernels/a.h:2", "floor schemes/"),
        ("kernels/a.h", '#  include "../engine/d.h"\n', "kernels/a.h:1", "floor engine/"),
        ("kernels/a.h", '#include "kernels/../engine/d.h"\n', "kernels/a.h:1", "floor engine/"),
        ("kernels/a.h", "#include <analysis/c.h>\n", "kernels/a.h:1", "floor analysis/"),
        ("kernels/x.cu", '#include "engine/not_there.h"\n', "kernels/x.cu:1", "floor engine/"),
        ("schemes/b.h", '#include "analysis/c.h"\n', "schemes/b.h:1", "floor analysis/"),
        ("analysis/c.h", '#include "engine/d.h"\n', "analysis/c.h:1", "floor engine/"),
        ("engine/d.h", '#include "tests/helper.h"\n', "engine/d.h:1", "tests/"),
        ("engine/d.h", '#include "bench/helper.h"\n', "engine/d.h:1", "bench/"),
        ("bench/helper.h", '#include "tests/helper.h"\n', "bench/helper.h:1", "tests/"),
        ("engine/d.h", '#include "../../elsewhere.h"\n', "engine/d.h:1", "outside the project"),
    ],
)
def test_finds_a_wrong_include(tmp_path, name, text, where, what):
    status, output = check(tree(tmp_path, GOOD | {name: text}))
    assert status == 1
    assert any(line.startswith(where + ":") and what in line for line in output.splitlines()), output


@pytest.mark.parametrize(
    "files",
    [
        {"kernels/a.h": '#include "kernels/a.h"\n'},
        {"kernels/a.h": '#include "kernels/e.h"\n', "kernels/e.h": '#include "a.h"\n'},
        {
            "kernels/a.h": '#include "kernels/e.h"\n',
            "kernels/e.h": '#include "kernels/f.h"\n',
            "kernels/f.h": '#include "kernels/a.h"\n',
        },
    ],
    ids=["itself", "two", "three"],
)
def test_finds_a_cycle(tmp_path, files):
    status, output = check(tree(tmp_path, GOOD | files))
    assert status == 1
    assert "a cycle of includes: " in output
    assert output.count("cycle") == 1


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        (
            "kernels/CMakeLists.txt",
            "add_library(sparsesync_kernels)\ntarget_link_libraries(\n  sparsesync_kernels PUBLIC\n  sparsesync_schemes)\n",
            "kernels/CMakeLists.txt:4",
        ),
        ("schemes/CMakeLists.txt", "target_link_libraries(tool PRIVATE sparsesync::engine)", "schemes/CMakeLists.txt:1"),
        ("analysis/CMakeLists.txt", "target_link_libraries(tool $<X:A,cli>)", "analysis/CMakeLists.txt:1"),
        ("CMakeLists.txt", "target_link_libraries(sparsesync_kernels PUBLIC sparsesync_analysis)", "CMakeLists.txt:1"),
    ],
)
def test_finds_a_wrong_link(tmp_path, name, text, where):
    status, output = check(tree(tmp_path, GOOD | {name: text}))
    assert status == 1
    assert any(line.startswith(where + ":") and "links" in line for line in output.splitlines()), output


def test_an_empty_tree_is_not_a_success(tmp_path):
    status, output = check(tmp_path)
    assert status == 1
    assert "nothing was checked" in output
