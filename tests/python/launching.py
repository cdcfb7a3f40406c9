"""Starts programs of tests as users do: with torchrun, or with mpirun. Each process writes its results as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def environment(**more: str) -> dict[str, str]:
    """Returns an environment with one thread per process, because there are more processes than cores. A crash prints a traceback. The
    helpers of this folder can be imported.
    """
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE)])
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}
    return {**os.environ, **fixed, **more}


def free_port() -> int:
    """Returns a port outside the range that the system assigns on request, so that it stays free for a while."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # Linux assigns ports from 32768 on
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def run(command: list[str], timeout: float = 300, folder: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command and everything that it starts, for at most `timeout` seconds, in `folder`, and leaves no process behind."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=environment(**more), start_new_session=True, **pipes)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # launchers end their processes, which are in separate groups
        try:
            output, errors = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
        raise AssertionError(f"{command} hangs:\n{output}\n{errors}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def torchrun(workers: int, program: Path, *arguments: object) -> list[str]:
    """Returns the command that starts a program with torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    return [*launcher, "--nproc-per-node", str(workers), str(program), *map(str, arguments)]


def mpirun(workers: int, program: Path, *arguments: object) -> list[str]:
    """Returns the command that starts a program with mpirun."""
    launcher = [str(ROOT / "cmake/mpirun.sh"), "-np", str(workers), "--mca", "btl", "tcp,self"]
    return [*launcher, sys.executable, str(program), *map(str, arguments)]


def outcomes(command: list[str], folder: Path, workers: int, timeout: float = 300, **more: str) -> list[Any]:
    """Runs a command, for at most `timeout` seconds. Returns the content of RANK.json in `folder` for each rank. If a rank fails, fails
    with the complete output.
    """
    done = run(command, timeout, None, **more)
    assert done.returncode == 0, f"{command} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(workers)]
