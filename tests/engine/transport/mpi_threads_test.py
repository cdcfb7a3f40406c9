"""A program that initialized MPI with too little thread support gets an error that says so."""
# ctest: NEEDS MPI SLOW ALL

import os
import subprocess

import pytest


@pytest.mark.parametrize("level,calls_mpi,accepted", [
    ("single", "no", False),
    ("funneled", "no", False),
    ("serialized", "no", True),
    ("serialized", "yes", False),
    ("multiple", "yes", True),
])
def test_thread_support(level, calls_mpi, accepted):
    result = subprocess.run(
        [os.environ["SPARSESYNC_SOURCE_DIR"] + "/cmake/mpirun.sh", "-np", "2",
         os.environ["SPARSESYNC_MPI_THREADS"], level, calls_mpi],
        capture_output=True, text=True, timeout=60, check=False)
    if accepted:
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("exchanged") == 2
    else:
        assert "too little thread support" in result.stderr
        needed = "multiple" if calls_mpi == "yes" else "serialized"
        assert f"MPI_THREAD_{needed.upper()} (in Python: set mpi4py.rc.thread_level = '{needed}'" in result.stderr
