"""Shared by the tests of the program: runs it, and makes .npy files without it."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Shells start background processes with interrupts ignored, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def program_path():
    given = os.environ.get("SPARSESYNC_PROGRAM")
    return pathlib.Path(given) if given else ROOT / "build" / "release" / "bin" / "sparsesync"


@pytest.fixture(scope="session")
def program():
    """Returns the program under test: SPARSESYNC_PROGRAM, or that of the release build."""
    path = program_path()
    assert path.exists(), f"{path} is not built; set SPARSESYNC_PROGRAM"
    return path


@pytest.fixture
def run(program, tmp_path):
    """Returns a function that runs the program in an empty folder, for at most a minute."""

    def run_program(*arguments, environment=None, **options):
        return subprocess.run(
            [str(program), *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **(environment or {})},
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    return run_program


@pytest.fixture
def refused(run, tmp_path):
    """Returns a function that expects a failure: one line on standard error with all `parts`, the status, and no files left."""

    def run_refused(*arguments, parts, status=2, **options):
        before = sorted(path.name for path in tmp_path.iterdir())
        result = run(*arguments, **options)
        assert result.returncode == status, result
        assert result.stderr.startswith("sparsesync: "), result.stderr
        assert result.stderr.endswith("\n") and result.stderr.count("\n") == 1, result.stderr
        for part in parts:
            assert part in result.stderr, (part, result.stderr)
        assert not result.stdout, result.stdout
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        return result

    return run_refused


def tables_printed_by(script, program, *arguments):
    """Returns the tables that a benchmark prints for a document."""
    made = subprocess.run(
        [sys.executable, ROOT / script, *arguments, "--program", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip().split("\n\n")


@pytest.fixture(scope="session")
def real_data():
    """Returns the folder of real index data, or skips the test."""
    path = pathlib.Path(os.environ.get("SPARSESYNC_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "lm1b_tokens.npy").exists():
        pytest.skip(f"the real index data is not in {path}")
    return path
