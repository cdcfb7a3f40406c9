"""scripts/check-floors: our tree keeps the order of the floors, and each way of breaking it is found."""

import pytest
from trees import ROOT, check, expect_good, tree

SCRIPT = "check-floors"

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
    expect_good(SCRIPT, ROOT)


def test_a_good_tree(tmp_path):
    expect_good(SCRIPT, tree(tmp_path, GOOD))


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
    status, output = check(SCRIPT, tree(tmp_path, GOOD | {name: text}))
    assert status == 1
    assert any(line.startswith(where + ":") and what in line for line in output.splitlines()), output


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
    status, output = check(SCRIPT, tree(tmp_path, GOOD | {name: text}))
    assert status == 1
    assert any(line.startswith(where + ":") and "links" in line for line in output.splitlines()), output


def test_an_empty_tree_is_not_a_success(tmp_path):
    status, output = check(SCRIPT, tmp_path)
    assert status == 1
    assert "nothing was checked" in output
