"""Programs of tests, started as users start theirs: by torchrun, or by mpirun. Each process writes what it found as JSON."""

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
    """One thread for each process: there are more processes than cores. One that crashes says where. Helpers of this folder are found."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE)])
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}
    return {**os.environ, **fixed, **more}


def free_port() -> int:
    """One that nobody is given who asks for any: it is free for a while after this."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # Linux gives those from 32768 on
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def run(command: list[str], timeout: float = 300, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command and all that it starts; nothing of it is left behind."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more), start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # launchers end their processes, which are in groups of their own
        try:
            output, errors = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
        raise AssertionError(f"{command} hangs:\n{output}\n{errors}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def torchrun(workers: int, program: Path, *arguments: object) -> list[str]:
    """The command that starts a program as torchrun does."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    return [*launcher, "--nproc-per-node", str(workers), str(program), *map(str, arguments)]


def mpirun(workers: int, program: Path, *arguments: object) -> list[str]:
    """The command that starts a program as mpirun does."""
    launcher = [str(ROOT / "cmake/mpirun.sh"), "-np", str(workers), "--mca", "btl", "tcp,self"]
    return [*launcher, sys.executable, str(program), *map(str, arguments)]


def outcomes(command: list[str], folder: Path, workers: int, timeout: float = 300, **more: str) -> list[Any]:
    """Runs it; what each rank wrote to RANK.json in `folder`. Fails, with all that was printed, if one of them failed."""
    done = run(command, timeout, **more)
    assert done.returncode == 0, f"{command} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(workers)]
