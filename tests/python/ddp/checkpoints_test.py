"""Each damaged checkpoint is an error that names the entry, and changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
import sparsesync.torch as st  # noqa: E402 (needs torch)
from sparsesync.torch.sparsify.sparsifier_state import SparsifierState  # noqa: E402 (needs torch)
from workers import good, run_workers  # noqa: E402 (needs torch)

State = dict[str, Any]
STEP, NORMS = "sparsesync.step", "sparsesync.norms"
RESIDUAL, VELOCITY = "sparsesync.residual.0.weight", "sparsesync.velocity.0.weight"
SPARSIFIER = st.CoarseGrained(share=0.25, chunk=16, least_elements=1)


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def train(ddp: st.DistributedDataParallel, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 * ddp.rank + step)
        optimizer.zero_grad()
        ddp(torch.randn(6, 8, generator=generator)).square().mean().backward()
        optimizer.step()


def wrapped(member: Any) -> tuple[st.DistributedDataParallel, torch.optim.Optimizer]:
    ddp = st.DistributedDataParallel(model(), process_group=member, scheme="balanced", deadline=20, sparsifier=SPARSIFIER)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.5)
    return ddp, st.wrap_optimizer(optimizer, ddp)


def copied(state: State) -> State:
    return {name: each.clone() for name, each in state.items()}


def saved(workers: int = 2) -> list[State]:
    def work(_: int, member: Any) -> State:
        ddp, optimizer = wrapped(member)
        train(ddp, optimizer, range(4))
        state = copied(ddp.state_dict())
        ddp.close()
        return state

    states: list[State] = good(run_workers(workers, work))
    assert {STEP, NORMS, RESIDUAL, VELOCITY} <= states[0].keys()
    return states


def with_step(state: State, place: int, value: int) -> State:
    step = state[STEP].clone()
    step[place] = value
    return {**state, STEP: step}


def without(state: State, name: str) -> State:
    return {key: each for key, each in state.items() if key != name}


def spoiled(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[State], State]:
    return lambda state: {**state, name: change(state[name])}


def poked(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(given: torch.Tensor) -> torch.Tensor:
        changed = given.clone()
        changed.view(-1)[0] = value
        return changed

    return change


def old(state: State) -> State:
    """Returns a state in the old format, which does not contain the number of entries."""
    return {**state, STEP: state[STEP][:4]}


OF_NO_PARAMETER = ("sparsesync.residual.0.other", "sparsesync.velocity.0.other")

OF_VECTORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "no tensor": lambda given: given.tolist(),
    "None": lambda _: None,
    "of two dimensions": lambda given: given.view(-1, 2),
    "of no dimension": lambda given: given[0],
    "of integers": lambda given: given.to(torch.int64),
    "of halves": lambda given: given.half(),
    "sparse": lambda given: given.to_sparse(),
    "without values": lambda given: given.to("meta"),
    "NaN": poked(math.nan),
    "infinite": poked(math.inf),
}

DAMAGED: dict[str, tuple[str, Callable[[State], State]]] = {
    "step: missing": (STEP, lambda state: without(state, STEP)),
    "step: no tensor": (STEP, spoiled(STEP, lambda given: given.tolist())),
    "step: of two dimensions": (STEP, spoiled(STEP, lambda given: given[:4].view(2, 2))),
    "step: of one number": (STEP, spoiled(STEP, lambda given: given[0])),
    "step: of three numbers": (STEP, spoiled(STEP, lambda given: given[:3])),
    "step: of floats, NaN": (STEP, spoiled(STEP, lambda given: poked(math.nan)(given.double()))),
    "step: negative": (STEP, lambda state: with_step(state, 0, -1)),
    "step: beyond all floats": (STEP, lambda state: with_step(state, 0, 2**62)),
    "step: a mean of 7": (STEP, lambda state: with_step(state, 3, 7)),
    "step: a worker beyond all": (STEP, lambda state: with_step(state, 1, 9)),
    "step: entries": (STEP, lambda state: with_step(state, 4, 1)),
    **{f"residual: {how}": (RESIDUAL, spoiled(RESIDUAL, change)) for how, change in OF_VECTORS.items()},
    **{f"velocity: {how}": (VELOCITY, spoiled(VELOCITY, change)) for how, change in OF_VECTORS.items()},
    **{f"norms: {how}": (NORMS, spoiled(NORMS, change)) for how, change in OF_VECTORS.items()},
    "residual: of one element": ("0.weight", spoiled(RESIDUAL, lambda given: given[:1])),
    "velocity: of one element": (VELOCITY, spoiled(VELOCITY, lambda given: given[:1])),
    "residual: missing": (STEP, lambda state: without(state, RESIDUAL)),
    "residual: missing in an old state": (VELOCITY, lambda state: without(old(state), RESIDUAL)),
    "velocity: missing": (STEP, lambda state: without(state, VELOCITY)),
    "velocity: missing in an old state": (VELOCITY, lambda state: without(old(state), VELOCITY)),
    "both missing in an old state": ("0.weight", lambda state: without(without(old(state), RESIDUAL), VELOCITY)),
    "norms: missing": (STEP, lambda state: without(state, NORMS)),
    "another's": ("sparsesync.other", lambda state: {**old(state), "sparsesync.other": torch.zeros(3)}),
    "of no parameter": ("0.other", lambda state: {**old(state), **{name: torch.zeros(3) for name in OF_NO_PARAMETER}}),
}


def test_damaged_states_change_nothing() -> None:
    states = saved()

    def work(rank: int, member: Any) -> tuple[State, State]:
        ddp, optimizer = wrapped(member)
        train(ddp, optimizer, range(2))
        before = copied(ddp.state_dict())
        for how, (named, damage) in DAMAGED.items():
            with pytest.raises(sparsesync.InputError) as refused:
                ddp.load_state_dict(damage(copied(states[rank])))
            assert named in str(refused.value), how
            after = ddp.state_dict()
            assert list(after) == list(before), how
            assert all(torch.equal(after[name], each) for name, each in before.items()), how
        # An intact state still loads afterwards.
        ddp.load_state_dict(old(copied(states[rank])))
        loaded = copied(ddp.state_dict())
        train(ddp, optimizer, range(4, 6))
        ddp.close()
        return loaded, copied(ddp.module.state_dict())

    results = good(run_workers(2, work))
    for state, (loaded, _) in zip(states, results, strict=True):
        assert all(torch.equal(loaded[name], each) for name, each in state.items())
    assert all(torch.equal(each, results[1][1][name]) for name, each in results[0][1].items())


def test_a_state_from_before_the_first_step_has_no_residual() -> None:
    def work(_: int, member: Any) -> State:
        ddp, optimizer = wrapped(member)
        first = copied(ddp.state_dict())
        train(ddp, optimizer, range(3))
        ddp.load_state_dict(first)
        state = copied(ddp.state_dict())
        ddp.close()
        return state

    for state in good(run_workers(2, work)):
        assert not any(state[name].any() for name in state if "residual" in name or "velocity" in name)
        assert state[STEP][0] == 0


OTHERS: dict[str, tuple[str, Callable[[State], State]]] = {
    **DAMAGED,
    "of another step": (STEP, lambda state: with_step(state, 0, 3)),
    "of a sum": (STEP, lambda state: with_step(state, 3, 0)),
    "of one element, to be broadcast": (RESIDUAL, lambda state: {**state, RESIDUAL: state[RESIDUAL][:1], VELOCITY: state[VELOCITY][:1]}),
    "of another parameter": (
        "0.",
        lambda state: {name.replace("ity.0.weight", "ity.0.w").replace("ual.0.weight", "ual.0.w"): each for name, each in state.items()},
    ),
    "of other norms": (NORMS, spoiled(NORMS, poked(7))),
    "of fewer norms": (NORMS, spoiled(NORMS, lambda given: given[:1])),
}


@pytest.mark.parametrize("how", OTHERS)
def test_states_that_do_not_belong_together_are_not_resharded(how: str, states: list[State]) -> None:
    named, damage = OTHERS[how]
    damaged = damage(copied(states[1]))
    if how in ("residual: of one element", "of no parameter", "both missing in an old state"):
        named = "sparsesync."
    for rank in range(2):
        with pytest.raises(sparsesync.InputError) as refused:
            st.resharded([states[0], damaged], rank, 2)
        assert named in str(refused.value)


@pytest.fixture(scope="module")
def states() -> list[State]:
    return saved()


def test_resharded_states_are_whole(states: list[State]) -> None:
    for rank in range(3):
        state = SparsifierState.of(st.resharded(states, rank, 3))
        assert state is not None and (state.rank, state.workers) == (rank, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 0.0},
        {"scale": -1.0},
        {"scale": math.nan},
        {"scale": "2"},
        {"scale": None},
        {"good_steps": -1},
        {"good_steps": 1.5},
        {"skipped_steps": math.inf},
        {"skipped_steps": None},
    ],
)
def test_damaged_states_of_a_loss_scaler_change_nothing(change: State) -> None:
    (member,) = st.local_group(1)
    with st.DistributedDataParallel(model(), process_group=member) as ddp:
        scaler = st.LossScaler(ddp, scale=8.0)
        before = scaler.state_dict()
        with pytest.raises(sparsesync.InputError, match=next(iter(change))):
            scaler.load_state_dict({"scale": 4.0, "good_steps": 1, "skipped_steps": 2, **change})
        with pytest.raises(sparsesync.InputError, match=next(iter(change))):
            scaler.load_state_dict({name: each for name, each in before.items() if name not in change})
        assert scaler.state_dict() == before


MASTERS: dict[str, Callable[[State], Any]] = {
    "no list": lambda state: {**state, "master_weights": 7},
    "no tensors": lambda state: {**state, "master_weights": [1, 2, 3, 4]},
    "halves": lambda state: {**state, "master_weights": [each.half() for each in state["master_weights"]]},
    "without values": lambda state: {**state, "master_weights": [each.to("meta") for each in state["master_weights"]]},
    "other groups": lambda state: {**state, "param_groups": [], "master_weights": [each + 1 for each in state["master_weights"]]},
}


@pytest.mark.parametrize("how", MASTERS)
def test_damaged_states_of_an_optimizer_change_no_master_weights(how: str) -> None:
    (member,) = st.local_group(1)
    with st.DistributedDataParallel(model().half(), process_group=member) as ddp:
        optimizer = st.wrap_optimizer(torch.optim.SGD(ddp.parameters(), 0.1), ddp, master_weights=True)
        before = copy.deepcopy(optimizer.state_dict())
        error = ValueError if how == "other groups" else sparsesync.InputError  # raised by torch
        with pytest.raises(error):
            optimizer.load_state_dict(MASTERS[how](copy.deepcopy(before)))
        for one, other in zip(optimizer.state_dict()["master_weights"], before["master_weights"], strict=True):
            assert torch.equal(one, other)
