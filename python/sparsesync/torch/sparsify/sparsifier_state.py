"""Sparsifier entries of a state_dict(). Each worker saves and loads its entries; resharded() converts them to another number of workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch

from sparsesync import _native

PREFIX = "sparsesync."
_RESIDUAL, _VELOCITY, _STEP, _NORMS = (PREFIX + name for name in ("residual.", "velocity.", "step", "norms"))
Owed = tuple[torch.Tensor, torch.Tensor | None]  # residual and velocity of a parameter, each flat and f32


@dataclasses.dataclass(frozen=True)
class SparsifierState:
    """The sparsifier state of one worker, as it is stored beside the model's entries of a state_dict()."""

    step: int
    rank: int
    workers: int
    of_mean: bool  # gradients are a mean over workers; False: a sum
    owed: dict[str, Owed]  # residuals and velocities, by the names of parameters
    norms: torch.Tensor | None = None  # L1 norms of all chunks over all workers, which select the next step's chunks

    def entries(self) -> Iterator[tuple[str, torch.Tensor]]:
        others = list(self._others())
        yield _STEP, torch.tensor([self.step, self.rank, self.workers, int(self.of_mean), len(others)])
        yield from others

    def _others(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, (residual, velocity) in self.owed.items():
            yield _RESIDUAL + name, residual
            if velocity is not None:
                yield _VELOCITY + name, velocity
        if self.norms is not None:
            yield _NORMS, self.norms

    @staticmethod
    def of(state: Mapping[str, torch.Tensor]) -> SparsifierState | None:
        """Reads the sparsifier entries of a state_dict(). Raises InputError naming the entry if they are damaged or incomplete."""
        own = {name: each for name, each in state.items() if name.startswith(PREFIX)}
        if not own:
            return None
        step, rank, workers, of_mean = _numbers_of(own)
        del own[_STEP]
        if _NORMS in own:
            _expect_vector(_NORMS, own[_NORMS], torch.float64)
        norms = own.pop(_NORMS, None)
        owed: dict[str, Owed] = {}
        for name, each in own.items():
            if not name.startswith((_RESIDUAL, _VELOCITY)):
                raise _native.InputError(f"'{name}' is not an entry of a sparsifier's state")
            _expect_vector(name, each, torch.float32)
            if name.startswith(_RESIDUAL):
                parameter = name.removeprefix(_RESIDUAL)
                owed[parameter] = each, own.get(_VELOCITY + parameter)
            elif _RESIDUAL + name.removeprefix(_VELOCITY) not in own:
                raise _native.InputError(f"'{name}' has no residual beside it: the state is incomplete")
        has_velocity = {velocity is not None for _, velocity in owed.values()}
        if len(has_velocity) > 1:
            without = next(name for name, (_, velocity) in owed.items() if velocity is None)
            raise _native.InputError(f"'{_VELOCITY}{without}' is missing, and other parameters have theirs")
        for name, (residual, velocity) in owed.items():
            if velocity is not None and velocity.numel() != residual.numel():
                raise _native.InputError(f"'{_VELOCITY}{name}' has {velocity.numel()} elements, its residual {residual.numel()}")
        return SparsifierState(step, rank, workers, of_mean, owed, norms)


def _numbers_of(own: Mapping[str, torch.Tensor]) -> tuple[int, int, int, bool]:
    """Returns the step, the rank, the number of workers, and whether gradients are a mean."""
    if _STEP not in own:
        raise _native.InputError(f"'{_STEP}' is missing: the sparsifier's state is incomplete")
    given = own[_STEP]
    # Older states have four numbers: they lack the number of entries.
    if not isinstance(given, torch.Tensor) or given.is_meta or given.dtype is not torch.int64 or tuple(given.shape) not in ((4,), (5,)):
        raise _native.InputError(f"'{_STEP}' is {_described(given)}: it must hold 5 numbers of torch.int64")
    step, rank, workers, of_mean, *entries = given.tolist()
    if not (0 <= step <= _LAST_STEP and 0 <= rank < workers and of_mean in (0, 1)):
        raise _native.InputError(
            f"'{_STEP}' is step {step} of worker {rank} of {workers}, mean {of_mean}: these are impossible, so the state is damaged"
        )
    if entries and entries[0] != len(own) - 1:
        raise _native.InputError(f"'{_STEP}' announces {entries[0]} more entries, and there are {len(own) - 1}: the state is incomplete")
    return step, rank, workers, bool(of_mean)


_LAST_STEP = 1 << 53  # the largest integer up to which f64 is exact


def _expect_vector(name: str, given: torch.Tensor, dtype: torch.dtype) -> None:
    is_tensor = isinstance(given, torch.Tensor) and not given.is_meta and given.layout is torch.strided
    if not is_tensor or given.dtype is not dtype or given.dim() != 1:
        raise _native.InputError(f"'{name}' is {_described(given)}: it must be one-dimensional, of {dtype}")
    if not bool(torch.isfinite(given).all()):
        raise _native.InputError(f"'{name}' has infinite or NaN elements: the state is damaged")


def _described(given: object) -> str:
    if not isinstance(given, torch.Tensor):
        return f"a {type(given).__name__}"
    return f"{given.layout} {list(given.shape)} of {given.dtype} on {given.device}"


def resharded(
    states: Sequence[Mapping[str, torch.Tensor]], rank: int, workers: int
) -> dict[str, torch.Tensor]:
    """Converts the states that all workers saved into the state of one worker of another number of workers.

    Call it in any process; it does not communicate. Load the result with ``DistributedDataParallel.load_state_dict()``
    on worker ``rank``.

    The sum of unsent updates is preserved. Residuals are scaled by new workers / old workers, and added if fewer
    workers remain. If there are more workers, the additional ones start without residuals. Residuals of summed
    gradients (``gradient="sum"``) are not scaled.

    Args:
        states: The ``state_dict()`` of every old worker, ordered by rank.
        rank: Rank of the new worker.
        workers: Number of new workers.

    Returns:
        A ``state_dict()`` for the new worker, with the model's entries of ``states[0]``.

    Raises:
        InputError: The states do not belong together, are damaged, or lack sparsifier entries.
    """
    if not 0 <= rank < workers:
        raise _native.InputError(f"there is no worker {rank} among {workers}")
    found = [SparsifierState.of(each) for each in states]
    own: list[SparsifierState] = [each for each in found if each is not None]
    if len(own) != len(found) or not own:
        raise _native.InputError("a state_dict() lacks sparsifier entries: pass those of a DistributedDataParallel that has a sparsifier")
    for place, each in enumerate(own):
        if each.rank != place or each.workers != len(own):
            raise _native.InputError(
                f"state {place} belongs to worker {each.rank} of {each.workers}: pass the states of all workers, ordered by rank"
            )
    first = own[0]
    for place, each in enumerate(own):
        _expect_same_step(first, place, each)
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


def _expect_same_step(first: SparsifierState, place: int, each: SparsifierState) -> None:
    """Raises InputError unless the two states were saved in the same step of the same training."""
    what = f"state {place} and state 0 are of different steps or models: "
    if (each.step, each.of_mean) != (first.step, first.of_mean):
        kinds = [f"step {one.step}, of gradients that are a {'mean' if one.of_mean else 'sum'}" for one in (each, first)]
        raise _native.InputError(f"{what}'{_STEP}' is {kinds[0]}, and {kinds[1]}")
    for name in sorted({*first.owed, *each.owed}):
        if name not in first.owed or name not in each.owed:
            raise _native.InputError(f"{what}'{_RESIDUAL}{name}' is in one of them")
        sizes = [one.owed[name][0].numel() for one in (each, first)]
        if sizes[0] != sizes[1]:
            raise _native.InputError(f"{what}'{_RESIDUAL}{name}' has {sizes[0]} elements, and {sizes[1]}")
        if (each.owed[name][1] is None) != (first.owed[name][1] is None):
            raise _native.InputError(f"{what}'{_VELOCITY}{name}' is in one of them")
    norms = (each.norms, first.norms)
    if (norms[0] is None) != (norms[1] is None) or (norms[0] is not None and norms[1] is not None and not torch.equal(norms[0], norms[1])):
        raise _native.InputError(f"{what}'{_NORMS}', the same on all workers, differs")


def _sum(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(like)
    for each in tensors:
        total += each
    return total
