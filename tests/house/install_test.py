"""What `cmake --install` leaves behind serves a program of its own: the README's, over threads and over MPI."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
BUILD = Path(os.environ.get("SPARSESYNC_BUILD_DIR", ROOT / "build/dev"))
MPIRUN = ROOT / "cmake/mpirun.sh"
# Rows 7 and 100 + rank: four workers add (1, 2) to the first one.
LINES = [f"worker {rank} has 5 rows; row 7 is 4 8" for rank in range(4)]


def fenced(language):
    """The README's blocks of a language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def done(*command, **options):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=100, check=False, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    path = tmp_path_factory.mktemp("installed")
    done("cmake", "--install", BUILD, "--prefix", path)
    return path


@pytest.fixture(scope="module")
def user(prefix, tmp_path_factory):
    """The README's program and its build file, built against what was installed."""
    folder = tmp_path_factory.mktemp("user")
    (program,) = fenced("cpp")
    (build_file,) = fenced("cmake")
    assert len(program.splitlines()) <= 30
    (folder / "sums.cpp").write_text(program, encoding="utf-8")
    (folder / "CMakeLists.txt").write_text(build_file, encoding="utf-8")
    done("cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=folder)
    done("cmake", "--build", "build", cwd=folder)
    return folder / "build"


def test_threads(user):
    assert sorted(done(user / "sums").splitlines()) == LINES


def test_processes(user):
    assert sorted(done(MPIRUN, "-np", 4, user / "sums", "mpi").splitlines()) == LINES


def test_the_program_runs_where_it_was_installed(prefix):
    assert "balanced" in done(prefix / "bin/sparsesync", "info", "--schemes")


def test_the_models_that_are_shipped_are_there(prefix):
    models = sorted(path.name for path in (prefix / "share/sparsesync/models").iterdir())
    assert models == sorted(path.name for path in (ROOT / "models").glob("*.json"))
    options = ("--workers", 8, "--rate", "10gbit", "--latency", "20us")
    for name in models:
        assert "mg_wfbp_exact" in done(prefix / "bin/sparsesync", "simulate", prefix / "share/sparsesync/models" / name, *options)


def test_installed_headers_include_each_other_and_no_file_of_this_tree(prefix):
    headers = list((prefix / "include").rglob("*.h"))
    names = {str(path.relative_to(prefix / "include")) for path in headers}
    assert {"sparsesync/sparsesync.h", "sparsesync/engine/session.h", "sparsesync/kernels/views.h"} <= names
    for path in headers:
        included = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        assert set(included) <= names, path
        assert "mpi.h" not in path.read_text(encoding="utf-8").replace("transport/mpi.h", ""), path


def test_another_version_is_refused(prefix, user):
    """Also shows that the package is found by its own files, and not by chance."""
    script = user / "find.cmake"
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
    assert result.stderr.split("\n")[:3] == ["0.1: TRUE", "0.2: FALSE", "1.0: FALSE"]
