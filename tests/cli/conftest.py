"""What the tests of the program share: running it, and making .npy files without its help."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Shells start background processes with interrupts ignored, which the tests' own processes would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def program_path():
    given = os.environ.get("SPARSESYNC_PROGRAM")
    return pathlib.Path(given) if given else ROOT / "build" / "release" / "bin" / "sparsesync"


@pytest.fixture(scope="session")
def program():
    """The built program: SPARSESYNC_PROGRAM, or that of the release build."""
    path = program_path()
    assert path.exists(), f"{path} is not built; set SPARSESYNC_PROGRAM"
    return path


@pytest.fixture
def run(program, tmp_path):
    """Runs the program in an empty folder, for a minute at most."""

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
    """Runs what must fail: one line on standard error with all `parts`, the status, nothing left behind."""

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
    """What a bench that makes a document's tables prints, table by table."""
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
    """The folder of real index data, or a skip that names it."""
    path = pathlib.Path(os.environ.get("SPARSESYNC_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "lm1b_tokens.npy").exists():
        pytest.skip(f"the real index data is not in {path}")
    return path
