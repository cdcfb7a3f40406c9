"""Shared by the tests of the program: runs it, and makes .npy files without it."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# MPI never frees some of its allocations. cmake/mpirun.sh sets the same option.
LEAKS_OF_MPI = {"LSAN_OPTIONS": f"print_suppressions=0:suppressions={ROOT}/cmake/lsan_mpi.supp"}

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


@pytest.fixture
def mpirun(program, tmp_path):
    """Runs the contexts of an mpirun. Each is (processes, arguments of the program, or another command). Leaves no process behind."""

    def start(*contexts, options=(), timeout=300):
        command = [ROOT / "cmake/mpirun.sh", *options]
        for place, (count, arguments) in enumerate(contexts):
            words = arguments if isinstance(arguments, str) else None
            command += [":"] if place else []
            command += ["-np", str(count)]
            command += words.split() if words else [str(program), *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **streams) as job:
            try:
                output, errors = job.communicate(timeout=timeout)
            except BaseException:
                os.killpg(job.pid, signal.SIGTERM)  # mpirun ends its processes, which are in separate groups
                raise
        return subprocess.CompletedProcess(command, job.returncode, output, errors)

    return start


@pytest.fixture
def make_trace(run, tmp_path):
    """Returns a function that writes a small synthetic trace."""

    def make(workers, seed=1, name="trace", rows=30000):
        made = run("trace", "synthetic", "--rows", rows, "--width", 24, "--density", 0.01, "--zipf", 1.1,
                   "--workers", workers, "--steps", 2, "--seed", seed, "--out", name)
        assert made.returncode == 0, made.stderr
        return tmp_path / name

    return make


def said(result):
    """Returns the program's lines on standard error, one for each worker that failed."""
    return [line for line in result.stderr.splitlines() if line.startswith("sparsesync: ")]


def expect_calibration_of_one_node(transport, mpirun, folder):
    """Calibrates three workers of this machine over a transport, and checks that the links inside it were measured."""
    result = mpirun((3, ["calibrate", "--transport", transport, "--repeat", 3, "--out", "N.json"]), options=["--enable-recovery"])
    if said(result):  # on a machine that is too busy all workers report that, and nothing is written
        assert len(said(result)) == 3 and all("repeat it" in line for line in said(result)), result.stderr
        assert not (folder / "N.json").exists()
        return
    assert result.stdout.count("inside a node") == 1, "only rank 0 prints"
    links = json.loads((folder / "N.json").read_text())["links"]
    assert links["inter"] is None and links["intra"]["rate_bps"] > 0


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
