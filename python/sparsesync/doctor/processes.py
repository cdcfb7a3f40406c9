"""Runs code that may crash or hang in other processes, each within a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

IN_TIME = "did not end within"  # begin of the problem of a process that exceeded its limit
_AFTER_KILL_S = 1.0  # wait for a killed process, which a driver may hold longer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The facts that a process reported, and why it failed, if it did."""

    facts: list[dict[str, Any]]
    problem: str = ""  # empty if the process ended with status 0


class Report:
    """The facts of this process, which run() returns in another one. A crash later on does not lose them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, **facts: Any) -> None:
        """Appends facts that JSON can store."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def limit_this_process(seconds: float) -> None:
    """Lets the system end this process after a time, even if it hangs in C code and its parent is gone."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, math.ceil(seconds)))


def module(name: str, *arguments: object) -> list[str]:
    """Returns the command that runs a module in this interpreter."""
    return [sys.executable, "-m", name, *map(str, arguments)]


def run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Outcome:
    """Runs a command for at most ``seconds``. The last argument that it gets is the file for its Report."""
    with tempfile.TemporaryDirectory(prefix="sparsesync-doctor-") as folder, tempfile.TemporaryFile() as errors:
        path = pathlib.Path(folder) / "facts"
        try:
            process = subprocess.Popen(
                [*command, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome([], f"{command[0]} cannot be started: {error.strerror}")
        problem = _problem(process, seconds, errors)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            text = ""
        lines = text.split("\n")[:-1]  # a process that is killed may leave a part of a line
        return Outcome([json.loads(line) for line in lines], problem)


def _problem(process: subprocess.Popen[bytes], seconds: float, errors: IO[bytes]) -> str:
    """Waits for a process. Returns why it failed, or an empty string."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"{IN_TIME} {seconds:.3g} s{_quoted(errors)}"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_AFTER_KILL_S)
    if status == 0:
        return ""
    return f"{ended(status)}{_quoted(errors)}"


def ended(status: int) -> str:
    """Returns how a process ended. status: its exit status, or the negative number of a signal."""
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _quoted(errors: IO[bytes]) -> str:
    """Returns the last line of standard error that is not empty, after a colon."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {''.join(each if each.isprintable() else '?' for each in lines[-1])}" if lines else ""
