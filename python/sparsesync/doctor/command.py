"""The command ``python -m sparsesync doctor``: runs all probes and prints the findings."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import sys
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
from sparsesync.errors import InputError

_LEAST_TIMEOUT_S = 1.0
_PROBES_SHARE = 0.5  # share of the time limit
_PAIR_SHARE = 0.7  # share for the first pair of processes; the second one gets what is left
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


def run_all(commands: Mapping[str, Sequence[str]], seconds: float) -> dict[str, Outcome]:
    """Runs commands at the same time. Returns their outcomes by name."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(commands))) as pool:
        started = {name: pool.submit(processes.run, command, seconds) for name, command in commands.items()}
        return {name: each.result() for name, each in started.items()}


def examine(timeout_s: float) -> Findings:
    """Examines this machine and measures links, for at most ``timeout_s`` seconds."""
    clock = Clock(timeout_s)
    findings = Findings()
    if _is_launched():
        _examine_ranks(findings, clock)
    else:
        _examine_here(findings, clock)
    return findings


def _examine_here(findings: Findings, clock: Clock) -> None:
    """Adds the findings of a process that no launcher started."""
    host = Host.here()
    if _launchers.signs_of_others():
        outcomes = probe_all([*PROBES], clock.left(_PROBES_SHARE))
        if _add_machine(findings, host, outcomes):
            found.add_mpi(findings, found.facts_of(outcomes["mpi"]))
        return
    # Importing torch takes the longest, so the processes that measure links begin at once, and also report on torch.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pair = pool.submit(_run_pair, host, clock.left(_PAIR_SHARE if shutil.which("mpirun") else 1.0))
        outcomes = probe_all([name for name in PROBES if name != "torch"], clock.left(_PROBES_SHARE))
        by_pair = pair.result()
    of_torch = [each["torch"] for each in by_pair.facts if "torch" in each]
    outcomes["torch"] = Outcome(of_torch, "" if of_torch else by_pair.problem)
    if not _add_machine(findings, host, outcomes):
        return
    found.add_mpi(findings, found.facts_of(outcomes["mpi"]))
    links = links_in(by_pair) if findings.is_ok("Gloo") else []
    if findings.is_ok("MPI") and findings.is_ok("mpirun"):
        links += _measure_mpi(host, clock.left(), with_ucx=findings.is_ok("UCX") and not links)
    found.add_links(findings, links)


def _examine_ranks(findings: Findings, clock: Clock) -> None:
    """Adds the findings of a process of a launcher: those of its machine, of all links, and of other machines."""
    # A rank initializes MPI once, to measure its links.
    with_mpi = "OMPI_COMM_WORLD_SIZE" not in os.environ
    examines, mpi = _is_first_of_machine(), None
    if examines:
        outcomes = probe_all([name for name in PROBES if with_mpi or name != "mpi"], clock.left(_PROBES_SHARE))
        if _add_machine(findings, Host.here(), outcomes) and with_mpi:
            mpi = found.facts_of(outcomes["mpi"])
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


def _add_machine(findings: Findings, host: Host, outcomes: Mapping[str, Outcome]) -> bool:
    """Adds the rows of this machine, except those of MPI. Returns whether the compiled module can be loaded."""
    loads = found.add_build(findings, outcomes["build"])
    found.add_python(findings, outcomes["numpy"])
    found.add_network(findings, host)
    found.add_launcher(findings)
    found.add_environment(findings, os.environ)
    if loads:  # otherwise the other probes fail for the same reason
        found.add_torch(findings, outcomes["torch"], host)
        found.add_ucx(findings, outcomes["ucx"])
        found.add_gpu(findings, outcomes["gpu"])
    return loads


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


def _run_pair(host: Host, seconds: float) -> Outcome:
    """Examines torch, and measures the links between two processes of this machine over Gloo and UCX."""
    environment = {"GLOO_SOCKET_IFNAME": host.interface, **os.environ}
    return processes.run([*_links(seconds), "--pair", "--ucx", *_path(environment)], seconds, environment)


def _measure_mpi(host: Host, seconds: float, with_ucx: bool) -> list[dict[str, Any]]:
    """Measures the links between two processes of this machine that mpirun starts."""
    environment = {"GLOO_SOCKET_IFNAME": host.interface, **os.environ}
    program = shutil.which("mpirun")
    assert program is not None
    command = [program, "-np", "2", *_links(seconds), *_path(environment), *(["--ucx"] if with_ucx else [])]
    return links_in(processes.run(command, seconds, {**_of_open_mpi(environment["GLOO_SOCKET_IFNAME"]), **environment}))


def _path(environment: Mapping[str, str]) -> list[str]:
    return ["--path", f"TCP over {environment['GLOO_SOCKET_IFNAME']}"]


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


def links_in(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns the links that a process reported. A link whose measurement began and did not end has the problem of the process."""
    links = [
        {"transport": each["link"], **{key: value for key, value in each.items() if key != "link"}}
        for each in outcome.facts
        if "link" in each
    ]
    ended = {(each["transport"], each["path"]) for each in links}
    begun = [each for each in outcome.facts if "began" in each]
    for each in begun:
        if (each["began"], each["path"]) not in ended:
            links.append({"transport": each["began"], "path": each["path"], "problem": f"the measurement {outcome.problem}"})
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
    if measured["ranks"] == 1:
        return "none, because there is one rank"
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
        description="Prints what is installed, usable and missing, measures the links, and says what to do.\n"
        "Under torchrun, srun or mpirun, it examines all machines and measures the links between the ranks.\n"
        "The exit status is 0 if training is possible, otherwise 1.",
        epilog="example:\n  python -m sparsesync doctor\n  torchrun --nproc-per-node 4 -m sparsesync doctor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--timeout", type=float, default=15.0, metavar="SECONDS", help="time limit of the command (%(default)g)")
    given = parser.parse_args(arguments)
    if not _LEAST_TIMEOUT_S <= given.timeout <= 3600:
        parser.error(f"--timeout {given.timeout:g}: give 1 to 3600 seconds")
    if not _is_launched():
        try:
            os.environ.update(_launchers.torch_variables())
        except InputError as error:  # a variable of srun or PMI is invalid
            parser.error(str(error))
    findings = examine(given.timeout)
    findings.sort()
    if prints():
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(as_json(findings) if given.json else as_text(findings))
    return 0 if findings.usable else 1
