"""scripts/lint: what is good is analyzed once, and each kind of fault is found. On a tree of its own, with our script."""

import os
import shutil
import subprocess

import pytest
from trees import ROOT, tree

CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small CXX)
add_custom_target(sparsesync_build_header)
add_library(small OBJECT kernels/a.cpp kernels/b.cpp)
target_include_directories(small PRIVATE ${CMAKE_SOURCE_DIR})
"""
GOOD = {
    ".clang-tidy": "Checks: '-*,modernize-use-using'\nWarningsAsErrors: '*'\n",
    "CMakeLists.txt": CMAKE,
    "kernels/one.h": "#pragma once\ninline int one() { return 1; }\n",
    "kernels/two.h": "#pragma once\ninline int two() { return 2; }\n",
    "kernels/a.cpp": '#include "kernels/one.h"\n\nint a() { return one(); }\n',
    "kernels/b.cpp": "int b() { return 2; }\n",
}


@pytest.fixture
def lint(tmp_path):
    """Runs scripts/lint on GOOD, changed: (exit status, output)."""
    if not all(map(shutil.which, ("clang-tidy-14", "include-what-you-use", "shellcheck"))):
        pytest.skip("clang-tidy-14, include-what-you-use or shellcheck is not installed; run scripts/setup")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(changes, checkout="checkout"):
        root = tree(tmp_path / checkout, GOOD | changes | {"scripts/lint": (ROOT / "scripts/lint").read_text(encoding="utf-8")})
        presets = '{"version": 6, "configurePresets": [{"name": "lint", "generator": "Ninja", "binaryDir": "${sourceDir}/build/lint",'
        presets += '"cacheVariables": {"CMAKE_EXPORT_COMPILE_COMMANDS": "ON", "CMAKE_CXX_COMPILER": "clang++-14"}}]}'
        tree(root, {"CMakePresets.json": presets})
        done = subprocess.run(["python3", root / "scripts/lint"], capture_output=True, text=True, timeout=120, check=False, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run


def test_what_is_good_is_analyzed_once_for_all_checkouts(lint):
    status, output = lint({})
    assert status == 0 and "2 sources, 0 of them known to be good, 0 bad" in output
    status, output = lint({"kernels/one.h": "#pragma once\ninline int one() { return 3; }\n"}, "another")
    assert status == 0 and "2 sources, 1 of them known to be good, 0 bad" in output


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("kernels/b.cpp", "typedef int Number;\n", "[modernize-use-using"),
        ("kernels/b.cpp", "int f( {\n", "clang-diagnostic-error"),
        ("kernels/b.cpp", '#include "kernels/two.h"\nint b() { return 2; }\n', 'kernels/b.cpp: #include "kernels/two.h" is not used'),
        ("kernels/one.h", '#pragma once\n#include "kernels/a.cpp"\n', "a cycle of includes: a.cpp -> one.h -> a.cpp"),
        ("scripts/x.sh", "#!/bin/sh\necho $1\n", "SC2086"),
    ],
)
def test_finds_a_fault(lint, name, text, fault):
    status, output = lint({name: text})
    assert status != 0
    assert fault in output
