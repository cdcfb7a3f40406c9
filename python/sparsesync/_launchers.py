"""Detects the launcher of this process from its environment variables. Imports neither torch nor compiled modules."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Variables of launchers that are not supported: the number of processes, and the rank of this one.
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
    return all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
