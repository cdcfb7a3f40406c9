"""scripts/check-registered: a build file names every test of ours, and one that is forgotten is found."""

import pytest
from trees import ROOT, check, expect_good, tree

SCRIPT = "check-registered"

GOOD = {
    "tests/CMakeLists.txt": """
sparsesync_test(kernels/a)
sparsesync_test(kernels/b LIBRARIES sparsesync_kernels)  # a comment: kernels/c
sparsesync_python_test(cli/trace)
add_test(NAME x COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/x cli/shell_test.sh)
""",
    "tests/kernels/a_test.cpp": "",
    "tests/kernels/b_test.cpp": "",
    "tests/kernels/helper.h": "",
    "tests/cli/trace_test.py": "",
    "tests/cli/shell_test.sh": "",
    "bench/CMakeLists.txt": "sparsesync_bench(kernels/a)\n",
    "bench/kernels/a_bench.cpp": "",
    "tests/kernels/shared_headers.cu": '#include "kernels/shared.h"\n',
    "kernels/shared.h": "SPARSESYNC_HOST_DEVICE int f();\n",
}


def test_our_tree():
    expect_good(SCRIPT, ROOT)


def test_a_good_tree(tmp_path):
    assert "5 tests and benches are registered" in expect_good(SCRIPT, tree(tmp_path, GOOD))


@pytest.mark.parametrize(
    "name",
    [
        "tests/kernels/c_test.cpp",  # only a comment names it
        "tests/kernels/a_test.py",  # kernels/a is registered, but as C++
        "tests/cli/trace_test.cpp",
        "tests/kernels/a_test.cu",
        "tests/deep/er/x_test.sh",
        "bench/kernels/b_bench.cpp",
        "bench/kernels/a_bench.py",
    ],
)
def test_finds_a_forgotten_file(tmp_path, name):
    status, output = check(SCRIPT, tree(tmp_path, GOOD | {name: ""}))
    assert status == 1
    assert output.splitlines() == [f"{name}: no build file names it"]


def test_finds_a_name_without_a_file(tmp_path):
    tree(tmp_path, GOOD)
    (tmp_path / "tests/kernels/b_test.cpp").unlink()
    status, output = check(SCRIPT, tmp_path)
    assert status == 1
    assert output.startswith("tests/CMakeLists.txt:3: names tests/kernels/b_test.cpp")


def test_finds_a_shared_header_that_nvcc_does_not_see(tmp_path):
    status, output = check(SCRIPT, tree(tmp_path, GOOD | {"schemes/more.h": "SPARSESYNC_HOST_DEVICE int g();\n"}))
    assert status == 1
    assert output.startswith("schemes/more.h: has SPARSESYNC_HOST_DEVICE")


def test_an_empty_tree_is_not_a_success(tmp_path):
    status, output = check(SCRIPT, tmp_path)
    assert status == 1
    assert "nothing was checked" in output
