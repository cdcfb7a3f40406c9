"""Tests the result of `cmake --install`: a library that programs link, its public headers, the program and its models."""
# ctest: COST 30 PROCESSORS 2

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
BUILD = Path(os.environ.get("SPARSESYNC_BUILD_DIR", ROOT / "build/dev"))
MPIRUN = ROOT / "cmake/mpirun.sh"
EXAMPLES = ROOT / "examples/cpp"
SKIPPED = 77
# Lines that each example prints, in any order.
OUTPUT = {
    # Rows 7 and 100 + rank: four workers add (1, 2) to row 7.
    "threads": [f"worker {rank} has 5 rows; row 7 is 4 8" for rank in range(4)],
    "mpi": [f"step {step}: 5 words; the mean of row 7 is 1 2" for step in range(3)],
    # Workers add 1, 2 and 3; half of their sums is subtracted.
    "schedule": ["layers 0 to 1: weight -6", "layers 2 to 3: weight -6"],
    "cuda": [f"worker {rank}: row 7 is 2" for rank in range(2)],
}


def done(*command, statuses=(0,), **options):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=200, check=False, **options)
    assert result.returncode in statuses, result.stdout + result.stderr
    return result


def lines(*command):
    return sorted(done(*command).stdout.splitlines())


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    path = tmp_path_factory.mktemp("installed")
    done("cmake", "--install", BUILD, "--prefix", path)
    return path


@pytest.fixture(scope="module")
def examples(prefix, tmp_path_factory):
    """Builds examples/cpp against the installed package. Returns the build folder."""
    folder = tmp_path_factory.mktemp("examples")
    done("cmake", "-S", EXAMPLES, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    done("cmake", "--build", folder)
    return folder


def test_every_example_is_built_and_short(examples):
    sources = sorted(EXAMPLES.glob("*.cpp"))
    assert len(sources) >= 5
    for source in sources:
        assert (examples / source.stem).exists(), source
        assert len(source.read_text(encoding="utf-8").splitlines()) < 80, source


def test_threads(examples):
    assert lines(examples / "threads") == OUTPUT["threads"]


def test_a_schedule(examples):
    assert lines(examples / "schedule") == OUTPUT["schedule"]


def test_processes(examples):
    assert lines(MPIRUN, "-np", 4, examples / "mpi") == OUTPUT["mpi"]


def test_a_gpu(examples):
    result = done(examples / "cuda", statuses=(0, SKIPPED))
    if result.returncode == SKIPPED:
        assert result.stdout.startswith("SKIPPED: ")
    else:
        assert sorted(result.stdout.splitlines()) == OUTPUT["cuda"]


def test_a_sparsifier(examples):
    line = r"step (\d): 100 elements of 10000 are sent; the residual's L1 norm is ([\d.]+)"
    printed = re.findall(line, done(examples / "sparsifier").stdout)
    assert [step for step, _ in printed] == ["0", "1", "2"]
    norms = [float(norm) for _, norm in printed]
    assert 0 < norms[0] < norms[1] < norms[2], "unsent gradients add up in the residual"


def test_getting_started_shows_an_example():
    page = (ROOT / "docs/getting-started/cpp.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```cpp\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert program in (EXAMPLES / "threads.cpp").read_text(encoding="utf-8")
    (build_file,) = re.findall(r"^```cmake\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert "find_package(sparsesync REQUIRED)" in build_file


def test_the_program_runs_where_it_was_installed(prefix):
    assert "balanced" in done(prefix / "bin/sparsesync", "info", "--schemes").stdout


def test_the_shipped_models_are_installed(prefix):
    models = sorted(path.name for path in (prefix / "share/sparsesync/models").iterdir())
    assert models == sorted(path.name for path in (BUILD / "models").glob("*.json"))
    assert len(models) == 8
    options = ("--workers", 8, "--rate", "10gbit", "--latency", "20us")
    for name in models:
        assert "mg_wfbp_exact" in done(prefix / "bin/sparsesync", "simulate", prefix / "share/sparsesync/models" / name, *options).stdout


def test_each_public_header_compiles_alone_and_includes_public_headers_only(prefix):
    include = prefix / "include"
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.h"))
    source = ROOT / "include"
    assert headers == sorted(str(path.relative_to(source)) for path in source.rglob("*.h")) and len(headers) > 20
    umbrella = (include / "sparsesync/sparsesync.h").read_text(encoding="utf-8")
    for header in headers:
        included = re.findall(r'#include "([^"]+)"', (include / header).read_text(encoding="utf-8"))
        assert set(included) <= set(headers), header
        assert header == "sparsesync/sparsesync.h" or f'"{header}"' in umbrella, header
        flags = ("-std=c++20", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only")
        done("c++", *flags, f"-I{include}", "-x", "c++", "-", input=f"#include <{header}>\n")


def test_another_version_is_refused(prefix, tmp_path):
    """Also shows that CMake finds the package by its installed files, not by accident."""
    script = tmp_path / "find.cmake"
    script.write_text(f"""
foreach(version 0.1 0.2 1.0)
  set(PACKAGE_FIND_VERSION ${{version}})
  string(REGEX MATCH "^[0-9]+" PACKAGE_FIND_VERSION_MAJOR ${{version}})
  string(REGEX MATCH "[0-9]+$" PACKAGE_FIND_VERSION_MINOR ${{version}})
  set(CMAKE_SIZEOF_VOID_P 8)
  unset(PACKAGE_VERSION_COMPATIBLE)
  file(GLOB file "{prefix}/lib*/cmake/sparsesync/sparsesync-config-version.cmake"
                 "{prefix}/lib/*/cmake/sparsesync/sparsesync-config-version.cmake")
  include(${{file}})
  message("${{version}}: ${{PACKAGE_VERSION_COMPATIBLE}}")
endforeach()
""", encoding="utf-8")
    result = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=True)
    assert result.stderr.split("\n")[:3] == ["0.1: FALSE", "0.2: TRUE", "1.0: FALSE"]
