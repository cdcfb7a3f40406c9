"""Processes that find each other through the variables of Slurm, PMI and Open MPI."""
# ctest: PROCESSORS 2

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching
import sparsesync
import torch
from sparsesync import _launchers as launchers
from sparsesync.torch import launch

WORKERS = 2
PROGRAM = """
import json, os, sys
import sparsesync.torch, torch
import torch.distributed as dist
by, path = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Embedding(1000, 4, sparse=True)
if by == "wrapper":
    ddp = sparsesync.torch.DistributedDataParallel(model, scheme="balanced")
else:
    dist.init_process_group("sparsesync", init_method="launcher://")
    ddp = torch.nn.parallel.DistributedDataParallel(model)
rank = dist.get_rank()
ddp(torch.tensor([rank, 2, 7 + rank])).sum().backward()
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
sent = ddp.statistics() if by == "wrapper" else backend.reducer(torch.device("cpu")).counters()
found = {"rank": rank, "workers": dist.get_world_size(), "backend": dist.get_backend(), "sent": sent["bytes_sent"]}
found["rows"], found["values"] = model.weight.grad.indices()[0].tolist(), model.weight.grad.values()[:, 0].tolist()
found["variables"] = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
if by == "wrapper":
    ddp.close()
dist.destroy_process_group()
json.dump(found, open(path, "w"))
"""
FOREIGN = re.compile("RANK|WORLD_SIZE|LOCAL_RANK|MASTER_.*|SLURM_.*|PMI_.*|MPI_LOCAL.*|OMPI_.*|MV2_.*|TORCHELASTIC_.*")


def trained(by: str, folder: Path, of_ranks: list[dict[str, str]]) -> list[Any]:
    """Starts a process with the variables of each rank, and returns their results."""
    clean = {name: value for name, value in launching.environment().items() if not FOREIGN.fullmatch(name)}
    paths = [folder / f"{rank}.json" for rank in range(len(of_ranks))]
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, by, str(path)], env={**clean, **variables})
        for path, variables in zip(paths, of_ranks, strict=True)
    ]
    try:
        assert [each.wait(120) for each in processes] == [0] * len(processes)
    finally:
        for each in processes:
            each.kill()
            each.wait()
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def expect_trained(found: list[Any], backend: str) -> None:
    for rank, each in enumerate(found):
        assert (each["rank"], each["workers"], each["backend"]) == (rank, WORKERS, backend), found
        assert (each["rows"], each["values"]) == ([0, 1, 2, 7, 8], [0.5, 0.5, 1.0, 0.5, 0.5]), found
        assert each["sent"] > 0, found


def slurm(rank: int, job: int, hosts: str) -> dict[str, str]:
    of_step = {"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": str(WORKERS), "SLURM_STEP_NODELIST": hosts}
    return {"SLURM_JOB_ID": str(job), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **of_step}


def job_with_free_port() -> int:
    """Returns the number of a job whose port is free."""
    while True:
        job = random.SystemRandom().randrange(10**6)
        port = int(launchers.torch_variables(slurm(0, job, "localhost"))["MASTER_PORT"])
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return job


@pytest.mark.parametrize(("by", "backend"), [("wrapper", "gloo"), ("backend", "sparsesync")])
def test_slurm(by: str, backend: str, tmp_path: Path) -> None:
    job = job_with_free_port()
    found = trained(by, tmp_path, [slurm(rank, job, "localhost,elsewhere[01-17]") for rank in range(WORKERS)])
    expect_trained(found, backend)
    for rank, each in enumerate(found):
        assert each["variables"]["MASTER_ADDR"] == "localhost"
        assert each["variables"]["LOCAL_RANK"] == str(rank)


@pytest.mark.parametrize(("by", "backend"), [("wrapper", "gloo"), ("backend", "sparsesync")])
def test_pmi_on_one_host(by: str, backend: str, tmp_path: Path) -> None:
    size, port = str(WORKERS), str(launching.free_port())
    pmi = {"PMI_SIZE": size, "MPI_LOCALNRANKS": size, "MASTER_PORT": port}
    of_ranks = [{**pmi, "PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)} for rank in range(WORKERS)]
    found = trained(by, tmp_path, of_ranks)
    expect_trained(found, backend)
    assert [each["variables"]["MASTER_ADDR"] for each in found] == ["127.0.0.1"] * WORKERS


def test_the_line_of_the_guide_is_that_of_the_program() -> None:
    page = (launching.ROOT / "docs/guide/frameworks.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^## Slurm and MPI\n.*?```python\n(.*?)```", page, flags=re.DOTALL | re.MULTILINE)
    assert line in PROGRAM.replace("    dist.", "dist.")


def test_the_backend_under_open_mpis_mpirun(tmp_path: Path) -> None:
    """The backend needs no MPI, unlike the wrapper."""
    size, address = str(WORKERS), {"MASTER_ADDR": "localhost", "MASTER_PORT": str(launching.free_port())}
    of_ranks = [
        {"OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), **address}
        for rank in range(WORKERS)
    ]
    expect_trained(trained("backend", tmp_path, of_ranks), "sparsesync")


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node7", "node7"),
        ("node07,node08", "node07"),
        ("node[07-09,12],login", "node07"),
        ("node[3,5]", "node3"),
        ("rack[1-2]n[04-06].example,other", "rack1n04.example"),
        ("a-b_c.d", "a-b_c.d"),
    ],
)
def test_the_first_host_of_slurms_notation(nodelist: str, first: str) -> None:
    assert launchers.first_host(nodelist) == first


@pytest.mark.parametrize("nodelist", ["", "[", ",node1", "node[a]"])
def test_an_invalid_list_of_hosts(nodelist: str) -> None:
    with pytest.raises(sparsesync.InputError, match="names no host: set MASTER_ADDR"):
        launchers.first_host(nodelist)


TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, {}),
        (slurm(1, 10, "n[2-3]"), {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n2", "MASTER_PORT": "20073"}),
        ({**slurm(1, 10, "n[2-3]"), "MASTER_ADDR": "a", "MASTER_PORT": "5"}, {**TORCH, "LOCAL_RANK": "1"}),
        ({**slurm(1, 10, "n2"), "SLURM_STEP_NUM_TASKS": "1"}, {}),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[2-3]", "SLURM_JOB_ID": "10"}, {}),  # a batch script
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {}),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, TORCH),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, {}),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, TORCH),
        ({"PMIX_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, {}),
    ],
)
def test_the_variables_of_torch(environment: dict[str, str], found: dict[str, str]) -> None:
    assert launchers.torch_variables(environment) == found


def test_steps_of_a_job_have_different_ports() -> None:
    steps = [{**slurm(0, job, "a"), "SLURM_STEP_ID": str(step)} for job in (7, 8) for step in range(7)]
    ports = {launchers.torch_variables(each)["MASTER_PORT"] for each in steps}
    assert len(ports) == 14
    assert all(20_000 <= int(each) < 32_000 for each in ports)


def test_a_rank_that_is_not_a_number() -> None:
    with pytest.raises(sparsesync.InputError, match="the launcher's RANK is 'x': it must be a whole number"):
        launchers.torch_variables({**slurm(0, 10, "a"), "SLURM_PROCID": "x"})


def test_without_an_address_an_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if FOREIGN.fullmatch(name):
            monkeypatch.delenv(name)
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sparsesync.InputError, match="set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port of it"):
        launch.find(None, 5)
    with pytest.raises(sparsesync.InputError, match="launcher://: neither torchrun, srun nor PMI .* set RANK, WORLD_SIZE, MASTER_ADDR and"):
        torch.distributed.init_process_group("sparsesync", init_method="launcher://")
