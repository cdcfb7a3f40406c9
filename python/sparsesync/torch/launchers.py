"""Ranks and addresses of processes that Slurm, or a launcher with PMI or Open MPI's variables, started."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from sparsesync import _native

SCHEME = "launcher"  # torch.distributed.init_process_group(..., init_method="launcher://")

# Ports for jobs of Slurm: below those that Linux assigns on request.
_FIRST_PORT, _PORTS = 20_000, 12_000
# Variables of the rank, the number of processes, and the rank and number on this host. Each launcher sets at least the first two.
_PMI = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST")  # srun sets all three, sbatch and salloc do not
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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
            raise _native.InputError(f"the launcher's {name} is '{found[name]}': it must be a whole number")
    return found if int(found["WORLD_SIZE"]) > 1 else {}


def first_host(nodelist: str) -> str:
    """Returns the first host of Slurm's notation, such as node07 of ``node[07-09,12],login``. Raises InputError if it is invalid."""
    match = re.fullmatch(r"((?:[^,\[\]\s]|\[[0-9]+[0-9,-]*\])+)(,.*)?", nodelist)
    if match is None:
        raise _native.InputError(f"SLURM_STEP_NODELIST='{nodelist}' names no host: set MASTER_ADDR to the host of rank 0")
    return re.sub(r"\[([0-9]+)[0-9,-]*\]", r"\1", match[1])


def _port_of_step(environment: Mapping[str, str]) -> int:
    """Returns a port that all processes of a step compute, and that steps of other jobs rarely have."""
    numbers = [environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    job, step = (int(each) if each.isdecimal() else 0 for each in numbers)
    return _FIRST_PORT + (job * 7 + step) % _PORTS


def _rendezvous(_: str, timeout: datetime.timedelta = dist.default_pg_timeout, **more: Any) -> Iterator[Any]:
    """Connects processes for torch. Processes of torchrun, or with its variables, connect as with env://."""
    if not all(os.environ.get(name) for name in _TORCH):
        found = torch_variables()
        if not found:
            raise _native.InputError(
                "launcher://: neither torchrun, srun nor PMI started this process with others: set RANK, WORLD_SIZE, MASTER_ADDR and "
                "MASTER_PORT, or use another init_method"
            )
        os.environ.update(found)
    yield from rendezvous("env://", timeout=timeout, **more)


def register() -> None:
    """Registers ``init_method="launcher://"`` with torch.distributed."""
    register_rendezvous_handler(SCHEME, _rendezvous)  # type: ignore[no-untyped-call]
