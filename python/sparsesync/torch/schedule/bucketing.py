"""Which parameters cross together, and in which order: learned from the first backward pass, the same on all workers."""

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

# Of a dense gradient's rows: from here on it is not worth telling which are not zero.
MOST_ROWS = 0.5
# Elements of a dense gradient that rows are looked for in.
LEAST_ELEMENTS = 1 << 14
_MIB = 1 << 20
_TORCHS_OWN_MIB = 25


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients are made equal; the same on all workers."""

    scheme: str  # of those of which few rows are not zero
    gradient: str  # mean or sum
    wire: str | None
    bucket_cap_mb: float | None  # MiB that a bucket is full with; None: as the schedule has it
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
        """What a bucket is full with; None: what the planner finds the best, once it has measured."""
        if self.bucket_cap_mb is not None:
            return max(1, self.bucket_cap_mb * _MIB)  # of 0: each gradient alone
        return _TORCHS_OWN_MIB * _MIB if self.schedule == "lazy" else None

    @property
    def first_bytes(self) -> float | None:
        """The same of the first bucket, as torch's own has it: so that something is under way early."""
        full = self.full_bytes
        return None if full is None else min(full, _MIB)

    @property
    def measures(self) -> bool:
        """Whether passes are measured, and schedules planned by them."""
        return not (self.schedule == "lazy" and self.full_bytes is not None)


@dataclasses.dataclass
class Observed:
    """What one worker's first backward pass showed."""

    order: list[int]  # parameters, as their gradients became ready
    kinds: dict[int, Kind]
    touched: dict[int, float]  # of a parameter's rows, the share that some element is not zero in
    untold: list[int]  # parameters that touch rows here which no embedding was asked for

    def packed(self) -> bytes:
        return json.dumps([self.order, list(self.kinds.items()), list(self.touched.items()), self.untold]).encode()

    @staticmethod
    def unpacked(text: bytes) -> Observed:
        order, kinds, touched, untold = json.loads(text)
        return Observed(order, {index: Kind(kind) for index, kind in kinds}, dict(touched), untold)


def observe(parameters: Sequence[Synchronized], order: Iterable[int], untold: list[int]) -> Observed:
    """Looks at the gradients that are there."""
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
    """Between steps, all workers: what each of them saw, by rank."""
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
    """One kind for each parameter, from what all workers saw: what any of them saw whole is dense, and made sparse where a
    sparsifier takes it. Raises InputError where one is told to take what is sparse already."""
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
    """As gradients became ready on worker 0; then what others saw; what nobody saw, last."""
    order = dict.fromkeys(index for observed in seen for index in observed.order)
    order.update(dict.fromkeys(each.index for each in reversed(parameters)))
    by_index = {each.index: each for each in parameters}
    return [by_index[index] for index in order]


@dataclasses.dataclass(frozen=True)
class Layers:
    """Parameters as schedules have them: in the order of the forward pass, so the one whose gradient was ready last is the first."""

    members: tuple[Synchronized, ...]
    kinds: dict[int, Kind]  # of each parameter, by its place
    touched: dict[int, float]  # of a parameter's rows the share that some worker touched the most of
    untold: frozenset[int]  # parameters that touch rows somewhere which no embedding was asked for
    sparsifier: Sparsifier | None = None

    @functools.cached_property
    def layer_of(self) -> dict[int, int]:
        """The layer of each parameter, by its place in the module."""
        return {member.index: layer for layer, member in enumerate(self.members)}

    def reordered(self, ready: Sequence[int]) -> list[int] | None:
        """Parameters in the order of their gradients, where that is another one now. ready: those that were seen, as they came."""
        old = [each.index for each in reversed(self.members)]
        seen = set(ready)
        if [index for index in old if index in seen] == list(ready):
            return None
        order: list[int] = []
        behind: dict[int | None, list[int]] = {}  # those that were not seen, by the one that was before them
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
        """The same, whose gradients become ready in this order."""
        by_index = {each.index: each for each in self.members}
        return dataclasses.replace(self, members=tuple(by_index[index] for index in reversed(order)))

    def native(self, seconds: Mapping[int, tuple[float, float]] = types.MappingProxyType({})) -> list[_native.Layer]:
        """Neighbours of one kind and dtype may share a bucket. seconds: of the passes of parameters, where they are known."""
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
        """Buckets of a schedule: first and last layer of each. Members stand in the order of their gradients."""
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
    """What all workers saw in their first backward pass, the same on all of them."""
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
    """Those that torch's own modules make sparse gradients of."""
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
    """What all workers must have alike, as Session.agree takes it."""
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
