"""The program of property_test.py: trains random small models with sparsesync.torch.DistributedDataParallel and by hand, and compares
them.

    torchrun --nproc-per-node 3 property_cases.py --seed N                     one seed
    torchrun --nproc-per-node 3 property_cases.py --seed N --seeds M --seconds S --folder FOLDER

A seed determines a case: the model, hooks, optimizers, the wrapper's options and 50 steps. The same process trains a copy by hand: it
gathers the gradients of all workers, adds them in the order of ranks, and divides. Activations, their gradients and weights at their
use are rounded to multiples of powers of two. Sums are then exact in any order, and all results must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import json
import random
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sparsesync
import torch
import torch.distributed as dist
from sparsesync.torch import DistributedDataParallel, wrap_optimizer
from torch import nn
from torch.nn import functional

STEPS = 50
BATCH = 6
WIDTH = 8
CLASSES = 4
WORKERS = 3
MOST_NORM = 4.0
NORMS = {"ddp": 2.0, "ddp_largest": float("inf")}
DEADLINE = 20.0  # seconds

SCHEDULES = tuple(name for name, _ in sparsesync.schedules())
SCHEMES = tuple(name for name, _ in sparsesync.schemes())
ANNOUNCING = ("balanced", "owned")
# A sparse result of these schemes does not name rows that are zero.
WITHOUT_ZERO_ROWS = ("block_ps", "dense_direct", "dense_native", "dense_ring", "two_level")
TABLES = {  # {name: (rows, whether sparse=True)}
    "sparse": (300, True),
    "sparse_bag": (200, True),
    "rows": (2048, False),
    "bag": (2048, False),
    "small": (30, False),
}
DENSE_OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop")
SPARSE_OPTIMIZERS = ("sgd", "momentum", "adagrad", "sparse_adam")
HOOKS = ("tensor scale", "tensor mask", "accumulated scale in place", "accumulated scale anew")
BREAKS = ("ignored_parameter", "own_buffers", "wrong_average", "unused_is_zero")
CLIPS = ("torch", "value", "ddp", "ddp_largest")
CHANGES = ("loads weights", "loads optimizers", "sets rates", "wraps again")
READS = ("gradients", "state", "weights", "state_dict")
_EVERYWHERE = ("table", "layer", "norm", "gain")
FEATURES = (
    *("twice tied norm counter gain double several_optimizers lr_schedule wrapped announce weight_decay evaluates no_sync".split()),
    *("frozen from the start", "freezes on the way", "thaws on the way", "thaws, an error", "two forward passes"),
    *(f"table {each}" for each in TABLES),
    *(f"hook {each} {when} wrapping" for each in HOOKS for when in ("before", "after")),
    *(f"workers {each}" for each in (2, 3)),
    *(f"layers {each}" for each in (1, 2, 3)),
    *(f"optimizer {each}" for each in DENSE_OPTIMIZERS),
    *(f"sparse optimizer {each}" for each in SPARSE_OPTIMIZERS),
    *(f"schedule {each}" for each in SCHEDULES),
    *(f"scheme {each}" for each in ("auto", *SCHEMES)),
    *(f"gradient {each}" for each in ("mean", "sum")),
    *(f"clip {each}" for each in (None, *CLIPS)),
    *CHANGES,
    *("step_hook", "own buffers", "ties a sparse table"),
    *(f"bucket_cap_mb {each}" for each in (None, 1e-9, 0.001)),
    *(f"zero_grad {who} {how}" for who in ("ddp", "module", "optimizer") for how in ("to none", "to zero")),
    "zero_grad never",
    *(f"read {each} first" for each in READS),
    *(f"{each} unused {where}" for each in _EVERYWHERE for where in ("everywhere", "on some workers")),
)


# ---- Drawing a case.


@dataclasses.dataclass(frozen=True)
class Part:
    """One forward and backward pass.

    forwards: forward passes before the backward pass. used: for each worker, the layers that it uses.
    """

    synchronized: bool
    forwards: int
    used: tuple[frozenset[str], ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """One training step.

    zero_grad: the object whose zero_grad() is called; None: gradients are kept. frozen: layers that require no gradient in this step.
    """

    parts: tuple[Part, ...]
    zero_grad: str | None
    set_to_none: bool
    frozen: frozenset[str]
    check: str | None  # the results that are compared first; None: this step's results are not read
    evaluates: bool
    thaws: str | None  # a layer frozen since wrapping; one forward pass in which it requires gradients must fail
    change: str | None  # an action of CHANGES after the step


@dataclasses.dataclass(frozen=True)
class Hook:
    layer: str
    kind: str
    after_wrapping: bool


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its wrapper, its optimizers and all steps of a training. A seed determines them."""

    seed: int
    workers: int
    tables: tuple[str, ...]
    layers: int
    twice: bool  # the first layer is used twice
    tied: bool  # the last table's rows are also weights of the classes; then even a sparse table has a dense gradient
    norm: bool
    counter: bool
    gain: bool
    double: bool  # the last layer is of f64
    frozen: frozenset[str]  # names of layers, frozen when the module is wrapped
    hooks: tuple[Hook, ...]
    optimizer: str
    several_optimizers: bool
    sparse_optimizer: str
    weight_decay: float
    lr_schedule: bool
    wrapped: bool
    clip: str | None
    step_hook: bool  # the program counts the optimizers' steps by a hook
    broadcast_buffers: bool
    schedule: str
    scheme: str
    gradient: str
    announce: bool
    bucket_cap_mb: float | None
    steps: tuple[Step, ...]

    @property
    def ties_sparse(self) -> bool:
        return self.tied and TABLES[self.tables[-1]][1]

    def features(self) -> list[str]:
        """Returns the members of FEATURES that this case has."""
        flags = (
            "twice",
            "tied",
            "norm",
            "counter",
            "gain",
            "double",
            "several_optimizers",
            "lr_schedule",
            "wrapped",
            "announce",
            "step_hook",
        )
        found = {name for name in flags if getattr(self, name)}
        found |= {f"table {each}" for each in self.tables}
        found |= {f"hook {each.kind} {'after' if each.after_wrapping else 'before'} wrapping" for each in self.hooks}
        found |= {f"workers {self.workers}", f"layers {self.layers}", f"optimizer {self.optimizer}", f"schedule {self.schedule}"}
        found |= {f"scheme {self.scheme}", f"gradient {self.gradient}", f"clip {self.clip}", f"bucket_cap_mb {self.bucket_cap_mb}"}
        if any(TABLES[each][1] for each in self.tables):
            found.add(f"sparse optimizer {self.sparse_optimizer}")
        if self.ties_sparse:
            found.add("ties a sparse table")
        if not self.broadcast_buffers:
            found.add("own buffers")
        if self.weight_decay:
            found.add("weight_decay")
        if self.frozen:
            found.add("frozen from the start")
        everyone = frozenset(range(self.workers))
        for before, step in zip((self.steps[0], *self.steps), self.steps, strict=False):
            found.add(f"zero_grad {step.zero_grad} {'to none' if step.set_to_none else 'to zero'}" if step.zero_grad else "zero_grad never")
            found |= {f"read {step.check} first"} if step.check else set()
            found |= {"evaluates"} if step.evaluates else set()
            found |= {"thaws, an error"} if step.thaws else set()
            found |= {step.change} if step.change else set()
            found |= {"freezes on the way"} if step.frozen - before.frozen else set()
            found |= {"thaws on the way"} if before.frozen - step.frozen else set()
            found |= {"no_sync"} if len(step.parts) > 1 else set()
            for part in step.parts:
                found |= {"two forward passes"} if part.forwards > 1 else set()
                for layer in self.optional():
                    without = frozenset(rank for rank in everyone if layer not in part.used[rank])
                    if without and part.synchronized:
                        found.add(f"{layer[:5]} unused {'everywhere' if without == everyone else 'on some workers'}")
        return sorted(found)

    def optional(self) -> list[str]:
        """Returns the names of layers that a pass may leave out."""
        return [
            *(f"table{i}" for i in range(len(self.tables))),
            *(f"layer{i}" for i in range(self.layers)),
            *(["norm"] if self.norm else []),
            *(["gain"] if self.gain else []),
        ]

    def __str__(self) -> str:
        shown = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in dataclasses.fields(self)
            if each.name not in ("seed", "steps", "hooks", "frozen") and getattr(self, each.name) not in (False, None, 0.0)
        ]
        hooks = [f"{each.layer}: {each.kind} {'after' if each.after_wrapping else 'before'} wrapping" for each in self.hooks]
        return f"{', '.join(shown)}, frozen={sorted(self.frozen)}, hooks={hooks}"


def draw(seed: int) -> Case:
    """Returns the case of a seed. Consecutive seeds cycle through schedules, schemes and optimizers."""
    source = random.Random(seed)

    def chance(probability: float) -> bool:
        return source.random() < probability

    workers = 3 if seed % 4 == 3 else 2
    tables = tuple(source.choice(list(TABLES)) for _ in range(source.randint(1, 3)))
    layers = source.randint(1, 3)
    schedule = SCHEDULES[(seed + seed // 8) % len(SCHEDULES)]
    scheme = "auto" if chance(0.05) else SCHEMES[(seed + seed // len(SCHEMES)) % len(SCHEMES)]
    clip = source.choice([None, None, None, *CLIPS])
    if clip in ("torch", "value") and any(TABLES[each][1] for each in tables):
        clip = "ddp"  # torch.nn.utils takes no sparse gradients
    announce = scheme in ANNOUNCING and chance(0.3)
    case = Case(
        seed=seed,
        workers=workers,
        tables=tables,
        layers=layers,
        twice=chance(0.4),
        tied=tables[-1] in ("sparse", "rows", "small") and chance(0.5),
        norm=chance(0.5),
        counter=chance(0.5),
        gain=chance(0.5),
        double=chance(0.2),
        frozen=frozenset(),
        hooks=(),
        optimizer=DENSE_OPTIMIZERS[(seed + seed // 7) % len(DENSE_OPTIMIZERS)],
        several_optimizers=chance(0.3),
        sparse_optimizer=source.choice(SPARSE_OPTIMIZERS),
        weight_decay=source.choice([0.0, 0.25]),
        lr_schedule=chance(0.4),
        wrapped=chance(0.5),
        clip=clip,
        step_hook=chance(0.2),
        broadcast_buffers=chance(0.85),
        schedule=schedule,
        scheme=scheme,
        gradient="mean" if chance(0.7) else "sum",
        announce=announce,
        bucket_cap_mb=source.choice([None, None, 1e-9, 0.001]),
        steps=(),
    )
    optional = case.optional()
    frozen = frozenset(each for each in optional if chance(0.1))
    hooks = tuple(Hook(each, source.choice(HOOKS), chance(0.5)) for each in [*optional, "out"] if chance(0.25))
    case = dataclasses.replace(case, frozen=frozen, hooks=hooks)
    steps = _draw_steps(case, source)
    if (scheme == "auto" or scheme in WITHOUT_ZERO_ROWS) and case.sparse_optimizer == "sparse_adam":  # it updates rows of zeros, too
        case = dataclasses.replace(case, sparse_optimizer="momentum")
    if case.ties_sparse:
        case = dataclasses.replace(case, sparse_optimizer="sgd")  # others keep states that are sparse or dense
    return dataclasses.replace(case, steps=steps)


def _draw_steps(case: Case, source: random.Random) -> tuple[Step, ...]:
    optional = case.optional()
    unused = source.choice([0.0, 0.1, 0.4])  # a probability
    accumulates, checked, zeroes = source.choice([0.0, 0.3]), source.choice([0.3, 1.0]), source.choice([0.0, 0.3])
    freezes = source.choice([0.0, 0.1])
    # Clipped gradients are not rounded. Sums of kept ones would depend on the order of additions.
    # With announce=True every step begins without gradients: rows of kept ones are not announced.
    stale = 0.1 if case.clip is None and not case.announce and source.random() < 0.3 else 0.0
    # A hook scales a kept gradient as often as a worker adds to it, so that those of three workers have no exact mean.
    if case.workers == 3 and case.gradient == "mean" and any(each.kind.startswith("accumulated") for each in case.hooks):
        stale = 0.0

    def used() -> tuple[frozenset[str], ...]:
        nowhere = {each for each in optional if source.random() < unused}
        return tuple(frozenset(each for each in optional if each not in nowhere and source.random() >= unused) for _ in range(case.workers))

    thawed = sorted(case.frozen - {"norm"})  # a norm may have no parameters
    now: frozenset[str] = frozenset()
    steps = []
    for number in range(STEPS):
        if source.random() < freezes:
            now = frozenset(each for each in optional if each not in case.frozen and source.random() < 0.3)
        change = source.choice(CHANGES)
        # A layer that is frozen at wrapping could not be unfrozen later. announce: the first step must look up every table.
        if change == "wraps again" and (case.announce or now):
            change = "sets rates"
        count = 2 + (source.random() < 0.3) if source.random() < accumulates else 1
        parts = tuple(Part(part == count - 1, 2 if source.random() < 0.1 and not case.announce else 1, used()) for part in range(count))
        if case.announce and number == 0:  # the first step must look up every table
            parts = (Part(True, 1, tuple(frozenset(optional) for _ in range(case.workers))),)
        steps.append(
            Step(
                parts=parts,
                zero_grad=None if source.random() < stale else source.choice(["ddp", "module", "optimizer"]),
                set_to_none=source.random() >= zeroes,
                frozen=now,
                check=source.choice(READS) if source.random() < checked or number == STEPS - 1 else None,
                evaluates=source.random() < 0.15,
                thaws=source.choice(thawed) if thawed and source.random() < 0.05 else None,
                change=change if source.random() < 0.1 else None,
            )
        )
    return tuple(steps)


def plain(seed: int) -> Case:
    """Returns a case that shows each fault of BREAKS."""
    case = draw(4 * seed)  # two workers
    used = frozenset(case.optional()) - {"layer0"}
    part = Part(True, 1, (used, used))
    first, others = (
        Step((each,), "module", True, frozenset(), "gradients", True, None, None)
        for each in (dataclasses.replace(part, used=(used | {"layer0"},) * 2), part)
    )
    return dataclasses.replace(
        case,
        counter=True,
        frozen=frozenset(),
        hooks=(),
        optimizer="momentum",
        weight_decay=0.25,
        wrapped=False,
        clip=None,
        broadcast_buffers=True,
        announce=False,
        schedule="lazy",
        scheme="balanced",
        steps=(first, *[others] * (STEPS - 1)),
    )


# ---- The model.


class Rounded(torch.autograd.Function):
    """Rounds values to multiples of 1/32, and their gradients to multiples of `unit`; both are small."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, unit: float | None) -> torch.Tensor:
        context.unit = unit
        return (values * 32).round().clamp(-128, 128) / 32

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        if context.unit is None:
            return gradient, None
        return (gradient / context.unit).round().clamp(-64, 64) * context.unit, None


class Exact(nn.Linear):
    """A layer whose sums are exact."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        bias = Rounded.apply(self.bias, None)
        return functional.linear(values.to(bias.dtype), Rounded.apply(self.weight, None), bias).to(values.dtype)


class Model(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        # Multiples of 3 have exact means over three workers.
        self.unit = (3 if case.workers == 3 and case.gradient == "mean" else 1) / 16
        self.tables = nn.ModuleList(_table(each) for each in case.tables)
        self.layers = nn.ModuleList(Exact(WIDTH, WIDTH) for _ in range(case.layers))
        # Gradients of its weights are not rounded, and a sum of three depends on the order of additions.
        self.norm = nn.BatchNorm1d(WIDTH, affine=case.workers == 2) if case.norm else None
        self.gain = nn.Parameter(torch.ones(())) if case.gain else None
        self.out = Exact(WIDTH, CLASSES)
        if case.double:
            self.layers[-1].double()
        self.register_buffer("seen", torch.zeros(1))

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Rounded.apply(values, self.unit)
        return result

    def forward(self, ids: torch.Tensor, values: torch.Tensor, used: frozenset[str]) -> torch.Tensor:
        case = self.case
        hidden = values
        for number, table in enumerate(self.tables):
            if f"table{number}" in used:
                own = ids[:, number] % table.num_embeddings
                hidden = hidden + self.rounded(table(own[:, :2] if isinstance(table, nn.EmbeddingBag) else own[:, 0]))
        if case.counter:
            if self.training:
                self.seen = (self.seen + values.abs().sum()) % 4
            hidden = hidden + self.seen
        hidden = self.rounded(hidden)
        for number, layer in enumerate(self.layers):
            if f"layer{number}" in used:
                hidden = self.rounded(functional.relu(layer(hidden)))
                if case.twice and number == 0:
                    hidden = self.rounded(layer(hidden))
        if self.norm is not None and "norm" in used:
            hidden = self.rounded(self.norm(hidden))
        if self.gain is not None and "gain" in used:
            hidden = self.rounded(hidden * Rounded.apply(self.gain, None))
        result = self.out(hidden)
        if case.tied and f"table{len(self.tables) - 1}" in used:
            rows = Rounded.apply(self.tables[-1].weight[:CLASSES], None)
            result = result + functional.linear(hidden, rows)
        return self.rounded(result)

    def layer(self, name: str) -> list[nn.Parameter]:
        """Returns the parameters of a layer by its name in a Case."""
        if name in ("norm", "out"):
            return list(getattr(self, name).parameters())
        if name == "gain":
            assert self.gain is not None
            return [self.gain]
        of_kind = self.tables if name.startswith("table") else self.layers
        return list(of_kind[int(name[5:])].parameters())


def _table(kind: str) -> nn.Embedding | nn.EmbeddingBag:
    rows, sparse = TABLES[kind]
    if kind.endswith("bag"):
        return nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=sparse)
    return nn.Embedding(rows, WIDTH, sparse=sparse)


def add_hooks(module: Model, hooks: Iterable[Hook]) -> None:
    for hook in hooks:
        for each in module.layer(hook.layer):
            _add_hook(each, hook.kind)


def _add_hook(parameter: nn.Parameter, kind: str) -> None:
    def masked(gradient: torch.Tensor) -> torch.Tensor:
        if gradient.is_sparse:
            return gradient * 2.0
        mask = (torch.arange(gradient.numel()) % 3 != 0).view(gradient.shape)
        return gradient * mask

    def scaled_in_place(held: torch.Tensor) -> None:
        assert held.grad is not None
        held.grad.mul_(0.5)

    def scaled_anew(held: torch.Tensor) -> None:
        assert held.grad is not None
        held.grad = held.grad * 2.0

    if not parameter.requires_grad:
        return
    if kind == "tensor scale":
        parameter.register_hook(lambda gradient: gradient * 0.5)
    elif kind == "tensor mask":
        parameter.register_hook(masked)
    else:
        parameter.register_post_accumulate_grad_hook(scaled_in_place if kind.endswith("in place") else scaled_anew)


# ---- Optimizers.


def optimizers_of(module: Model) -> list[torch.optim.Optimizer]:
    case = module.case
    sparse = [each.weight for each in module.tables if each.sparse]
    others = [each for each in module.parameters() if not any(each is one for one in sparse)]
    made = []
    if sparse:
        made.append(_sparse_optimizer(case.sparse_optimizer, sparse))
    if case.several_optimizers and len(others) > 2:
        made.append(torch.optim.SGD(others[:2], 0.125))
        others = others[2:]
    groups = [{"params": others[:1]}, {"params": others[1:], "lr": 0.03125}]
    made.append(_dense_optimizer(case.optimizer, groups, case.weight_decay))
    return made


def _sparse_optimizer(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if name == "sparse_adam":
        return torch.optim.SparseAdam(parameters, 0.0625)
    if name == "adagrad":
        return torch.optim.Adagrad(parameters, 0.0625, lr_decay=0.01)
    return torch.optim.SGD(parameters, 0.0625, momentum=0.75 if name == "momentum" else 0.0)


def _dense_optimizer(name: str, groups: list[dict[str, Any]], weight_decay: float) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": 0.0625, "weight_decay": weight_decay}
    if name in ("sgd", "momentum", "nesterov"):
        return torch.optim.SGD(groups, momentum=0.0 if name == "sgd" else 0.75, nesterov=name == "nesterov", **options)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
    }
    return kinds[name](groups, **options)


def schedulers_of(case: Case, optimizers: Iterable[torch.optim.Optimizer]) -> list[Any]:
    if not case.lr_schedule:
        return []
    return [torch.optim.lr_scheduler.StepLR(each, 9, 0.5) for each in optimizers]


# ---- One training.


class Training:
    """A model with its optimizers. `run` is the model or its wrapper."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.run: Any = model
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self.steps = 0  # counted by a hook

    def set_up(self) -> None:
        add_hooks(self.model, [each for each in self.model.case.hooks if each.after_wrapping])
        self.optimizers = optimizers_of(self.model)
        if self.model.case.step_hook:
            self.optimizers[0].register_step_post_hook(self.on_step)

    def on_step(self, *_: object) -> None:
        self.steps += 1

    def freeze(self, step: Step) -> None:
        for name in self.model.case.optional():
            if name not in self.model.case.frozen:
                for each in self.model.layer(name):
                    each.requires_grad_(name not in step.frozen)

    def zero_grad(self, step: Step) -> None:
        if step.zero_grad == "optimizer":
            for each in self.optimizers:
                each.zero_grad(step.set_to_none)
        elif step.zero_grad:
            (self.run if step.zero_grad == "ddp" else self.model).zero_grad(step.set_to_none)

    def backward(self, part: Part, rank: int, batches: Sequence[tuple[torch.Tensor, ...]]) -> None:
        losses = []
        for ids, values, target in batches:
            # The gradient of the loss is a multiple of the unit.
            losses.append(((self.run(ids, values, part.used[rank]) - target) * (16 * self.model.unit)).square().sum() / 2)
        torch.stack(losses).sum().backward()

    def step(self) -> None:
        for each in (*self.optimizers, *self.schedulers):
            each.step()


class Failure(Exception):
    """An expected error is missing, or does not name its parameter."""


class Comparison:
    """Trains with sparsesync and by hand, step by step, on one of the workers of `group`."""

    def __init__(self, case: Case, group: Any, broken: str | None) -> None:
        self.case = case
        self.group = group
        self.broken = broken
        self.rank = dist.get_rank(group)
        torch.manual_seed(case.seed)
        model = Model(case)
        for name in case.frozen:
            for each in model.layer(name):
                each.requires_grad_(False)
        self.hand = Training(copy.deepcopy(model))
        if self.rank > 0:  # a model becomes worker 0's as it is wrapped
            with torch.no_grad():
                for tensor in (*model.parameters(), *(model.buffers() if case.broadcast_buffers else ())):
                    tensor += 1
        self.ours = Training(model)
        for training in (self.hand, self.ours):
            add_hooks(training.model, [each for each in case.hooks if not each.after_wrapping])
        if broken == "ignored_parameter":
            model._ddp_params_and_buffers_to_ignore = ["out.bias"]  # type: ignore[assignment]
            model.out.bias.data.copy_(self.hand.model.out.bias)

    def begin(self) -> str:
        """Wraps the model and sets up both trainings. Returns a problem, or an empty string."""
        try:
            self.wrap()
        except Exception:
            return self.any_problem(traceback.format_exc(limit=-6))
        return self.any_problem("")

    def wrap(self) -> None:
        case = self.case
        self.ours.run = self.wrapped()
        for training in (self.hand, self.ours):
            training.set_up()
        if case.wrapped:
            for each in self.ours.optimizers:
                if any(parameter.requires_grad for group in each.param_groups for parameter in group["params"]):
                    wrap_optimizer(each, self.ours.run)
        for training in (self.hand, self.ours):
            training.schedulers = schedulers_of(case, training.optimizers)

    def wrapped(self) -> DistributedDataParallel:
        case = self.case
        return DistributedDataParallel(
            self.ours.model,
            self.group,
            scheme=case.scheme,
            gradient=case.gradient,
            deadline=DEADLINE,
            announce=case.announce,
            schedule=case.schedule,
            bucket_cap_mb=case.bucket_cap_mb,
            broadcast_buffers=self.case.broadcast_buffers and self.broken != "own_buffers",
        )

    def close(self) -> None:
        if isinstance(self.ours.run, DistributedDataParallel):
            self.ours.run.close()

    def batches(self, number: int, step: Step) -> Iterator[list[tuple[torch.Tensor, ...]]]:
        """Yields the batches of each part of a step on this worker."""
        source = torch.Generator().manual_seed(1_000_000 * self.rank + 100 * number + self.case.seed % 97)
        for part in step.parts:
            yield [
                (
                    torch.randint(0, 1 << 20, (BATCH, len(self.case.tables), 2), generator=source),
                    torch.randint(-8, 8, (BATCH, WIDTH), generator=source) / 8,
                    torch.randint(-8, 8, (BATCH, CLASSES), generator=source) / 4,
                )
                for _ in range(part.forwards)
            ]

    def step(self, number: int) -> str:
        """Runs one step of both trainings, and compares them. Returns a problem; empty if no worker has one."""
        step = self.case.steps[number]
        norm, problem = None, ""
        try:
            norm = self.step_ours(number, step)
        except Exception:
            problem = traceback.format_exc(limit=-6)
            self.close()
        if self.any_problem(problem):
            return problem or "another worker failed"
        self.step_by_hand(number, step, norm)
        if not step.evaluates and not step.check:
            return ""
        if step.evaluates:
            self.broadcast_buffers()
        try:
            problem = self.evaluate(number) if step.evaluates else ""
            if problem or step.check:
                problem = "; ".join(each for each in (problem, self.compare(step.check or "gradients")) if each)
        except Exception:
            problem = traceback.format_exc(limit=-6)
            self.close()
        return self.any_problem(problem, self.checksum() if step.check else 0)

    def any_problem(self, problem: str, checksum: int = 0) -> str:
        """Returns a problem if any worker has one, or if checksums differ between workers; else an empty string."""
        own = torch.tensor([int(bool(problem)), checksum])
        gathered = [torch.empty_like(own) for _ in range(self.case.workers)]
        dist.all_gather(gathered, own, group=self.group)
        if any(each[0] for each in gathered):
            return problem or "another worker has a problem"
        return "" if all(torch.equal(each, own) for each in gathered) else "weights differ between workers"

    def checksum(self) -> int:
        """Returns a checksum of the weights that sparsesync trained."""
        return zlib.crc32(b"".join(each.detach().numpy().tobytes() for each in self.ours.model.parameters()))

    # ---- Training with sparsesync.

    def step_ours(self, number: int, step: Step) -> torch.Tensor | None:
        ours, ddp = self.ours, self.ours.run
        ours.freeze(step)
        ours.zero_grad(step)
        batches = list(self.batches(number, step))
        if step.thaws:
            self.expect_refused(step.thaws, batches[0][0])
        for part, of_part in zip(step.parts, batches, strict=True):
            with contextlib.nullcontext() if part.synchronized else ddp.no_sync():
                ours.backward(part, self.rank, of_part)
        norm = None
        if self.case.clip in NORMS:
            norm = ddp.clip_grad_norm_(MOST_NORM, NORMS[self.case.clip])
        self.clip_by_torch(ours.model)
        ours.step()
        if step.change == "wraps again":
            ddp.close()
            ours.run = self.wrapped()
        self.change(ours, step)
        return norm

    @staticmethod
    def change(training: Training, step: Step) -> None:
        """Performs the change that a program makes between steps."""
        if step.change == "loads weights":
            state = training.run.state_dict()
            training.run.load_state_dict({name: each / 2 if each.is_floating_point() else each for name, each in state.items()})
        elif step.change == "loads optimizers":
            for each in training.optimizers:
                each.load_state_dict(copy.deepcopy(each.state_dict()))
        elif step.change == "sets rates":
            for each in training.optimizers:
                for group in each.param_groups:
                    group["lr"] /= 2

    def expect_refused(self, layer: str, batch: tuple[torch.Tensor, ...]) -> None:
        """Expects an OrderError that names a parameter which did not require a gradient at wrapping, and does now."""
        (parameter, *_) = self.ours.model.layer(layer)
        (name,) = [name for name, each in self.ours.model.named_parameters() if each is parameter]
        parameter.requires_grad_(True)
        try:
            self.ours.run(*batch[:2], frozenset())
        except sparsesync.OrderError as error:
            if f"'{name}'" not in str(error):
                raise Failure(f"the error does not name {name}: {error}") from error
        else:
            raise Failure(f"{name} requires a gradient, and nothing was raised")
        finally:
            parameter.requires_grad_(False)

    # ---- Training by hand.

    def step_by_hand(self, number: int, step: Step, norm: torch.Tensor | None) -> None:
        hand = self.hand
        hand.freeze(step)
        hand.zero_grad(step)
        self.broadcast_buffers()  # like torch's DDP: before the first forward pass of a step, also within no_sync()
        for part, of_part in zip(step.parts, self.batches(number, step), strict=True):
            hand.backward(part, self.rank, of_part)
        self.average()
        self.clip_by_torch(hand.model)
        if norm is not None:
            self.clip(norm)
        hand.step()
        if step.change == "wraps again":
            self.broadcast_buffers()
        self.change(hand, step)

    def clip_by_torch(self, model: Model) -> None:
        if self.case.clip == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM)
        elif self.case.clip == "value":
            nn.utils.clip_grad_value_(model.parameters(), 0.25)

    def clip(self, norm: torch.Tensor) -> None:
        """Clips by the norm that sparsesync computed, so that only the norm may differ by rounding."""
        gradients = [each.grad for each in self.hand.model.parameters() if each.grad is not None]
        values = torch.cat([each.to_dense().flatten() for each in gradients]).double()
        self.own_norm = (float(norm), float(torch.linalg.vector_norm(values, NORMS[self.case.clip or ""])))
        for each in gradients:
            each.mul_(torch.clamp(MOST_NORM / (norm + 1e-6), max=1.0))

    def broadcast_buffers(self) -> None:
        if self.case.broadcast_buffers:
            for each in self.hand.model.buffers():
                dist.broadcast(each, group=self.group, group_src=0)

    def average(self) -> None:
        """Makes each gradient the sum or mean of those of all workers, added in the order of ranks."""
        parameters = [each for each in self.hand.model.parameters() if each.numel() > 0]
        flags = torch.tensor([float(each.grad is not None) for each in parameters])
        named = [torch.zeros(len(each)) for each in parameters if self.is_sparse(each)]
        for place, each in enumerate(each for each in parameters if self.is_sparse(each)):
            if each.grad is not None:
                named[place][each.grad._indices().flatten()] = 1
        parts = [flags, *named]
        for each in parameters:
            dense = torch.zeros_like(each) if each.grad is None else each.grad.detach()
            parts.append(dense.to_dense().flatten())
        own = torch.cat(parts)
        gathered = [torch.empty_like(own) for _ in range(self.case.workers)]
        dist.all_gather(gathered, own, group=self.group)
        if self.broken == "wrong_average":
            gathered[-1] = gathered[0]
        split = [each.split([each.numel() for each in parts]) for each in gathered]
        used = torch.stack([each[0] for each in split]).sum(0)
        rows_of = [
            torch.stack(of_workers).sum(0).nonzero().flatten()
            for of_workers in zip(*(each[1 : -len(parameters)] for each in split), strict=True)
        ]
        divisor = self.case.workers if self.case.gradient == "mean" else 1
        for place, each in enumerate(parameters):
            rows = rows_of.pop(0) if self.is_sparse(each) else None
            if not used[place] and self.broken != "unused_is_zero":
                continue
            of_workers = [of_worker[place - len(parameters)].view(each.shape) for of_worker in split]
            total = torch.zeros_like(each)
            for one in of_workers:
                total += one
            total /= divisor
            if rows is not None:
                each.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), total[rows], each.shape, is_coalesced=True, check_invariants=False)
            elif each.grad is None:
                each.grad = total
            else:
                each.grad.copy_(total)

    def is_sparse(self, parameter: torch.Tensor) -> bool:
        tied = self.hand.model.tables[-1].weight if self.case.tied else None
        return parameter is not tied and any(table.sparse and table.weight is parameter for table in self.hand.model.tables)

    # ---- Comparing.

    def evaluate(self, number: int) -> str:
        """Compares the outputs and buffers of an evaluation, in which all workers have the buffers of worker 0."""
        used = frozenset(self.case.optional())
        source = torch.Generator().manual_seed(number)
        ids = torch.randint(0, 1 << 20, (BATCH, len(self.case.tables), 2), generator=source)
        values = torch.randint(-8, 8, (BATCH, WIDTH), generator=source) / 8
        results = []
        for training in (self.ours, self.hand):
            training.run.eval()
            with torch.no_grad():
                results.append(training.run(ids, values, used))
            training.run.train()
        return _difference("the output of eval()", *results) or self.buffers()

    def compare(self, first: str) -> str:
        """Returns all differences between the trainings. `first` is read before all other results."""
        looks = {
            "gradients": self.gradients,
            "state": self.state,
            "weights": self.weights,
            "state_dict": self.state_dict,
        }
        order = dict.fromkeys([first, *looks])
        found = "; ".join(problem for each in order for problem in [looks[each]()] if problem)
        if self.ours.steps != self.hand.steps:
            found += f"; a hook has seen {self.ours.steps} steps and not {self.hand.steps}"
        if self.case.clip in NORMS:
            ours, hand = self.own_norm
            if abs(ours - hand) > 1e-5 * hand + 1e-6:
                found += f"; the norm of gradients is {ours} and not {hand}"
        return found

    def pairs(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        for (name, ours), hand in zip(self.ours.model.named_parameters(), self.hand.model.parameters(), strict=True):
            yield name, ours, hand

    def gradients(self) -> str:
        for name, ours, hand in self.pairs():
            mine = ours.grad
            if mine is not None and not self.is_sparse(hand) and self.case.ties_sparse:
                mine = mine.to_dense()  # sparse if this worker did not use the table
            problem = _difference(f"the gradient of {name}", mine, hand.grad)
            if problem:
                return problem
        return ""

    def weights(self) -> str:
        for name, ours, hand in self.pairs():
            problem = _difference(name, ours.detach(), hand.detach())
            if problem:
                return problem
        return ""

    def state_dict(self) -> str:
        hand = dict(self.hand.model.named_parameters())
        for name, value in self.ours.run.state_dict().items():
            own = name.removeprefix("module.")
            if own in hand:
                problem = _difference(f"state_dict()'s {name}", value, hand[own].detach())
                if problem:
                    return problem
        return ""

    def buffers(self) -> str:
        for (name, ours), hand in zip(self.ours.model.named_buffers(), self.hand.model.buffers(), strict=True):
            problem = _difference(f"buffer {name}", ours, hand)
            if problem:
                return problem
        return ""

    def state(self) -> str:
        for number, (ours, hand) in enumerate(zip(self.ours.optimizers, self.hand.optimizers, strict=True)):
            states = [_state_of(each, self.names(training)) for each, training in ((ours, self.ours), (hand, self.hand))]
            if states[0].keys() != states[1].keys():
                return f"optimizer {number} has the states {sorted(states[0])} and not {sorted(states[1])}"
            for name, value in states[1].items():
                problem = _difference(f"optimizer {number}'s {name}", states[0][name], value)
                if problem:
                    return problem
        return ""

    @staticmethod
    def names(training: Training) -> dict[int, str]:
        return {id(each): name for name, each in training.model.named_parameters()}


def _state_of(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    return {f"{key} of {names[id(parameter)]}": value for parameter, entries in optimizer.state.items() for key, value in entries.items()}


def _difference(what: str, ours: Any, hand: Any) -> str:
    """Describes the difference between two values; empty if they are equal."""
    if not isinstance(ours, torch.Tensor) or not isinstance(hand, torch.Tensor):
        same = not isinstance(ours, torch.Tensor) and not isinstance(hand, torch.Tensor) and ours == hand
        return "" if same else f"{what} is {_shown(ours)} and not {_shown(hand)}"
    if ours.is_sparse != hand.is_sparse:
        return f"{what} is {ours.layout} and not {hand.layout}"
    ours, hand = ours.detach().to_dense(), hand.detach().to_dense()
    if torch.equal(ours, hand):
        return ""
    worst = (ours - hand).abs()
    place = int(worst.argmax())
    at = f"{int((worst > 0).sum())} of {worst.numel()} elements, {float(ours.flatten()[place])} and not {float(hand.flatten()[place])}"
    return f"{what}: {at} at {place}"


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"a tensor {list(value.shape)} with the greatest element {float(value.detach().to_dense().abs().max())}"


# ---- A run of several seeds.


def train(case: Case, group: Any, broken: str | None = None) -> str:
    """Trains both ways. Returns the first problem, with its step; empty if there is none."""
    comparison = Comparison(case, group, broken)
    try:
        problem = comparison.begin()
        if problem:
            return problem
        for number in range(STEPS):
            problem = comparison.step(number)
            if problem:
                return f"step {number}: {problem}"
        return ""
    finally:
        comparison.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, required=True, help="first seed")
    options.add_argument("--seeds", type=int, default=1, help="maximum number of seeds (1)")
    options.add_argument("--seconds", type=float, default=1e9, help="seconds after which no further seed starts")
    options.add_argument("--folder", type=Path, help="folder for RANK.json, the results of each rank")
    options.add_argument("--broken", choices=BREAKS, nargs="*", help="faults to introduce, one after another")
    options.add_argument("--go-on", action="store_true", help="run all seeds even if one fails")
    given = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {count: dist.new_group(list(range(count))) for count in (2, WORKERS)}
    began = time.monotonic()
    seeds = 0
    failures: dict[str, str] = {}
    features: collections.Counter[str] = collections.Counter()
    for seed in range(given.seed, given.seed + given.seeds):
        case = plain(seed) if given.broken else draw(seed)
        seeds += 1
        features.update(case.features())
        for broken in given.broken or [None]:
            problem = train(case, groups[case.workers], broken) if rank < case.workers else ""
            if problem:
                failures[f"{seed} {broken}" if broken else f"{seed}"] = f"{problem}\n    {case}"
                print(f"worker {rank}: --seed {seed}: {problem}\n    {case}", flush=True)
        # All workers stop after the same seed.
        ends = torch.tensor([int(time.monotonic() - began > given.seconds or (bool(failures) and not given.go_on))])
        dist.all_reduce(ends)
        if ends:
            break
    if rank == 0:
        took = time.monotonic() - began
        counted = ", ".join(f"{name}: {count}" for name, count in sorted(features.items()))
        print(f"{seeds} seeds from {given.seed} in {took:.0f} s, {len(failures)} failed; {counted}", flush=True)
    if given.folder:
        found = {"seeds": seeds, "features": features, "failures": failures}
        (given.folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
