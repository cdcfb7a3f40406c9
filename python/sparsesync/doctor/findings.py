"""Findings of the check: rows of the table, and what to do about the parts that are missing."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from sparsesync import _laboratory, _launchers
from sparsesync import _units as units
from sparsesync.doctor import environment
from sparsesync.doctor.host import Host
from sparsesync.doctor.processes import IN_TIME, Outcome

State = Literal["ok", "missing", "unusable"]
OLDEST_TORCH, OLDEST_WITH_BACKEND = (2, 6), (2, 15)
# Rows whose details must be equal on all machines.
_EQUAL = ("sparsesync", "torch", "UCX", "NCCL")
_AGAIN = "A check did not end in time: if the machine is busy, repeat it with a longer --timeout."
_ORDER = (
    "sparsesync", "machine", "laboratory", "Python", "NumPy", "torch", "torch backend", "Gloo", "UCX", "MPI", "mpirun", "GPU", "NCCL",
    "network", "launcher", "environment",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """A part of the installation."""

    name: str
    state: State
    detail: str


@dataclasses.dataclass
class Findings:
    """The rows of the table, the links, and instructions."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    links: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    todo: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, state: State, detail: str, *todo: str) -> None:
        """Adds a row, and instructions that are not listed yet."""
        self.rows.append(Row(name, state, detail))
        sentences = [_AGAIN if IN_TIME in each else each if each.endswith((".", "!")) else f"{each}." for each in todo]
        self.todo = list(dict.fromkeys([*self.todo, *sentences]))

    def sort(self) -> None:
        """Sorts the rows, links last."""
        self.rows.sort(key=lambda row: _ORDER.index(row.name) if row.name in _ORDER else len(_ORDER))

    def is_ok(self, name: str) -> bool:
        """Returns whether the first row of this name is ok."""
        return next((row.state == "ok" for row in self.rows if row.name == name), False)

    @property
    def usable(self) -> bool:
        """Whether workers were connected over any transport."""
        return any("problem" not in link for link in self.links)


def version_of(text: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version."""
    numbers = []
    for part in text.split(".")[:2]:
        digits = "".join(each for each in part if each.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def facts_of(outcome: Outcome) -> dict[str, Any]:
    """Returns the facts of a probe; those of one that crashed have its problem."""
    found = dict(outcome.facts[0]) if outcome.facts else {}
    if outcome.problem and "problem" not in found:
        found["problem"] = f"the probe {outcome.problem}"
    return found


def _state(facts: Mapping[str, Any]) -> State:
    return "ok" if not facts.get("problem") else "missing" if facts.get("missing") else "unusable"


# ---- Parts


def add_build(findings: Findings, outcome: Outcome) -> bool:
    """Adds the rows of the library. Returns whether its compiled module can be loaded."""
    facts = facts_of(outcome)
    problem = facts.get("problem")
    if problem:
        findings.add("sparsesync", "unusable", problem, f"Build and install sparsesync for this Python and machine: {problem}")
    else:
        findings.add("sparsesync", "ok", "{version} ({commit}), {compiler}, {build}".format(**facts))
        findings.add("machine", "ok", f"{facts['cpu'] or platform.machine()}, {facts['cores']} cores, {facts['os']}")
    if _laboratory.has_laboratory():
        findings.add("laboratory", "ok", "profile, compare and plan")
    else:
        findings.add(
            "laboratory",
            "missing",
            "this build has no profile, compare and plan",
            "To use profile, compare and plan, install with `pip install . -C cmake.define.SPARSESYNC_ANALYSIS=ON`.",
        )
    return not problem


def add_python(findings: Findings, numpy: Outcome) -> None:
    """Adds the rows of Python and NumPy."""
    findings.add("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    facts = facts_of(numpy)
    if not facts.get("problem"):
        findings.add("NumPy", "ok", facts["version"])
    else:
        findings.add("NumPy", _state(facts), facts["problem"], "Install NumPy 1.26 or later: `pip install numpy`.")


def add_torch(findings: Findings, outcome: Outcome, host: Host) -> None:
    """Adds the rows of torch, of the backend of this library, and of Gloo."""
    facts = facts_of(outcome)
    version = facts.get("version", "")
    install = "Install torch 2.6 or later to use sparsesync.torch: `pip install torch`."
    if version and version_of(version) < OLDEST_TORCH:
        findings.add("torch", "unusable", f"{version} is older than 2.6", install)
    elif facts.get("problem"):
        detail = f"{version}: {facts['problem']}" if version else facts["problem"]
        repair = install if facts.get("missing") else f"Reinstall torch or sparsesync: {facts['problem']}"
        findings.add("torch", _state(facts), detail, repair)
    else:
        findings.add("torch", "ok", version)
    if not findings.is_ok("torch"):
        findings.add("torch backend", "missing", "needs torch")
        findings.add("Gloo", "missing", "needs torch")
        return
    if version_of(version) < OLDEST_WITH_BACKEND:
        findings.add(
            "torch backend",
            "missing",
            f"init_process_group('sparsesync') needs torch 2.15, and this is {version}",
            "To use the backend sparsesync, install torch 2.15 or later, or wrap the model with sparsesync.torch.DistributedDataParallel.",
        )
    else:
        findings.add("torch backend", "ok", "init_process_group('sparsesync')")
    if not facts["gloo"]:
        findings.add("Gloo", "missing", "this build of torch has no Gloo", "Install a torch with Gloo, or start programs with mpirun.")
    else:
        _add_gloo(findings, host)


def _add_gloo(findings: Findings, host: Host) -> None:
    given = os.environ.get("GLOO_SOCKET_IFNAME")
    if given:
        unknown = [each for each in given.split(",") if each not in host.interfaces]
        if unknown:
            detail = f"GLOO_SOCKET_IFNAME names {unknown[0]}, which is not an interface of this machine"
            findings.add("Gloo", "unusable", detail, f"Set GLOO_SOCKET_IFNAME to one of {', '.join(host.interfaces)}.")
        else:
            findings.add("Gloo", "ok", f"GLOO_SOCKET_IFNAME={given}")
    elif host.resolved.startswith("127."):
        findings.add(
            "Gloo",
            "ok",
            f"on this machine only: the host name {host.name} is {host.resolved}",
            f"To train on several machines, set GLOO_SOCKET_IFNAME on each to the interface between them, such as {host.interface}.",
        )
    else:
        findings.add("Gloo", "ok", f"the host name {host.name} is {host.resolved or 'unknown: Gloo uses the loopback interface'}")


def add_mpi(findings: Findings, facts: Mapping[str, Any] | None) -> None:
    """Adds the rows of MPI. facts: None if MPI was not examined."""
    program = shutil.which("mpirun")
    if facts is None:
        findings.add("MPI", "missing", "not examined")
    elif facts.get("problem"):
        problem = facts["problem"]
        state: State = "missing" if "this build has no MPI" in problem or "cannot load" in problem else "unusable"
        todo = f"To train over MPI, install it: {problem}" if state == "missing" else f"Repair MPI: {problem}"
        # Without mpirun, MPI cannot start, and installing mpirun is the remedy.
        findings.add("MPI", state, problem, *([todo] if program or state == "missing" else []))
    else:
        findings.add("MPI", "ok", facts.get("version") or "starts")
    if program:
        findings.add("mpirun", "ok", program)
    else:
        findings.add(
            "mpirun", "missing", "not on PATH", "To start programs with mpirun, install Open MPI (Debian: openmpi-bin), or add it to PATH."
        )


def add_ucx(findings: Findings, outcome: Outcome) -> None:
    """Adds the row of UCX."""
    facts = facts_of(outcome)
    problem = facts.get("problem", "")
    if not problem:
        settings = [f"{name}={os.environ[name]}" for name in ("UCX_TLS", "UCX_NET_DEVICES") if name in os.environ]
        findings.add("UCX", "ok", ", ".join([facts["version"], *settings]))
        return
    state: State = "missing" if "cannot load UCX" in problem or "has no UCX" in problem else "unusable"
    slower = "without UCX, steps take up to twice as long"
    if "SPARSESYNC_UCX_LIBRARY" in os.environ and "SPARSESYNC_UCX_LIBRARY" in problem:
        todo = f"Set SPARSESYNC_UCX_LIBRARY to libucp.so.0 or to the folder of this file, or unset it: {slower}."
    elif "has no UCX" in problem:
        todo = f"Install libucx-dev and build sparsesync with -DSPARSESYNC_UCX=ON: {slower}."
    else:
        todo = f"Install UCX 1.13 or later (Debian: libucx0), or set SPARSESYNC_UCX_LIBRARY to its libucp.so.0: {slower}."
    findings.add("UCX", state, problem, todo)


def add_gpu(findings: Findings, outcome: Outcome) -> None:
    """Adds the rows of GPUs and NCCL."""
    facts = facts_of(outcome)
    if "compiled_in" not in facts:
        findings.add("GPU", "unusable", facts["problem"], f"Repair the NVIDIA driver or NCCL: {facts['problem']}")
        return
    names = facts["driver"]
    support = "emulated on the host" if facts["emulated"] else "CUDA compiled in" if facts["compiled_in"] else "this build has no CUDA"
    detail = f"{'; '.join(f'{name} (driver {driver})' for name, _, driver in (each.rpartition(', ') for each in names))}; {support}"
    if not names and not facts["emulated"]:
        findings.add("GPU", "missing", f"no NVIDIA driver; {support}")
    elif not facts["compiled_in"]:
        findings.add("GPU", "unusable", detail, "To train on GPUs, install with `pip install . -C cmake.define.SPARSESYNC_CUDA=ON`.")
    elif facts["problem"]:
        findings.add("GPU", "unusable", f"{detail}: {facts['problem']}", f"Repair the GPU or its driver: {facts['problem']}")
    else:
        findings.add("GPU", "ok", detail if names else support)
    if facts["nccl"]:
        findings.add("NCCL", "ok", facts["nccl"])
    else:
        todo = ["To connect GPUs directly, install NCCL 2.18 or later, or add its folder to LD_LIBRARY_PATH."]
        findings.add("NCCL", "missing", facts["nccl_problem"], *(todo if names and facts["compiled_in"] else []))


def add_environment(findings: Findings, variables: Mapping[str, str]) -> None:
    """Adds the row of the environment variables."""
    unknown = environment.unknown(variables)
    known = sorted(f"{name}={value}" for name, value in variables.items() if name in environment.KNOWN)
    if unknown:
        findings.add("environment", "unusable", f"unknown: {', '.join(unknown)}", *map(environment.remedy, unknown))
    else:
        findings.add("environment", "ok", ", ".join(known) or f"no variable {environment.PREFIX}...")


def add_launcher(findings: Findings) -> None:
    """Adds the row of the launcher."""
    signs = _launchers.signs_of_others()
    if _launchers.started_by_mpirun():
        findings.add("launcher", "ok", f"mpirun, {os.environ['OMPI_COMM_WORLD_SIZE']} processes")
    elif _launchers.started_by_torchrun():
        name = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "the variables of torchrun, srun or PMI"
        findings.add("launcher", "ok", f"{name}, {os.environ['WORLD_SIZE']} processes")
    elif signs:
        findings.add(
            "launcher",
            "unusable",
            f"{', '.join(signs)} shows other processes, which cannot be reached",
            "Start the program with torchrun, srun or Open MPI's mpirun.",
        )
    else:
        findings.add("launcher", "ok", "none")


# ---- Network, links and other machines


def add_network(findings: Findings, host: Host) -> None:
    """Adds the row of the network devices."""
    folder = pathlib.Path("/sys/class/infiniband")
    rdma = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    findings.add("network", "ok", f"{host.interface} ({host.address}); RDMA devices: {', '.join(rdma) or 'none'}")


def add_links(findings: Findings, links: Iterable[dict[str, Any]]) -> None:
    """Adds a row for each measured link, and for each that failed."""
    for link in links:
        findings.links.append(link)
        name = f"link {link['transport']}"
        if "problem" in link:
            problem = link["problem"]
            findings.add(name, "unusable", f"{_prefix(link)}{problem}", f"Repair the links over {link['transport']}: {problem}")
        elif link["ranks"] == 1:
            findings.add(name, "ok", "one rank: there is no link to measure")
        else:
            findings.add(name, "ok", f"{_prefix(link)}{units.seconds(link['latency_s'])}, {units.rate(link['rate_bps'])}")


def _prefix(link: Mapping[str, Any]) -> str:
    return f"{link['path']}: " if link["path"] else ""


def merge(findings: Findings, gathered: list[dict[str, Any]]) -> None:
    """Adds the rows of other machines that differ from those of this one, and their instructions."""
    own = {row.name: row for row in findings.rows}
    for rank, (host, facts) in enumerate((each["host"], each["facts"]) for each in gathered):
        if rank == 0 or facts is None:
            continue
        for row in (Row(**each) for each in facts["rows"]):
            before = own.get(row.name)
            if before is not None and before.state == row.state and (row.name not in _EQUAL or before.detail == row.detail):
                continue
            todo = [f"Install the same version of {row.name} on all machines."] if row.name in _EQUAL else []
            findings.add(row.name, row.state, f"rank {rank} on {host}: {row.detail}", *todo)
        findings.todo += [f"On {host}: {each}" for each in facts["todo"] if each not in findings.todo]
