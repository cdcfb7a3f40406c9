"""The program of torch_surface_test.py, started by torchrun: torch_surface_cases.py FOLDER. Each process writes its results to
FOLDER/RANK.json.

torch's groups have one Gloo thread here: with two, PyTorch 2.15 corrupts its heap.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import sparsesync
import torch
import torch.distributed as dist
from sparsesync.torch import DistributedDataParallel
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python/examples"))
import common


def net(seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * rank + step))


def gap(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def steps(rank: int) -> int:
    """Returns a worker's number of inputs. Worker 1 has fewer."""
    return 5 - 2 * rank


def joined(group: Any, schedule: str) -> torch.nn.Module:
    """Trains two models within a Join, one of them with torch's optimizer that shards its state."""
    modules = [net(1), net(2)]
    options: dict[str, Any] = {"process_group": group, "scheme": "balanced", "schedule": schedule, "deadline": 30}
    ddps = [DistributedDataParallel(each, **options) for each in modules]
    optimizers = [
        ZeroRedundancyOptimizer(modules[0].parameters(), torch.optim.Adam, process_group=group, lr=0.01),
        torch.optim.SGD(modules[1].parameters(), 0.1),
    ]
    with Join([*ddps, optimizers[0]], divide_by_initial_world_size=False):
        for step in range(steps(dist.get_rank())):
            for each in optimizers:
                each.zero_grad()
            for each in ddps:
                each(inputs(dist.get_rank(), step)).square().mean().backward()
            for each in optimizers:
                each.step()
    for each in ddps:  # a later step is outside the Join
        each(inputs(0, 0)).sum().backward()
    return torch.nn.ModuleList(modules)


def joined_by_hand() -> torch.nn.Module:
    """Trains the same in one process. Gradients are means over the workers that have inputs. On workers without inputs, torch's
    ZeroRedundancyOptimizer steps with old gradients, because its DistributedDataParallel writes none there.
    """
    modules = [net(1), net(2)]
    optimizers = [torch.optim.Adam(modules[0].parameters(), 0.01), torch.optim.SGD(modules[1].parameters(), 0.1)]
    for step in range(steps(0)):
        active = [rank for rank in range(dist.get_world_size()) if step < steps(rank)]
        for module, optimizer in zip(modules, optimizers, strict=True):
            optimizer.zero_grad()
            for rank in active:
                (module(inputs(rank, step)).square().mean() / len(active)).backward()
            optimizer.step()
    return torch.nn.ModuleList(modules)


def throws(group: Any) -> str:
    ddp = DistributedDataParallel(net(), process_group=group, scheme="balanced", deadline=30)
    try:
        with Join([ddp], throw_on_early_termination=True):
            for step in range(3 + dist.get_rank()):
                ddp(inputs(0, step)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def exchanged(group: Any) -> list[float]:
    """Exchanges DCP's state dicts between torch's wrapper, sparsesync's and the bare module, in all directions."""
    torchs = torch.nn.parallel.DistributedDataParallel(net(3), process_group=group)
    made = {"torch": torchs, "ours": DistributedDataParallel(net(4), process_group=group, scheme="balanced"), "bare": net(5)}
    found = []
    for source in made.values():
        for target in made.values():
            fresh = {name: each + 1 for name, each in get_model_state_dict(source).items()}
            set_model_state_dict(target, dict(fresh))  # modifies its argument
            found.append(max(float((fresh[name] - each).abs().max()) for name, each in get_model_state_dict(target).items()))
    return found


def meshes() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    workers = dist.get_world_size()
    ddp = DistributedDataParallel(net(), device_mesh=init_device_mesh("cpu", (workers,)), scheme="balanced")
    found: dict[str, Any] = {"workers": ddp.world_size, "dimensions": ddp.device_mesh.ndim}
    both = init_device_mesh("cpu", (workers, 1), mesh_dim_names=("dp", "tp"))
    try:
        DistributedDataParallel(net(), device_mesh=both)
    except sparsesync.InputError as error:
        found["two dimensions"] = str(error)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    expected = copy.deepcopy(module)
    parallelize_module(module, both["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    sharded = DistributedDataParallel(module, device_mesh=both["dp"], scheme="balanced")
    parameters = list(sharded.parameters())  # torch's hooks remove them from the module in the first pass
    optimizers = [torch.optim.SGD(each, 0.1) for each in (parameters, list(expected.parameters()))]
    for step in range(3):
        for each in optimizers:
            each.zero_grad()
        sharded(inputs(dist.get_rank(), step)).sum().backward()
        for rank in range(workers):
            (expected(inputs(rank, step)).sum() / workers).backward()
        for each in optimizers:
            each.step()
    found["tensor parallel"] = max(
        float((a - b).detach().abs().max()) for a, b in zip(parameters, expected.parameters(), strict=True)
    )
    return found


def fused(group: Any) -> float:
    """Compares an optimizer that steps within backward() with one that steps after it."""
    module, expected = net(), net()
    ddp = DistributedDataParallel(module, process_group=group, scheme="balanced")
    ddp._register_fused_optim(torch.optim.SGD, 0.1, momentum=0.5)
    other = DistributedDataParallel(expected, process_group=group, scheme="balanced")
    optimizer = torch.optim.SGD(expected.parameters(), 0.1, momentum=0.5)
    for step in range(3):
        ddp(inputs(dist.get_rank(), step)).square().mean().backward()
        optimizer.zero_grad()
        other(inputs(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
    assert all(each.grad is None for each in module.parameters())
    return gap(module, expected)


def main() -> None:
    dist.init_process_group("gloo")
    group = common.gloo_group(threads=1)
    found: dict[str, Any] = {}
    torchs = torch.nn.parallel.DistributedDataParallel
    found["join"] = {schedule: gap(joined(group, schedule), joined_by_hand()) for schedule in ("lazy", "dear")}
    found["throws"] = throws(group)
    found["dcp"] = exchanged(group)
    found["meshes"] = meshes()
    found["fused"] = fused(group)
    ddp = DistributedDataParallel(net(), process_group=group)
    found["group"] = ddp.process_group is group and ddp.join_process_group is group
    found["logged"] = ddp._get_ddp_logging_data()
    found["torch logs"] = sorted(torchs(net(), process_group=group)._get_ddp_logging_data())
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
