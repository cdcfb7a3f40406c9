"""Over MPI, a killed or stopped worker causes a typed error on every survivor within the time limit."""
# ctest: NEEDS MPI PROCESSORS 2 SLOW ALL

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

WORKERS = 4
VICTIM = 2
DEADLINE_S = 3
LATE_S = 20  # seconds to spare on a busy machine
SURVIVORS = [rank for rank in range(WORKERS) if rank != VICTIM]


def wait_for(paths, seconds):
    end = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"missing: {[p.name for p in paths if not p.exists()]}"
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path):
    """Starts the workers. Yields their process ids by rank, and their folder."""
    command = [os.environ["SPARSESYNC_SOURCE_DIR"] + "/cmake/mpirun.sh", "--enable-recovery", "-np", str(WORKERS),
               os.environ["SPARSESYNC_MPI_SURVIVOR"], str(tmp_path), str(DEADLINE_S * 1000)]
    with open(tmp_path / "output", "wb") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    pids = {rank: tmp_path / f"{rank}.pid" for rank in range(WORKERS)}
    try:
        wait_for(pids.values(), 60)
        processes = {rank: int(path.read_text()) for rank, path in pids.items()}
        yield processes, tmp_path
    finally:
        for path in pids.values():
            if path.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.read_text()), signal.SIGKILL)
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(30)


def statuses(folder, seconds):
    """Returns the survivors' errors: [(type, seconds since the last good step, text)]."""
    wait_for([folder / f"{rank}.status" for rank in SURVIVORS], seconds)
    said = [(folder / f"{rank}.status").read_text().split(maxsplit=2) for rank in SURVIVORS]
    print(said)
    return [(kind, float(seconds), text) for kind, seconds, text in said]


@pytest.mark.parametrize("moment_s", [0.0, 0.011, 0.037])
def test_a_killed_worker_is_lost_to_all_survivors(run, moment_s):
    processes, folder = run
    time.sleep(moment_s)
    os.kill(processes[VICTIM], signal.SIGKILL)
    for kind, seconds, text in statuses(folder, DEADLINE_S + 30):
        # The worker that detects the loss first sends the reason to the others.
        assert kind in ("PeerLostError", "AbortedError"), text
        assert f"worker {VICTIM} left" in text
        assert seconds <= DEADLINE_S + LATE_S


def test_a_stopped_worker_is_a_deadline(run):
    processes, folder = run
    os.kill(processes[VICTIM], signal.SIGSTOP)
    said = statuses(folder, DEADLINE_S + 30)
    for kind, seconds, text in said:
        assert kind in ("DeadlineError", "AbortedError"), text
        assert f"waited for worker {VICTIM}" in text or "until the deadline" in text
        # A worker whose last step ended later than another's learns of it before its own deadline expires.
        assert seconds <= DEADLINE_S + LATE_S and (kind == "AbortedError" or seconds >= DEADLINE_S - 0.1)
    assert any(kind == "DeadlineError" and str(VICTIM) in text for kind, _, text in said)


def test_survivors_end_by_themselves_without_finalizing(run):
    processes, folder = run
    os.kill(processes[VICTIM], signal.SIGKILL)
    statuses(folder, DEADLINE_S + 30)
    end = time.monotonic() + 30
    for rank in SURVIVORS:
        while Path(f"/proc/{processes[rank]}").exists():
            assert time.monotonic() < end, f"worker {rank} hangs: it waits for the dead worker"
            time.sleep(0.05)
