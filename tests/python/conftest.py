"""Shared by the tests of the Python package."""

import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Shells start background processes with interrupts ignored, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def random():
    """Returns a generator with a random seed, which a failure prints. SPARSESYNC_SEED repeats it."""
    seed = int(os.environ.get("SPARSESYNC_SEED") or np.random.SeedSequence().entropy % 2**32)
    print(f"SPARSESYNC_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def run_program(tmp_path):
    """Returns a function that runs the program in the test's folder: SPARSESYNC_PROGRAM, or that of the release build."""
    given = os.environ.get("SPARSESYNC_PROGRAM")
    program = pathlib.Path(given) if given else ROOT / "build" / "release" / "bin" / "sparsesync"
    assert program.exists(), f"{program} is not built; set SPARSESYNC_PROGRAM"

    def run(*arguments):
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(autouse=True, scope="session")
def device_under_test():
    """Puts all modules on the emulated GPU if SPARSESYNC_TEST_DEVICE=emulated."""
    if os.environ.get("SPARSESYNC_TEST_DEVICE") != "emulated":
        return
    import emulated_device  # requires torch, and a build with it

    emulated_device.install()
