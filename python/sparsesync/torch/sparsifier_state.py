"""What sparsifiers owe, saved and loaded with the model: by each worker its own, and shared anew where there are other workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch

from sparsesync import _native

PREFIX = "sparsesync."
_RESIDUAL, _VELOCITY, _STEP, _NORMS = (PREFIX + name for name in ("residual.", "velocity.", "step", "norms"))
Owed = tuple[torch.Tensor, torch.Tensor | None]  # of a parameter: flat, f32; and its velocities


@dataclasses.dataclass(frozen=True)
class SparsifierState:
    """One worker's, beside the model's own entries of a state_dict()."""

    step: int
    rank: int
    workers: int
    of_mean: bool  # of gradients that are a mean over workers; else a sum
    owed: dict[str, Owed]  # by the names of parameters
    norms: torch.Tensor | None = None  # of all chunks, over all workers: what the next step's are chosen by

    def entries(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield _STEP, torch.tensor([self.step, self.rank, self.workers, int(self.of_mean)])
        for name, (residual, velocity) in self.owed.items():
            yield _RESIDUAL + name, residual
            if velocity is not None:
                yield _VELOCITY + name, velocity
        if self.norms is not None:
            yield _NORMS, self.norms

    @staticmethod
    def of(state: Mapping[str, torch.Tensor]) -> SparsifierState | None:
        """What a state_dict() has of it. Raises InputError where that is not whole."""
        own = {name: each for name, each in state.items() if name.startswith(PREFIX)}
        if not own:
            return None
        if _STEP not in own or own[_STEP].numel() != 4:
            raise _native.InputError(f"'{_STEP}' is missing: what a sparsifier owes is not whole")
        step, rank, workers, of_mean = own.pop(_STEP).tolist()
        norms = own.pop(_NORMS, None)
        owed: dict[str, Owed] = {}
        for name, each in own.items():
            if name.startswith(_RESIDUAL):
                parameter = name.removeprefix(_RESIDUAL)
                owed[parameter] = each, own.get(_VELOCITY + parameter)
            elif not name.startswith(_VELOCITY) or _RESIDUAL + name.removeprefix(_VELOCITY) not in own:
                raise _native.InputError(f"'{name}' is no part of what a sparsifier owes")
        return SparsifierState(step, rank, workers, bool(of_mean), owed, norms)


def resharded(
    states: Sequence[Mapping[str, torch.Tensor]], rank: int, workers: int
) -> dict[str, torch.Tensor]:
    """A state_dict() for worker `rank` of `workers`, of the state_dict()s that all workers of another number saved, by rank.

    The update that is still owed, the mean over workers of what they keep, stays: what is kept is scaled by new workers / old
    ones, added up where there are fewer workers, and with some of them where there are more. (Of gradients that are sums it is not
    scaled.) Raises InputError unless these are the state_dict()s of all of them.
    """
    if not 0 <= rank < workers:
        raise _native.InputError(f"there is no worker {rank} among {workers}")
    found = [SparsifierState.of(each) for each in states]
    own: list[SparsifierState] = [each for each in found if each is not None]
    if len(own) != len(found) or not own:
        raise _native.InputError("a state_dict() without what a sparsifier owes: give those of a DistributedDataParallel that has one")
    for place, each in enumerate(own):
        if each.rank != place or each.workers != len(own):
            raise _native.InputError(
                f"state {place} is that of worker {each.rank} of {each.workers}: give those of all workers, by rank"
            )
    first = own[0]
    scale = workers / len(own) if first.of_mean else 1.0
    mine = own[rank::workers]
    owed: dict[str, Owed] = {}
    for name, (residual, velocity) in first.owed.items():
        velocities = [each.owed[name][1] for each in mine]
        owed[name] = (
            _sum([each.owed[name][0] for each in mine], residual) * scale,
            None if velocity is None else _sum([each for each in velocities if each is not None], velocity) * scale,
        )
    model = {name: each for name, each in states[0].items() if not name.startswith(PREFIX)}
    state = SparsifierState(first.step, rank, workers, first.of_mean, owed, first.norms)
    return {**model, **dict(state.entries())}


def _sum(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(like)
    for each in tensors:
        total += each
    return total
