"""Tests scripts/lint on a separate tree: it analyzes good files once, and finds each kind of fault."""

import os
import shutil
import subprocess

import pytest
from trees import ROOT, tree

CMAKE = """cmake_minimum_required(VERSION 3.25)
project(sparsesync CXX)
add_library(sparsesync_kernels STATIC kernels/a.cpp kernels/b.cpp)
target_include_directories(sparsesync_kernels PUBLIC ${CMAKE_SOURCE_DIR})
"""
PRESETS = """{"version": 6, "configurePresets": [{"name": "lint", "generator": "Ninja", "binaryDir": "${sourceDir}/build/lint",
"cacheVariables": {"CMAKE_CXX_COMPILER": "clang++-14", "CMAKE_PROJECT_sparsesync_INCLUDE": "${sourceDir}/cmake/SparsesyncLint.cmake"}}]}"""
CONFIGURATIONS = [
    ".clang-tidy",
    "analysis/cli/.clang-tidy",
    "bench/kernels/.clang-tidy",
    "python/bindings/.clang-tidy",
    "tests/.clang-tidy",
    "requirements-test.txt",
]
COPIED = [*CONFIGURATIONS, "scripts/lint", "scripts/lib.sh", "cmake/SparsesyncLint.cmake"]
GOOD = {path: (ROOT / path).read_text(encoding="utf-8") for path in COPIED} | {
    "CMakeLists.txt": CMAKE,
    "CMakePresets.json": PRESETS,
    "kernels/one.h": "#pragma once\n\ninline int one() {\n  return 1;\n}\n",
    "kernels/two.h": "#pragma once\n\ninline int two() {\n  return 2;\n}\n",
    "kernels/sums.h": "#pragma once\n\nint a();\nint b();\n",
    "kernels/a.cpp": '#include "kernels/one.h"\n#include "kernels/sums.h"\n\nint a() {\n  return one();\n}\n',
    "kernels/b.cpp": '#include "kernels/sums.h"\n\nint b() {\n  return 2;\n}\n',
}


@pytest.fixture
def lint(tmp_path):
    """Returns a function that runs scripts/lint on GOOD with changes. It returns (exit status, output)."""
    if not all(map(shutil.which, (ROOT / ".venv/bin/clang-tidy", "clang++-14", "shellcheck"))):
        pytest.skip("clang-tidy, clang++-14 or shellcheck is not installed; run scripts/setup --for test")
    environment = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_DIR": str(tmp_path / ".git"), "GIT_WORK_TREE": str(tmp_path)}

    def run(changes):
        tree(tmp_path, changes)
        if not (tmp_path / ".venv").exists():
            (tmp_path / ".venv").symlink_to(ROOT / ".venv")
            subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True, env=environment)
        subprocess.run(["git", "add", *GOOD, *changes], cwd=tmp_path, check=True, env=environment)
        command = ["bash", tmp_path / "scripts/lint"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        return done.returncode, done.stdout + done.stderr

    tree(tmp_path, GOOD)
    return run


def test_good_files_are_analyzed_once(lint):
    status, output = lint({})
    assert status == 0 and "a.cpp.o" in output and "b.cpp.o" in output, output
    status, output = lint({"kernels/one.h": GOOD["kernels/one.h"].replace("1", "3")})
    assert status == 0 and "a.cpp.o" in output and "b.cpp.o" not in output, output
    status, output = lint({"tests/.clang-tidy": "InheritParentConfig: true\n"})
    assert status == 0 and "a.cpp.o" in output and "b.cpp.o" in output, output


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("kernels/b.cpp", "typedef int Number;\n", "[modernize-use-using"),
        ("kernels/b.cpp", "int f( {\n", "clang-diagnostic-error"),
        ("kernels/b.cpp", '#include "kernels/two.h"\n' + GOOD["kernels/b.cpp"], "two.h is not used directly [misc-include-cleaner"),
        ("kernels/one.h", GOOD["kernels/one.h"].replace("one()", "One()"), "invalid case style for function 'One'"),
        ("kernels/one.h", GOOD["kernels/one.h"].replace("\n\n", '\n#include "kernels/two.h"\n'), "two.h is not used directly"),
        ("kernels/one.h", '#pragma once\n#include "kernels/two.h"\n', "circular header file dependency detected"),
        ("scripts/x.sh", "#!/bin/sh\necho $1\n", "SC2086"),
    ],
)
def test_finds_a_fault(lint, name, text, fault):
    changes = {name: text}
    if fault.startswith("circular"):
        changes["kernels/two.h"] = '#pragma once\n#include "kernels/one.h"\n'
    status, output = lint(changes)
    assert status != 0
    assert fault in output
