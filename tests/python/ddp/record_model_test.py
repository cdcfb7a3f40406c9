"""Tests record_model, which writes a live model in the format of `sparsesync simulate`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
from schedule_cases import Model, Turning, batch, loss_of, optimizers_of, sgd, train, weights  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel, record_model, wrap_optimizer  # noqa: E402 (needs torch)
from workers import good, run_workers  # noqa: E402 (needs torch)

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ.get("SPARSESYNC_PROGRAM", ROOT / "build/release/bin/sparsesync"))


def recorded(path, workers=2, steps=4, module=Model, **options):
    """Returns the file, and the seconds of the recorded steps."""

    def work(rank, member):
        of = module()
        ddp = DistributedDataParallel(of, process_group=member, **{"scheme": "balanced", **options})
        optimizers = optimizers_of(of, sgd)
        if options.get("schedule") == "dear":
            optimizers = [wrap_optimizer(each, ddp) for each in optimizers]
        train(ddp, rank, optimizers, steps=2)
        recording = record_model(ddp, path, steps)
        began = time.perf_counter()
        for step in range(2 + steps):
            assert recording.complete == (recording.steps == steps) and not recording.complete
            for each in optimizers:
                each.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            for each in optimizers:
                each.step()
        assert recording.complete
        seconds = time.perf_counter() - began
        train(ddp, rank, optimizers, steps=1)
        ddp.close()
        return seconds, weights(of)

    results = good(run_workers(workers, work))
    return json.loads(path.read_text()), results


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("schedule", ["lazy", "sequential", "dear"])
def test_a_model_is_recorded_whatever_the_schedule(tmp_path, schedule, workers):
    path = tmp_path / "m.json"
    told, results = recorded(path, workers, schedule=schedule)
    assert told["name"] == "Model"
    layers = {each["name"]: each for each in told["layers"]}
    parameters = dict(Model().named_parameters())
    assert sorted(layers) == sorted(parameters)
    for name, each in layers.items():
        parameter = parameters[name]
        if name in ("table.weight", "other.weight"):
            assert "bytes" not in each
            assert (each["sparse"]["rows"], each["sparse"]["width"]) == tuple(parameter.shape)
            # Each worker draws rows twelve times.
            assert 8 <= each["sparse"]["nnz"] <= 12
            gamma = each["sparse"]["densification"]
            assert list(gamma) == ([] if workers == 1 else [str(workers)])
            assert all(1 <= value <= workers for value in gamma.values())
        else:
            assert each["bytes"] == 4 * parameter.numel() and "sparse" not in each
        assert each["forward_s"] >= 0 and each["backward_s"] >= 0
    # The first layer that the forward pass needs is the last whose gradient arrives.
    order = list(layers)
    assert order.index("table.weight") < order.index("twice.weight") < order.index("last.weight")
    assert layers["twice.weight"]["forward_s"] + layers["twice.bias"]["forward_s"] > 0
    assert layers["never.weight"]["forward_s"] == 0 and layers["never.weight"]["backward_s"] == 0
    whole = sum(each["forward_s"] + each["backward_s"] for each in layers.values())
    assert 0 < whole < max(seconds for seconds, _ in results)
    simulated = subprocess.run(
        [PROGRAM, "simulate", path, "--workers", "1,8", "--rate", "1gbit", "--json", "-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert simulated.returncode == 0, simulated.stderr
    for each in json.loads(simulated.stdout)["results"]:
        assert each["compute_s"] == pytest.approx(whole)


def test_recording_changes_no_weight(tmp_path):
    _, results = recorded(tmp_path / "m.json")
    again, same = recorded(tmp_path / "again.json", schedule="lazy")
    assert again["layers"]
    for (_, one), (_, other) in zip(results, same, strict=True):
        for name, value in one.items():
            assert torch.equal(value, other[name]), name


def test_layers_are_in_the_order_that_was_learned_last(tmp_path):
    """The graph changes at step 4. Its order is learned again after step 6, in the middle of the recording."""

    def work(rank, member):
        module = Turning()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced")
        optimizer = sgd(list(module.parameters()))
        train(ddp, rank, [optimizer], steps=2)
        recording = record_model(ddp, tmp_path / "m.json", 4)
        for step in range(2, 20):
            optimizer.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            optimizer.step()
            if recording.complete:
                return step
        return None

    assert good(run_workers(2, work)) == [12, 12], "two steps and four recorded steps follow the step in which the order is learned"
    names = [each["name"] for each in json.loads((tmp_path / "m.json").read_text())["layers"]]
    assert [name for name in names if name.endswith("weight")] == [
        *("table.weight", "layers.2.weight", "layers.1.weight", "layers.0.weight", "last.weight")
    ]


@pytest.mark.parametrize(("steps", "counted"), [(2, None), (4, "2")])
def test_a_recording_that_is_closed_has_the_steps_so_far(tmp_path, steps, counted):
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced", schedule="dear")
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(ddp.module, sgd)]
        train(ddp, rank, optimizers, steps=1)
        recording = record_model(ddp, tmp_path / "m.json", 10)
        train(ddp, rank, optimizers, steps=steps)
        assert not recording.complete
        recording.close()
        recording.close()
        assert recording.complete
        train(ddp, rank, optimizers, steps=1)

    good(run_workers(2, work))
    path = tmp_path / "m.json"
    assert path.exists() == (counted is not None)
    if counted:
        told = json.loads(path.read_text())
        assert told["provenance"]["steps"] == counted
        assert 8 <= next(each for each in told["layers"] if "sparse" in each)["sparse"]["nnz"] <= 12


def test_what_cannot_be_recorded_is_refused_on_all_workers(tmp_path):
    taken = tmp_path / "taken.json"
    taken.write_text("mine")

    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        optimizers = optimizers_of(ddp.module, sgd)
        with pytest.raises(sparsesync.OrderError, match="record_model: call it after the first step"):
            record_model(ddp, tmp_path / "m.json")
        train(ddp, rank, optimizers, steps=1)
        with pytest.raises(sparsesync.InputError, match="taken.json' exists"):
            record_model(ddp, taken)
        with pytest.raises(sparsesync.InputError, match="0 steps"):
            record_model(ddp, tmp_path / "m.json", 0)
        with pytest.raises(sparsesync.InputError, match="record_model: cannot create .*none/m.json.*: No such file"):
            record_model(ddp, tmp_path / "none" / "m.json", 1)
        record_model(ddp, tmp_path / "m.json", 1)
        with pytest.raises(sparsesync.InputError, match="another recording is running"):
            record_model(ddp, tmp_path / "m.json")
        train(ddp, rank, optimizers, steps=3)
        record_model(ddp, taken, 1, name="another", force=True)
        return

    good(run_workers(2, work))
    assert taken.read_text() == "mine"
