"""The program of parity_test.py: trains small models with torch's DistributedDataParallel and with sparsesync, and writes their losses.

    parity_cases.py FOLDER SEED
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python" / "examples"))

import common
import sparsesync.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

STEPS = 4
BATCH = 6
FIELDS = 3
WIDTH = 16
CLASSES = 5
KINDS = ("sparse", "dense_with_zeros", "dense")
OPTIMIZERS = ("sgd", "momentum", "adam", "sparse_adam", "adagrad")
REGIMES = ("clip", "accumulate", "autocast")


class Model(nn.Module):
    """`rows` is the number of rows of its tables. Ids are [batch, FIELDS] and smaller than `rows`."""

    def __init__(self, rows: int, sparse: bool) -> None:
        super().__init__()
        self.rows, self.sparse = rows, sparse
        self.make()

    def table(self, **options: Any) -> nn.Embedding:
        return nn.Embedding(self.rows, WIDTH, sparse=self.sparse, **options)

    def make(self) -> None:
        raise NotImplementedError

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        raise NotImplementedError


class Plain(Model):
    def make(self) -> None:
        self.embedding = self.table()
        self.out = nn.Linear(FIELDS * WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        return self.out(self.embedding(ids).flatten(1))


class Padded(Plain):
    def make(self) -> None:
        self.embedding = self.table(padding_idx=0)
        self.out = nn.Linear(FIELDS * WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        return super().forward(torch.where(ids % 3 == 0, 0, ids), step, rank)


class Bag(Model):
    def make(self) -> None:
        self.bag = nn.EmbeddingBag(self.rows, WIDTH, mode="sum", sparse=self.sparse)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        return self.out(self.bag(ids))


class SeveralTables(Model):
    def make(self) -> None:
        self.tables = nn.ModuleList(self.table() for _ in range(FIELDS))
        self.wide = nn.Embedding(self.rows, 1, sparse=self.sparse)
        self.out = nn.Sequential(nn.Linear(FIELDS * WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        deep = self.out(torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1))
        return deep + self.wide(ids).sum(dim=1)


class Recurrent(Model):
    """Runs the LSTM without autocast: oneDNN has a bfloat16 LSTM only on some processors, and torch requests it on all of them."""

    def make(self) -> None:
        self.embedding = self.table()
        self.lstm = nn.LSTM(WIDTH, 8, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            hidden = self.lstm(self.embedding(ids))[0]
        return self.out(hidden[:, -1])


class Tied(Model):
    """One table is looked up twice. Its rows are also the weights of the classes."""

    def make(self) -> None:
        self.embedding = self.table()
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("choices", torch.arange(CLASSES))

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        hidden = self.middle(self.embedding(ids).sum(dim=1))
        return hidden.to(self.embedding.weight.dtype) @ self.embedding(self.choices).T


class Buffers(Model):
    """Running means, which are those of worker 0."""

    def make(self) -> None:
        self.embedding = self.table()
        self.norm = nn.BatchNorm1d(FIELDS * WIDTH)
        self.out = nn.Linear(FIELDS * WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        return self.out(self.norm(self.embedding(ids).flatten(1)))


class Frozen(Model):
    def make(self) -> None:
        self.embedding = self.table()
        self.still = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        return self.out(self.still(self.embedding(ids).mean(dim=1)))


class Mixed(Model):
    """Parameters of two types."""

    def make(self) -> None:
        self.embedding = self.table()
        self.inner = nn.Linear(WIDTH, 8).double()
        self.out = nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            inner = self.inner(self.embedding(ids).mean(dim=1).double())
        return self.out(inner.float())


class Unused(Model):
    """Has an unused part, and a part that one worker uses at some steps only. torch's DDP does not support sparse gradients here."""

    def make(self) -> None:
        self.embedding = nn.Embedding(self.rows, WIDTH, sparse=False)
        self.never = nn.Linear(3, 3)
        self.sometimes = nn.Linear(FIELDS * WIDTH, CLASSES)
        self.out = nn.Linear(FIELDS * WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        looked_up = self.embedding(ids).flatten(1)
        result = self.out(looked_up)
        return result + self.sometimes(looked_up) if (step + rank) % 2 else result


MODELS: dict[str, type[Model]] = {
    each.__name__.lower(): each
    for each in (Plain, Padded, Bag, SeveralTables, Recurrent, Tied, Buffers, Frozen, Mixed, Unused)
}


def tables_of(module: nn.Module) -> list[nn.Parameter]:
    return [each.weight for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]


def optimizers_of(module: nn.Module, name: str, kind: str) -> list[torch.optim.Optimizer]:
    """Returns optimizers by name. If the optimizer does not support sparse gradients, tables get SGD and the other parameters get it."""
    tables = {id(each) for each in tables_of(module)}
    sparse = [each for each in module.parameters() if id(each) in tables]
    others = [each for each in module.parameters() if id(each) not in tables and each.requires_grad]
    both = [*sparse, *others]
    lr = 0.05
    if name == "sgd":
        return [torch.optim.SGD(both, lr)]
    if name == "momentum":
        return [torch.optim.SGD(both, lr, momentum=0.9)]
    if name == "adagrad":
        return [torch.optim.Adagrad(both, lr)]
    if name == "sparse_adam":
        return [torch.optim.SparseAdam(sparse, lr), torch.optim.Adam(others, lr)]
    if kind == "sparse":
        return [torch.optim.SGD(sparse, lr), torch.optim.Adam(others, lr)]
    return [torch.optim.Adam(both, lr)]


def clip(module: nn.Module) -> float:
    """Clips by the norm of all gradients, because clip_grad_norm_ does not support sparse ones."""
    gradients = [each.grad for each in module.parameters() if each.grad is not None]
    values = [each.coalesce().values() if each.is_sparse else each for each in gradients]
    if not any(each.is_sparse for each in gradients):
        return float(nn.utils.clip_grad_norm_(module.parameters(), 0.05))
    norm = torch.stack([each.double().norm() for each in values]).norm()
    for each in gradients:
        each.mul_(min(1.0, 0.05 / (float(norm) + 1e-6)))
    return float(norm)


def batches(seed: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(seed)
    while True:
        yield (
            torch.randint(0, rows, (BATCH, FIELDS), generator=source),
            torch.randint(0, CLASSES, (BATCH,), generator=source),
        )


def train(
    module: Model, wrap: Callable[[nn.Module], Any], optimizer: str, regime: str, kind: str, seed: int, device: str = "cpu"
) -> dict[str, Any]:
    """Returns the losses of each step on this worker, and a checksum of the final weights."""
    rank = dist.get_rank()
    wrapped = wrap(module)
    optimizers = optimizers_of(module, optimizer, kind)
    source = batches(seed + rank, module.rows)
    losses, norms = [], []
    for step in range(STEPS):
        parts = 2 if regime == "accumulate" else 1
        for each in optimizers:
            each.zero_grad()
        for part in range(parts):
            ids, target = (each.to(device) for each in next(source))
            waiting = wrapped.no_sync() if part < parts - 1 else contextlib.nullcontext()
            with waiting, torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=regime == "autocast"):
                loss = functional.cross_entropy(wrapped(ids, step, rank).float(), target) / parts
                loss.backward()
            losses.append(loss.item())
        if regime == "clip":
            norms.append(clip(module))
        for each in optimizers:
            each.step()
    weights = [each.detach().double().cpu() for each in module.parameters()]
    return {
        "losses": losses,
        "norms": norms,
        "sparse": [each.grad is not None and each.grad.is_sparse for each in module.parameters()],
        "sums": [float(each.sum()) for each in weights],
        "bits": [each.numpy().tobytes().hex()[-64:] for each in weights],
    }


def torchs_own(group: Any, model: str) -> Callable[[nn.Module], Any]:
    """Wraps a model of MODELS in torch's DistributedDataParallel."""
    return functools.partial(
        nn.parallel.DistributedDataParallel, process_group=group, find_unused_parameters=model == "unused"
    )


def is_case(model: str, kind: str, optimizer: str) -> bool:
    """Leaves out SparseAdam with dense gradients, and Unused with sparse ones."""
    if model == "unused" and (kind == "sparse" or optimizer == "sparse_adam"):
        return False
    return optimizer != "sparse_adam" or kind == "sparse"


def cases() -> Iterator[tuple[str, str, str, str]]:
    for model, kind, optimizer, regime in itertools.product(MODELS, KINDS, OPTIMIZERS, REGIMES):
        if is_case(model, kind, optimizer):
            yield model, kind, optimizer, regime


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    if os.environ.get("SPARSESYNC_TEST_DEVICE") == "emulated":
        import emulated_device

        emulated_device.install()
    dist.init_process_group("gloo")
    group = common.gloo_group(threads=1)
    results = {}
    for number, (model, kind, optimizer, regime) in enumerate(cases()):
        torch.manual_seed(seed + number)
        first = MODELS[model](40 if kind == "dense" else 2000, kind == "sparse")
        made: list[Any] = []
        # auto measures the links, which takes seconds.
        scheme = "auto" if (model, optimizer, regime) == ("plain", "sgd", "clip") else "balanced"

        def wrap(module: nn.Module, made: list[Any] = made, scheme: str = scheme) -> Any:
            made.append(sparsesync.torch.DistributedDataParallel(module, scheme=scheme, deadline=60))
            return made[0]

        results[f"{model} {kind} {optimizer} {regime}"] = {
            "torch": train(copy.deepcopy(first), torchs_own(group, model), optimizer, regime, kind, seed),
            "ours": train(first, wrap, optimizer, regime, kind, seed),
            "kinds": sorted({each["gradient"] for each in made[0].statistics()["parameters"].values()}),
        }
        made[0].close()
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
