"""Detects the launcher of this process from its environment variables. Imports neither torch nor compiled modules."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from sparsesync import errors

_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Ports for jobs of Slurm: below those that Linux assigns on request.
_FIRST_PORT, _PORTS = 20_000, 12_000
# Variables of the rank, the number of processes, and the rank and number on this host. Each launcher sets at least the first two.
_PMI = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST")  # srun sets all three, sbatch and salloc do not

# Variables of launchers other than Open MPI's mpirun: the number of processes, and the rank of this one.
_SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE")
_RANKS = ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PALS_RANKID")


def signs_of_others(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the environment variables that show that this process is one of several, as NAME=value."""
    least = {**dict.fromkeys(_SIZES, 2), **dict.fromkeys(_RANKS, 1)}
    return [
        f"{name}={environment[name]}"
        for name, at_least in least.items()
        if environment.get(name, "").isdecimal() and int(environment[name]) >= at_least
    ]


def started_by_mpirun(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether mpirun started this process directly, not torchrun within mpirun or within an MPI job."""
    if "OMPI_COMM_WORLD_SIZE" not in environment or "TORCHELASTIC_RUN_ID" in environment:
        return False
    named = [(environment.get(one), environment.get(other)) for one, other in _SAID_TWICE]
    return not started_by_torchrun(environment) or all(one == other for one, other in named)


_SAID_TWICE = (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"))


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the variables of torchrun are set."""
    return all(environment.get(name) for name in _TORCH)


def torch_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables that torchrun would set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK where it is known.

    MASTER_ADDR and MASTER_PORT stay those of the environment. Otherwise, the address is the first host of Slurm's step, and the
    port depends on the job and the step. If PMI's processes are on one host, the address is 127.0.0.1 and the port 29500. Empty if
    the environment does not describe two or more processes completely. Raises InputError if a variable is invalid.
    """
    found: dict[str, str] = {}
    if all(name in environment for name in _SLURM):
        rank, size, hosts = (environment[name] for name in _SLURM)
        found = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": first_host(hosts), "MASTER_PORT": str(_port_of_step(environment))}
        if "SLURM_LOCALID" in environment:
            found["LOCAL_RANK"] = environment["SLURM_LOCALID"]
    else:
        for rank, size, local_rank, local_size in _PMI:
            if rank in environment and size in environment:
                found = {"RANK": environment[rank], "WORLD_SIZE": environment[size]}
                if local_rank in environment:
                    found["LOCAL_RANK"] = environment[local_rank]
                if environment.get(local_size) == environment[size]:
                    found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
                break
    found |= {name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if environment.get(name)}
    if not all(name in found for name in _TORCH):
        return {}
    for name in ("RANK", "WORLD_SIZE"):
        if not found[name].isdecimal():
            raise errors.InputError(f"the launcher's {name} is '{found[name]}': it must be a whole number")
    return found if int(found["WORLD_SIZE"]) > 1 else {}


def first_host(nodelist: str) -> str:
    """Returns the first host of Slurm's notation, such as node07 of ``node[07-09,12],login``. Raises InputError if it is invalid."""
    match = re.fullmatch(r"((?:[^,\[\]\s]|\[[0-9]+[0-9,-]*\])+)(,.*)?", nodelist)
    if match is None:
        raise errors.InputError(f"SLURM_STEP_NODELIST='{nodelist}' names no host: set MASTER_ADDR to the host of rank 0")
    return re.sub(r"\[([0-9]+)[0-9,-]*\]", r"\1", match[1])


def _port_of_step(environment: Mapping[str, str]) -> int:
    """Returns a port that all processes of a step compute, and that steps of other jobs rarely have."""
    numbers = [environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    job, step = (int(each) if each.isdecimal() else 0 for each in numbers)
    return _FIRST_PORT + (job * 7 + step) % _PORTS
