"""Assignment of parameters to buckets, and their order: learned from the first backward pass, the same on all workers."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Iterable, Mapping, Sequence

import torch

from sparsesync import _native
from sparsesync.torch.gradients import Kind, Synchronized, nonzero_rows
from sparsesync.torch.sparsify.sparsifiers import CoarseGrained, Sparsifier

# A dense gradient with a larger share of nonzero rows is sent whole: row indices would not pay off.
MOST_ROWS = 0.5
# Smaller dense gradients, in elements, are not searched for zero rows.
LEAST_ELEMENTS = 1 << 14
_MIB = 1 << 20
_TORCHS_OWN_MIB = 25


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of synchronization; the same on all workers."""

    scheme: str  # for gradients with few nonzero rows
    gradient: str  # mean or sum
    wire: str | None
    bucket_cap_mb: float | None  # capacity of a bucket in MiB; None: chosen by the schedule
    schedule: str = "lazy"
    sparsifier: Sparsifier | None = None

    def __post_init__(self) -> None:
        if self.gradient not in ("mean", "sum"):
            raise _native.InputError(f"gradient '{self.gradient}': mean or sum")
        names = ["auto", *(name for name, _ in _native.schemes())]
        if self.scheme not in names:
            raise _native.InputError(f"there is no scheme '{self.scheme}': {', '.join(names)}")
        if self.wire not in (None, "f32", "f16", "bf16"):
            raise _native.InputError(f"wire '{self.wire}': None, f32, f16 or bf16")
        names = [name for name, _ in _native.schedules()]
        if self.schedule not in names:
            raise _native.InputError(f"there is no schedule '{self.schedule}': {', '.join(names)}")
        if self.bucket_cap_mb is not None and not self.bucket_cap_mb >= 0:
            raise _native.InputError(f"bucket_cap_mb {self.bucket_cap_mb}: 0 or more")

    @property
    def full_bytes(self) -> float | None:
        """The capacity of a bucket in bytes; None: the planner chooses it after measuring."""
        if self.bucket_cap_mb is not None:
            return max(1, self.bucket_cap_mb * _MIB)  # 0 MiB: one gradient per bucket
        return _TORCHS_OWN_MIB * _MIB if self.schedule == "lazy" else None

    @property
    def first_bytes(self) -> float | None:
        """The capacity of the first bucket. As in torch, it is smaller, so that communication starts early."""
        full = self.full_bytes
        return None if full is None else min(full, _MIB)

    @property
    def measures(self) -> bool:
        """Whether passes are measured to plan schedules."""
        return not (self.schedule == "lazy" and self.full_bytes is not None)


@dataclasses.dataclass
class Observed:
    """Observations of one worker in its first backward pass."""

    order: list[int]  # parameters in the order in which their gradients became ready
    kinds: dict[int, Kind]
    touched: dict[int, float]  # share of each parameter's rows that have a nonzero element
    untold: list[int]  # parameters whose gradients touch rows that no embedding looked up here

    def packed(self) -> bytes:
        return json.dumps([self.order, list(self.kinds.items()), list(self.touched.items()), self.untold]).encode()

    @staticmethod
    def unpacked(text: bytes) -> Observed:
        order, kinds, touched, untold = json.loads(text)
        return Observed(order, {index: Kind(kind) for index, kind in kinds}, dict(touched), untold)


def observe(parameters: Sequence[Synchronized], order: Iterable[int], untold: list[int]) -> Observed:
    """Inspects the current gradients."""
    kinds: dict[int, Kind] = {}
    touched: dict[int, float] = {}
    for each in parameters:
        gradient = each.parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            kinds[each.index] = Kind.SPARSE
            touched[each.index] = len(nonzero_rows(gradient)) / max(1, gradient.shape[0])
        elif gradient.dim() > 1 and gradient.numel() >= LEAST_ELEMENTS:
            touched[each.index] = len(nonzero_rows(gradient)) / gradient.shape[0]
            kinds[each.index] = Kind.ROWS if touched[each.index] < MOST_ROWS else Kind.DENSE
        else:
            kinds[each.index] = Kind.DENSE
    return Observed(list(order), kinds, touched, untold)


def tell(session: _native.Session, own: Observed) -> list[Observed]:
    """Exchanges observations. Returns those of all workers, by rank. All workers call it between steps."""
    return [Observed.unpacked(text) for text in session.all_gather(own.packed())]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A bucket to be registered."""

    kind: Kind
    members: tuple[Synchronized, ...]

    @property
    def device(self) -> torch.device:
        return self.members[0].parameter.device

    def name(self) -> str:
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {len(self.members) - 1} more"


def kinds_of(
    parameters: Sequence[Synchronized],
    seen: Sequence[Observed],
    sparse_by_module: frozenset[int],
    sparsifier: Sparsifier | None = None,
) -> dict[int, Kind]:
    """Returns one kind for each parameter, from the observations of all workers.

    A gradient that is dense on any worker is sent whole, or sparsified if the sparsifier takes it. Raises InputError if
    the sparsifier names a parameter whose gradient is sparse.
    """
    strictness = (Kind.DENSE, Kind.SPARSE, Kind.ROWS)
    kinds: dict[int, Kind] = {}
    for each in parameters:
        of_workers = {observed.kinds[each.index] for observed in seen if each.index in observed.kinds}
        unseen = Kind.SPARSE if each.index in sparse_by_module else Kind.DENSE
        kind = kinds[each.index] = next((kind for kind in strictness if kind in of_workers), unseen)
        if sparsifier is None:
            continue
        if kind is Kind.DENSE and sparsifier.takes(each.name, each.parameter):
            kinds[each.index] = Kind.SPARSIFIED
        elif kind is not Kind.DENSE and sparsifier.names(each.name):
            raise _native.InputError(
                f"{type(sparsifier).__name__}: the gradient of parameter '{each.name}' is sparse already: leave it out of `parameters`"
            )
    return kinds


def order_of(parameters: Sequence[Synchronized], seen: Sequence[Observed]) -> list[Synchronized]:
    """Returns the parameters in the order in which gradients became ready on worker 0.

    Parameters that only other workers saw follow, and those that no worker saw come last.
    """
    order = dict.fromkeys(index for observed in seen for index in observed.order)
    order.update(dict.fromkeys(each.index for each in reversed(parameters)))
    by_index = {each.index: each for each in parameters}
    return [by_index[index] for index in order]


@dataclasses.dataclass(frozen=True)
class Layers:
    """Parameters in the order of the forward pass, as schedules use them: the parameter whose gradient was ready last is first."""

    members: tuple[Synchronized, ...]
    kinds: dict[int, Kind]  # kind of each parameter, by its index
    touched: dict[int, float]  # largest share of a parameter's rows that a worker touched
    untold: frozenset[int]  # parameters whose gradients touch rows that no embedding looked up, on any worker
    sparsifier: Sparsifier | None = None

    @functools.cached_property
    def layer_of(self) -> dict[int, int]:
        """The layer of each parameter, by its index in the module."""
        return {member.index: layer for layer, member in enumerate(self.members)}

    def reordered(self, ready: Sequence[int]) -> list[int] | None:
        """Returns the parameters in the new order of their gradients, or None if the order is unchanged.

        ready: the parameters that got gradients, in that order.
        """
        old = [each.index for each in reversed(self.members)]
        seen = set(ready)
        if [index for index in old if index in seen] == list(ready):
            return None
        order: list[int] = []
        behind: dict[int | None, list[int]] = {}  # parameters without a gradient, by the parameter that they follow
        last: int | None = None
        for index in old:
            if index in seen:
                last = index
            else:
                behind.setdefault(last, []).append(index)
        order += behind.get(None, [])
        for index in ready:
            order += [index, *behind.get(index, [])]
        return order

    def in_order(self, order: Sequence[int]) -> Layers:
        """Returns the same layers for another order of gradients."""
        by_index = {each.index: each for each in self.members}
        return dataclasses.replace(self, members=tuple(by_index[index] for index in reversed(order)))

    def native(self, seconds: Mapping[int, tuple[float, float]] = types.MappingProxyType({})) -> list[_native.Layer]:
        """Returns the layers for the planner. Neighbours of one kind and dtype may share a bucket.

        seconds: seconds of the forward and backward pass of each parameter, if known.
        """
        groups: dict[tuple[Kind, torch.dtype], int] = {}
        layers = []
        for each in self.members:
            tensor, kind = each.parameter, self.kinds[each.index]
            group = groups.setdefault((kind, tensor.dtype), len(groups))
            passes = seconds.get(each.index, (0.0, 0.0))
            if kind is Kind.DENSE:
                size = tensor.numel() * tensor.element_size()
                layers.append(_native.Layer(each.name, size, group=group, forward_s=passes[0], backward_s=passes[1]))
                continue
            if kind is Kind.SPARSIFIED:
                assert self.sparsifier is not None
                chunked = isinstance(self.sparsifier, CoarseGrained)
                width = min(self.sparsifier.chunk, tensor.numel()) if isinstance(self.sparsifier, CoarseGrained) else 1
                rows = -(-tensor.numel() // width)
                taken = rows * self.sparsifier.final_share
                densification = [(2, 1.0)] if chunked else []  # all workers take the same chunks
                layers.append(_native.Layer(each.name, 0, rows, width, taken, group, False, *passes, densification))
                continue
            rows = tensor.shape[0]
            touched = rows * self.touched.get(each.index, 0.0)
            told = each.index not in self.untold
            layers.append(_native.Layer(each.name, 0, rows, tensor.numel() // rows, touched, group, told, *passes))
        return layers

    def planned(self, buckets: Sequence[tuple[int, int]]) -> list[Planned]:
        """Returns the buckets of a schedule. Members are in the order of their gradients.

        buckets: the first and the last layer of each.
        """
        return [
            Planned(self.kinds[self.members[last].index], tuple(reversed(self.members[first : last + 1])))
            for first, last in buckets
        ]


def layers_of(
    parameters: Sequence[Synchronized],
    seen: Sequence[Observed],
    sparse_by_module: frozenset[int],
    sparsifier: Sparsifier | None = None,
) -> Layers:
    """Combines the observations of all workers in their first backward pass. The result is the same on all of them."""
    touched: dict[int, float] = {}
    for observed in seen:
        for index, share in observed.touched.items():
            touched[index] = max(share, touched.get(index, 0.0))
    return Layers(
        tuple(reversed(order_of(parameters, seen))),
        kinds_of(parameters, seen, sparse_by_module, sparsifier),
        touched,
        frozenset(index for observed in seen for index in observed.untold),
        sparsifier,
    )


def sparse_parameters(module: torch.nn.Module) -> set[torch.Tensor]:
    """Returns the parameters for which torch's modules make sparse gradients."""
    return {
        each.weight
        for each in module.modules()
        if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag) and each.sparse
    }


def statement(
    parameters: Sequence[Synchronized],
    buffers: Sequence[tuple[str, torch.Tensor]],
    options: Options,
    announce: bool,
    broadcast_buffers: bool,
) -> list[tuple[str, str]]:
    """Returns the properties that must be equal on all workers, in the form that Session.agree takes."""
    stated = [
        ("scheme", options.scheme),
        ("gradient", options.gradient),
        ("wire", str(options.wire)),
        ("announce", str(announce)),
        ("broadcast_buffers", str(broadcast_buffers)),
        ("schedule", options.schedule),
        ("sparsifier", str(options.sparsifier)),
        ("bucket_cap_mb", str(options.bucket_cap_mb and float(options.bucket_cap_mb))),
    ]
    for each in parameters:
        stated.append((f"parameter '{each.name}'", f"{list(each.parameter.shape)} {each.parameter.dtype}"))
    for name, buffer in buffers:
        stated.append((f"buffer '{name}'", f"{list(buffer.shape)} {buffer.dtype}"))
    return stated
