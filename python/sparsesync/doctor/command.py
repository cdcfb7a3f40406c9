"""The command ``python -m sparsesync doctor``: runs all probes and prints the findings."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparsesync import _launchers
from sparsesync.doctor import findings as found
from sparsesync.doctor import processes
from sparsesync.doctor.findings import Findings
from sparsesync.doctor.host import Host
from sparsesync.doctor.probes import PROBES
from sparsesync.doctor.processes import Outcome

_LEAST_TIMEOUT_S = 1.0
_PROBES_SHARE = 0.5  # of the time limit
_PAIR_SHARE = 0.6  # of the rest, for the first pair of processes; the second one gets what is left
_FOR_ERRORS_S = 1.5  # time to report an error after the last wait of a process
_WIDTH = 100  # columns of the table


class Clock:
    """The time that is left of the limit of the whole command."""

    def __init__(self, limit_s: float) -> None:
        self._ends = time.monotonic() + limit_s

    def left(self, share: float = 1.0) -> float:
        """Returns a share of the seconds that are left, at least half a second."""
        return max(0.5, share * (self._ends - time.monotonic()))


def probe_all(names: Sequence[str], seconds: float) -> dict[str, Outcome]:
    """Runs probes at the same time, each in its process. Returns their outcomes by name."""
    commands = {name: processes.module("sparsesync.doctor.probes", name, seconds) for name in names}
    return run_all(commands, seconds)


def run_all(commands: Mapping[str, Sequence[str]], seconds: float, environment: Mapping[str, str] | None = None) -> dict[str, Outcome]:
    """Runs commands at the same time. Returns their outcomes by name."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(commands))) as pool:
        started = {name: pool.submit(processes.run, command, seconds, environment) for name, command in commands.items()}
        return {name: each.result() for name, each in started.items()}


def examine(timeout_s: float) -> Findings:
    """Examines this machine and measures links, for at most ``timeout_s`` seconds."""
    clock = Clock(timeout_s)
    host, findings = Host.here(), Findings()
    if not _is_launched():
        mpi = _examine_machine(findings, host, clock, with_mpi=True)
        if mpi is not None:
            found.add_mpi(findings, mpi)
            if not _launchers.signs_of_others():
                found.add_links(findings, _measure_here(findings, host, clock))
        return findings
    # A rank initializes MPI once, to measure its links.
    with_mpi = "OMPI_COMM_WORLD_SIZE" not in os.environ
    examines = _is_first_of_machine()
    mpi = _examine_machine(findings, host, clock, with_mpi) if examines else None
    seconds = clock.left()
    facts = {"rows": [vars(row) for row in findings.rows], "todo": findings.todo} if examines else None
    outcome = processes.run([*_links(seconds), "--ucx", "--facts", json.dumps(facts)], seconds)
    links = links_in(outcome)
    if _launchers.started_by_mpirun():
        mpi = next((each for each in [*outcome.facts, *links] if "version" in each or "problem" in each), None)
    if examines:
        found.add_mpi(findings, mpi)
    found.add_links(findings, links)
    found.merge(findings, next((each["gathered"] for each in outcome.facts if "gathered" in each), []))
    return findings


def _examine_machine(findings: Findings, host: Host, clock: Clock, with_mpi: bool) -> dict[str, Any] | None:
    """Adds the rows of this machine. Returns the facts of MPI; None if it was not examined."""
    outcomes = probe_all([name for name in PROBES if with_mpi or name != "mpi"], clock.left(_PROBES_SHARE))
    loads = found.add_build(findings, outcomes["build"])
    found.add_python(findings, outcomes["numpy"])
    found.add_network(findings, host)
    found.add_launcher(findings)
    found.add_environment(findings, os.environ)
    if not loads:
        return None  # the other probes fail for the same reason
    found.add_torch(findings, outcomes["torch"], host)
    found.add_ucx(findings, outcomes["ucx"])
    found.add_gpu(findings, outcomes["gpu"])
    return found.facts_of(outcomes["mpi"]) if with_mpi else None


def _is_launched() -> bool:
    return _launchers.started_by_mpirun() or _launchers.started_by_torchrun()


def _is_first_of_machine() -> bool:
    """Returns whether this process examines its machine. Of the processes of a launcher, one does."""
    name = "OMPI_COMM_WORLD_LOCAL_RANK" if _launchers.started_by_mpirun() else "LOCAL_RANK"
    return os.environ.get(name, "0") == "0"


def prints() -> bool:
    """Returns whether this process prints the findings: it is rank 0, or no launcher started it."""
    if _launchers.started_by_mpirun():
        return os.environ.get("OMPI_COMM_WORLD_RANK") == "0"
    return not _launchers.started_by_torchrun() or os.environ["RANK"] == "0"


# ---- Links


def _links(seconds: float) -> list[str]:
    """Returns the command that measures links for at most ``seconds``, and reports errors in time."""
    return processes.module("sparsesync.doctor.links", "--until", time.monotonic() + seconds - _FOR_ERRORS_S)


def _measure_here(findings: Findings, host: Host, clock: Clock) -> list[dict[str, Any]]:
    """Measures the links between two processes of this machine, over each transport that is usable."""
    with_torch = findings.is_ok("torch") and findings.is_ok("Gloo")
    with_mpi = findings.is_ok("MPI") and findings.is_ok("mpirun")
    interface = {"GLOO_SOCKET_IFNAME": host.interface, **os.environ}
    path = ["--path", f"TCP over {interface['GLOO_SOCKET_IFNAME']}"]
    ucx = ["--ucx"] if findings.is_ok("UCX") else []
    links: list[dict[str, Any]] = []
    if with_torch:
        seconds = clock.left(_PAIR_SHARE if with_mpi else 1.0)
        with tempfile.TemporaryDirectory(prefix="sparsesync-doctor-") as folder:
            pair = ["--store", f"{folder}/store", "--ranks", "2"]
            commands = {rank: [*_links(seconds), *path, *ucx, *pair, "--rank", rank] for rank in ("0", "1")}
            outcomes = run_all(commands, seconds, interface)
        links += links_in(outcomes["0"], outcomes["1"].problem)
    if with_mpi:
        seconds = clock.left()
        program = shutil.which("mpirun")
        assert program is not None
        command = [program, "-np", "2", *_links(seconds), *path, *([] if with_torch else ucx)]
        links += links_in(processes.run(command, seconds, {**_of_open_mpi(interface["GLOO_SOCKET_IFNAME"]), **interface}))
    return links


def _of_open_mpi(interface: str) -> dict[str, str]:
    """Returns variables that let Open MPI start two processes over TCP anywhere, as options of mpirun would."""
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": interface,
    }


def links_in(outcome: Outcome, of_other: str = "") -> list[dict[str, Any]]:
    """Returns the links that a process reported. A link whose measurement began and did not end has the problem of the process.

    of_other: problem of the process at the other end.
    """
    links = [
        {"transport": each["link"], **{key: value for key, value in each.items() if key != "link"}}
        for each in outcome.facts
        if "link" in each
    ]
    for each in links:
        if "problem" in each and of_other:
            each["problem"] = f"{each['problem']}; the other process {of_other}"
    ended = {(each["transport"], each["path"]) for each in links}
    begun = [each for each in outcome.facts if "began" in each]
    for each in begun:
        if (each["began"], each["path"]) not in ended:
            problem = f"the measurement {outcome.problem or f'of the other process {of_other}'}"
            links.append({"transport": each["began"], "path": each["path"], "problem": problem})
    if not begun and outcome.problem:
        links.append({"transport": "all", "path": "", "problem": f"the measurement {outcome.problem}"})
    return links


# ---- Output


def as_text(findings: Findings) -> str:
    """Returns the findings as a table and a list."""
    header = ("part", "state", "detail")
    names = max(len(each) for each in [header[0], *(row.name for row in findings.rows)])
    indent = names + 2 + len("unusable") + 2
    lines = [f"{header[0]:{names}}  {header[1]:8}  {header[2]}", "-" * _WIDTH]
    for row in findings.rows:
        detail = textwrap.wrap(row.detail, max(20, _WIDTH - indent), break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"{row.name:{names}}  {row.state:8}  {detail[0]}".rstrip())
        lines += [" " * indent + each for each in detail[1:]]
    if findings.links:
        lines += ["", f"links: {_described(findings.links)}"]
    lines += ["", "To do:" if findings.todo else "Nothing to do."]
    for each in findings.todo:
        lines += textwrap.wrap(each, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    lines += ["", "Training is possible." if findings.usable else "Training is not possible: no transport is usable."]
    return "\n".join(lines) + "\n"


def _described(links: Sequence[Mapping[str, Any]]) -> str:
    measured = next((each for each in links if "ranks" in each), None)
    if measured is None:
        return "none could be measured"
    if any(each["path"] for each in links):
        return "latency and rate between two processes of this machine"
    machines = "1 machine" if measured["machines"] == 1 else f"{measured['machines']} machines"
    return f"mean latency of the links, and rate of the slowest one, in a ring of {measured['ranks']} ranks on {machines}"


def as_json(findings: Findings) -> str:
    """Returns the findings as JSON."""
    document = {
        "usable": findings.usable,
        "rows": [vars(row) for row in findings.rows],
        "links": findings.links,
        "todo": findings.todo,
    }
    return json.dumps(document, indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the findings. Returns 0 if training is possible, otherwise 1."""
    parser = argparse.ArgumentParser(
        prog="python -m sparsesync doctor",
        description="Prints what is installed, usable and missing, measures the links, and says what to do.\nUnder torchrun or mpirun, "
        "it examines all machines and measures the links between the ranks.\nThe exit status is 0 if training is possible, otherwise 1.",
        epilog="example:\n  python -m sparsesync doctor\n  torchrun --nproc-per-node 4 -m sparsesync doctor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--timeout", type=float, default=15.0, metavar="SECONDS", help="time limit of the command (%(default)g)")
    given = parser.parse_args(arguments)
    if not _LEAST_TIMEOUT_S <= given.timeout <= 3600:
        parser.error(f"--timeout {given.timeout:g}: give 1 to 3600 seconds")
    findings = examine(given.timeout)
    findings.sort()
    if prints():
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(as_json(findings) if given.json else as_text(findings))
    return 0 if findings.usable else 1
