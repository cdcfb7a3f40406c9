"""Tests the arguments and attributes of torch's DistributedDataParallel in the tables of docs/guide/ddp.md."""
# ctest: SLOW torchrun

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching
import sparsesync
import torch
import torch.distributed as dist
from sparsesync.torch import DistributedDataParallel, local_group, torch_surface, wrap_optimizer
from workers import good, run_workers, seeded

TorchDistributedDataParallel = torch.nn.parallel.DistributedDataParallel
GUIDE = (launching.ROOT / "docs/guide/ddp.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Returns the names in backquotes in the first column, row by row."""
    (rows,) = re.findall(rf"^\| {heading} \| \|\n\|---\|---\|\n((?:\|.*\n)+)", GUIDE, flags=re.MULTILINE)
    return [re.findall(r"`([^`]*)`", row.split(" | ")[0]) for row in rows.splitlines()]


def documented(heading: str) -> list[tuple[str, str]]:
    return [tuple(each.split("=", 1)) for row in table(heading) for each in row]


def of(parameters: list[inspect.Parameter]) -> list[tuple[str, str]]:
    return [(each.name, repr(each.default).replace("'", '"')) for each in parameters]


def wrapped(module: Any, **options: Any) -> Any:
    return DistributedDataParallel(module, process_group="alone", **{"scheme": "balanced", **options})


def test_the_tables_have_all_arguments_of_the_installed_torch() -> None:
    theirs = list(inspect.signature(TorchDistributedDataParallel.__init__).parameters.values())[2:]
    ours = list(inspect.signature(DistributedDataParallel.__init__).parameters.values())[2:]
    by_name = [each for each in ours if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert of(ours[: -len(by_name)]) == of(theirs), "torch has other arguments: support them, and add them to docs/guide/ddp.md"
    assert documented("torch's argument") == of(theirs)
    assert documented("argument") == of(by_name)


def test_the_table_has_all_public_attributes_of_the_installed_torch() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        theirs = TorchDistributedDataParallel(torch.nn.Linear(2, 2))
        ours = DistributedDataParallel(torch.nn.Linear(2, 2), scheme="balanced")
        plain = torch.nn.Module()
        public = {each for each in dir(theirs) if not each.startswith("_") and not hasattr(plain, each)}
        names = [each for row in table("torch's attribute") for each in row]
        assert {each for each in names if not each.startswith("_")} == public, "torch has other attributes: add them to docs/guide/ddp.md"
        for each in names:
            getattr(ours, each)
        same = "device device_type device_ids output_device dim process_group forward_sync_buffers broadcast_buffers static_graph"
        for each in f"{same} bucket_bytes_cap bucket_bytes_cap_list bucket_bytes_cap_default parameters_to_ignore modules_buffers".split():
            assert getattr(ours, each) == getattr(theirs, each), each
    finally:
        dist.destroy_process_group()


def test_every_method_of_torchs_is_replaced_or_refused() -> None:
    ddp = wrapped(torch.nn.Linear(2, 2))
    assert isinstance(ddp, TorchDistributedDataParallel)
    for name, value in vars(TorchDistributedDataParallel).items():
        if name.startswith("__") or not callable(value) or name in torch_surface._KEPT:
            continue
        assert getattr(DistributedDataParallel, name) is not value, name
        assert any(name in vars(each) for each in DistributedDataParallel.__mro__[:2]), name
    for name in ("_pre_forward", "_ddp_init_helper", "register_comm_hook"):
        with pytest.raises(sparsesync.UnsupportedError, match=f"^{name}: "):
            getattr(ddp, name)()
    for name in ("reducer", "logger"):
        with pytest.raises(sparsesync.UnsupportedError, match=rf"^{name}.something: .*statistics\(\)"):
            getattr(ddp, name).something()


def test_under_torchrun(tmp_path: Path) -> None:
    """Tests Join, DCP, meshes and fused optimizers with torch's groups."""
    found = launching.outcomes(launching.torchrun(2, Path(__file__).with_name("torch_surface_cases.py"), tmp_path), tmp_path, 2)
    for rank, each in enumerate(found):
        assert each["join"] == {"lazy": 0, "dear": 0}
        assert ("Throwing across all ranks" if rank else "exhausted all inputs") in each["throws"]
        assert each["dcp"] == [0] * 9
        assert each["meshes"]["workers"] == 2
        assert "device_mesh['dp']" in each["meshes"]["two dimensions"]
        assert each["meshes"]["tensor parallel"] < 1e-6
        assert each["fused"] < 1e-6
        assert each["group"]
        assert each["logged"]["rank"] == rank
        unknown = {"bucket_sizes", "cuda_visible_devices", "torch_distributed_debug"}
        assert set(each["torch logs"]) - set(each["logged"]) <= unknown


# ---- Arguments and their meaning.


def counting(rank: int) -> Any:
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.fill_(float(rank))
    module.register_buffer("seen", torch.full((1,), float(rank)))
    return module


@pytest.mark.parametrize(
    ("options", "weight", "at_start", "after"),
    [
        ({}, 0, 0, 0),
        ({"broadcast_buffers": False}, 0, 1, 8),
        ({"forward_sync_buffers": False}, 0, 0, 8),
        ({"forward_sync_buffers": True}, 0, 0, 0),
        ({"init_sync": False}, 1, 1, 0),
        ({"init_sync": False, "forward_sync_buffers": False}, 1, 1, 8),
    ],
)
def test_broadcasts_and_their_times(options: dict[str, Any], weight: int, at_start: int, after: int) -> None:
    def work(rank: int, member: Any) -> list[float]:
        module = counting(rank)
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", **options)
        found = [float(module.weight.detach()[0, 0]), float(module.seen)]
        module.seen.fill_(8.0 * rank)
        ddp(torch.ones(1, 2)).sum().backward()
        found.append(float(module.seen))
        ddp.close()
        return found

    assert good(run_workers(2, work))[1] == [weight, at_start, after]


def test_arguments_without_effect_are_taken() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    named = [("0.weight", module[0].weight)]
    ddp = wrapped(
        module, find_unused_parameters=True, gradient_as_bucket_view=True, static_graph=True, delay_all_reduce_named_params=named,
        param_to_hook_all_reduce=module[1].weight, skip_all_reduce_unused_params=True, bucket_cap_mb_list=[2, 2], batched_grad_copy=True,
        lazy_bucket_allocation=True, mixed_precision=torch.nn.parallel.distributed._MixedPrecision(), dim=1,
    )  # fmt: skip
    for _ in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
    assert module[0].weight.grad is not None
    assert (ddp.bucket_bytes_cap, ddp.bucket_bytes_cap_list, ddp.static_graph, ddp.dim) == (2 << 20, [2 << 20] * 2, True, 1)
    with pytest.warns(FutureWarning, match="check_reduction"):
        wrapped(torch.nn.Linear(2, 2), check_reduction=True)
    with pytest.warns(FutureWarning, match="broadcast_buffers has no effect"):
        wrapped(torch.nn.Linear(2, 2), broadcast_buffers=False, forward_sync_buffers=True)


def test_buckets_of_no_capacity_hold_one_gradient_each() -> None:
    ddp = wrapped(torch.nn.Linear(2, 2), bucket_cap_mb=0)
    for _ in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
    assert len(ddp.synchronizer.buckets) == 2


# ---- Unsupported options, and remedies that work.


def test_several_capacities_and_their_remedies() -> None:
    with pytest.raises(sparsesync.UnsupportedError, match="pass bucket_cap_mb=4, or schedule='auto'"):
        wrapped(torch.nn.Linear(2, 2), bucket_cap_mb_list=[1, 4])
    for options in ({"bucket_cap_mb": 4}, {"schedule": "auto"}):
        wrapped(torch.nn.Linear(2, 2), **options)(torch.ones(1, 2)).sum().backward()


def test_a_group_passed_as_device_ids_is_the_group() -> None:
    for given in (local_group(1)[0], "alone"):
        ddp = DistributedDataParallel(torch.nn.Linear(2, 2), given)
        assert ddp.world_size == 1
        assert ddp.device_ids is None
    with pytest.raises(sparsesync.InputError, match="both are process groups: give one of them"):
        DistributedDataParallel(torch.nn.Linear(2, 2), "alone", process_group="alone")


def test_invalid_delayed_parameters() -> None:
    module = torch.nn.Linear(2, 2)
    other = ("other", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(sparsesync.InputError, match="give both or neither"):
        wrapped(module, delay_all_reduce_named_params=[("weight", module.weight)])
    with pytest.raises(sparsesync.InputError, match="'other' is not a parameter of the module: leave it out"):
        wrapped(module, delay_all_reduce_named_params=[other], param_to_hook_all_reduce=module.weight)
    wrapped(module, delay_all_reduce_named_params=[("weight", module.weight)], param_to_hook_all_reduce=module.bias)


def test_mixed_precision_and_its_remedies() -> None:
    asked = torch.nn.parallel.distributed._MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    with pytest.raises(sparsesync.UnsupportedError, match=r"torch.autocast\(\), .* master_weights=True\), .* wire='f16' or 'bf16'"):
        wrapped(torch.nn.Linear(2, 2), mixed_precision=asked)
    ddp = wrapped(torch.nn.Linear(2, 2), wire="bf16")
    with torch.autocast("cpu", torch.bfloat16):
        loss = ddp(torch.ones(1, 2)).sum()
    loss.backward()
    half = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    ddp = wrapped(half)
    optimizer = wrap_optimizer(torch.optim.SGD(half.parameters(), 0.1), ddp, master_weights=True)
    ddp(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()


def test_communication_hooks_and_their_remedies() -> None:
    ddp = wrapped(torch.nn.Linear(2, 2))
    for name in ("register_comm_hook", "_register_builtin_comm_hook"):
        with pytest.raises(sparsesync.UnsupportedError, match=r"wire='bf16' or wire='f16' .*sparsifier=\.\.\."):
            getattr(ddp, name)(None, print)
    with pytest.raises(sparsesync.UnsupportedError, match="forward_sync_buffers=False"):
        ddp._register_buffer_comm_hook(None, print)
    for options in ({"wire": "f16"}, {"sparsifier": sparsesync.torch.TopK(density=0.5, least_elements=1)}, {"forward_sync_buffers": False}):
        wrapped(torch.nn.Linear(2, 2), **options)(torch.ones(1, 2)).sum().backward()


def test_fixed_attributes_say_how_to_change_them() -> None:
    module = torch.nn.BatchNorm1d(2)
    ddp = wrapped(module)
    ddp.require_forward_param_sync = True  # its default
    with pytest.raises(sparsesync.UnsupportedError, match=r"close\(\), and wrap the module again with another forward_sync_buffers"):
        ddp.broadcast_buffers = False
    with pytest.raises(sparsesync.UnsupportedError, match="wrap the module again with forward_sync_buffers=False"):
        ddp.require_forward_param_sync = False
    with pytest.raises(sparsesync.UnsupportedError, match="wrap the module again with another process_group"):
        ddp._update_process_group(None)
    ddp.close()
    assert not wrapped(module, forward_sync_buffers=False).will_sync_module_buffers()


def test_join_without_a_torch_group_and_its_remedy() -> None:
    from torch.distributed.algorithms.join import Join

    ddp = wrapped(torch.nn.Linear(2, 2))
    with pytest.raises(sparsesync.UnsupportedError, match=r"use the wrapper's join\(\)"):
        Join([ddp])
    with ddp.join():
        ddp(torch.ones(1, 2)).sum().backward()


def test_a_fused_optimizer_comes_before_the_first_step() -> None:
    ddp = wrapped(torch.nn.Linear(2, 2))
    ddp(torch.ones(1, 2)).sum().backward()
    with pytest.raises(sparsesync.OrderError, match="_register_fused_optim: call it before the first step"):
        ddp._register_fused_optim(torch.optim.SGD, 0.1)


def test_compiled_as_before() -> None:
    with seeded(1):
        module = torch.nn.Linear(2, 2)
    ddp = wrapped(module)
    compiled = torch.compile(ddp, backend="eager")
    for _ in range(2):
        ddp.zero_grad()
        compiled(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad.tolist() == [[1, 1], [1, 1]]
    assert TorchDistributedDataParallel._get_active_ddp_module() is None


def test_checkpoints_of_a_model_with_a_sparsifier() -> None:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    def made() -> Any:
        return wrapped(torch.nn.Linear(2, 2), sparsifier=sparsesync.torch.TopK(density=0.5, least_elements=1))

    ddp, other = made(), made()
    ddp(torch.ones(1, 2)).sum().backward()
    model = get_model_state_dict(ddp.module)
    owed = {name: each for name, each in ddp.state_dict().items() if name.startswith("sparsesync.")}
    assert list(model) == ["weight", "bias"]
    assert owed
    set_model_state_dict(other.module, model)
    other.load_state_dict({**other.module.state_dict(prefix="module."), **owed})
    assert all(torch.equal(other.state_dict()[name], each) for name, each in ddp.state_dict().items())
