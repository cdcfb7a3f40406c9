"""DeepFM for click prediction on data in Criteo's format: 26 categorical fields and 13 integers per line.

All fields share one table of hashed rows, and a step touches few of them. Without --data the samples are generated:
values with Criteo's skew, and clicks from a random model that can be learned.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

import common
import numpy as np
import torch
from numpy.typing import NDArray

INTEGERS = 13
# Distinct values of each categorical field in Criteo's seven days of data.
DISTINCT = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
FIELDS = len(DISTINCT)

_INTEGER = ("an integer", re.compile(rb"-?\d{1,10}"))
_HASH = ("a hash of hexadecimal digits", re.compile(rb"[0-9a-fA-F]{1,8}"))


@dataclasses.dataclass(frozen=True)
class Samples:
    """A batch of samples.

    Attributes:
        rows: ``[samples, 26]``, dtype ``torch.int64``, indices into the shared table.
        integers: ``[samples, 13]``, dtype ``torch.float32``, scaled.
        clicked: ``[samples]``, dtype ``torch.float32``, 0 or 1.
    """

    rows: torch.Tensor
    integers: torch.Tensor
    clicked: torch.Tensor


def rows_of(values: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    """Returns table rows for values of shape [samples, 26].

    Each field has a separate range of rows. Values are hashed into it with the finalizer of MurmurHash3. A missing
    value, written as 0, has the first row of its field.
    """
    hashed = values.copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashed ^= hashed >> np.uint64(33)
        hashed *= np.uint64(factor)
    hashed ^= hashed >> np.uint64(33)
    within = np.where(values == 0, 0, 1 + hashed % np.uint64(buckets - 1)).astype(np.int64)
    return within + np.arange(FIELDS) * buckets


def scaled(integers: NDArray[np.float64]) -> torch.Tensor:
    """Returns the logarithms of the integers, with signs kept; 0 for a missing one."""
    return torch.from_numpy((np.sign(integers) * np.log1p(np.abs(integers))).astype(np.float32))


# ---- Generated samples


class Planted:
    """Samples with Criteo's skew, whose clicks follow a factorization machine drawn from the seed."""

    RANK = 4
    SKEW = 1.2  # Zipf's exponent
    CLICKED = -1.4  # mean score: about a quarter of the samples are clicked, as in Criteo's data

    def __init__(self, buckets: int, seed: int) -> None:
        self._buckets = buckets
        random = np.random.default_rng((seed, 0))
        self._weights = random.normal(0, 1, FIELDS * buckets).astype(np.float32)
        self._vectors = random.normal(0, 0.3, (FIELDS * buckets, self.RANK)).astype(np.float32)
        self._of_integers = random.normal(0, 1, INTEGERS)
        self._mean, self._deviation = 0.0, 1.0
        scores = self._scores(*self._features(random, 8192))
        self._mean, self._deviation = float(scores.mean()), float(scores.std())

    def samples(self, random: np.random.Generator, count: int) -> Samples:
        rows, integers = self._features(random, count)
        scores = 2 * self._scores(rows, integers) + self.CLICKED
        clicked = random.random(count) < 1 / (1 + np.exp(-scores))
        return Samples(torch.from_numpy(rows), scaled(integers), torch.from_numpy(clicked.astype(np.float32)))

    def _features(self, random: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        # Zipf's law on a bounded range, by inversion of its distribution function.
        last = (np.array(DISTINCT) + 1.0) ** (1 - self.SKEW) - 1
        values = (1 + random.random((count, FIELDS)) * last) ** (1 / (1 - self.SKEW))
        integers = np.floor(random.lognormal(1.0, 1.5, (count, INTEGERS)))
        return rows_of(values.astype(np.uint64), self._buckets), integers

    def _scores(self, rows: NDArray[np.int64], integers: NDArray[np.float64]) -> NDArray[np.float64]:
        vectors = self._vectors[rows]
        pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        alone = self._weights[rows].sum(1) + np.log1p(integers) @ self._of_integers
        scores: NDArray[np.float64] = (alone + pairs - self._mean) / self._deviation
        return scores

    def batches(self, seed: int, rank: int, batch: int) -> Iterator[Samples]:
        random = np.random.default_rng((seed, 2 + rank))
        while True:
            yield self.samples(random, batch)

    def held_out(self, seed: int, count: int) -> Samples:
        return self.samples(np.random.default_rng((seed, 1)), count)


# ---- Samples from a file


class Criteo:
    """Criteo's train.txt, read on demand. The first lines are held out; each worker reads a part of the rest."""

    def __init__(self, options: argparse.Namespace, world: common.World) -> None:
        self._path: pathlib.Path = options.data
        self._buckets: int = options.rows
        self._batch: int = options.batch
        self._world = world
        # All workers parse the first step's lines, so that all reject a file of another format.
        needed = options.held_out + world.size * options.batch
        first = list(itertools.islice(self._lines(), needed))
        parsed = self._parsed(enumerate(first, 1), everywhere=True)
        if len(first) < needed:
            raise common.UserError(
                f"--data {self._path}: it has {len(first)} lines, --held-out {options.held_out} and a --batch of "
                f"{options.batch} for {common.counted(world.size, 'worker')} need {needed}: give smaller ones"
            )
        self._held_out: int = options.held_out
        self.held_out = Samples(*(each[: self._held_out] for each in (parsed.rows, parsed.integers, parsed.clicked)))

    def batches(self) -> Iterator[Samples]:
        """Yields this worker's batches without end. After the last full batch for all workers it starts over."""
        of_all = self._batch * self._world.size
        own = slice(self._world.rank * self._batch, (self._world.rank + 1) * self._batch)
        while True:
            numbered = itertools.islice(enumerate(self._lines(), 1), self._held_out, None)
            while len(lines := list(itertools.islice(numbered, of_all))) == of_all:
                yield self._parsed(lines[own], everywhere=False)

    def _lines(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                yield from file
        except OSError as error:
            raise common.UserError(f"--data {self._path}: {error.strerror}") from None

    def _parsed(self, lines: Iterable[tuple[int, bytes]], everywhere: bool) -> Samples:
        labels, integers, values = [], [], []
        for number, line in lines:
            try:
                label, of_line, hashes = _fields(line)
            except ValueError as error:
                raise common.UserError(f"--data {self._path}:{number}: {error}", everywhere) from None
            labels.append(label)
            integers.append(of_line)
            values.append(hashes)
        return Samples(
            torch.from_numpy(rows_of(np.array(values, dtype=np.uint64).reshape(-1, FIELDS), self._buckets)),
            scaled(np.array(integers, dtype=np.float64)),
            torch.tensor(labels, dtype=torch.float32),
        )


def _fields(line: bytes) -> tuple[int, Sequence[int], Sequence[int]]:
    """Returns the label, the integers and the hashes of a line; 0 for missing values."""
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != 1 + INTEGERS + FIELDS:
        raise ValueError(
            f"{len(fields)} fields, where Criteo's train.txt has {1 + INTEGERS + FIELDS} between tabs: the label, "
            f"{INTEGERS} integers, {FIELDS} hashes"
        )
    if fields[0] not in (b"0", b"1"):
        raise ValueError(f"the label is {_quoted(fields[0])}, not 0 or 1")
    integers = [_matched(_INTEGER, field, 10) if field else 0 for field in fields[1 : 1 + INTEGERS]]
    # Hashes are shifted by one, because 0 marks a missing value.
    hashes = [_matched(_HASH, field, 16) + 1 if field else 0 for field in fields[-FIELDS:]]
    return int(fields[0]), integers, hashes


def _matched(what: tuple[str, re.Pattern[bytes]], field: bytes, base: int) -> int:
    name, pattern = what
    if not pattern.fullmatch(field):
        raise ValueError(f"{_quoted(field)} is not {name}")
    return int(field, base)


def _quoted(field: bytes) -> str:
    return repr(field[:20].decode("utf-8", "replace"))


# ---- Model


class DeepFM(torch.nn.Module):
    """A factorization machine and a multilayer perceptron over the same embeddings."""

    def __init__(self, rows: int, width: int, layers: Sequence[int], sparse: bool) -> None:
        super().__init__()
        self.weights = torch.nn.Embedding(rows, 1, sparse=sparse)
        self.vectors = torch.nn.Embedding(rows, width, sparse=sparse)
        self.of_integers = torch.nn.Linear(INTEGERS, 1)
        sizes = [FIELDS * width + INTEGERS, *layers]
        hidden = [(torch.nn.Linear(a, b), torch.nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        self.deep = torch.nn.Sequential(*itertools.chain(*hidden), torch.nn.Linear(sizes[-1], 1))
        torch.nn.init.zeros_(self.weights.weight)
        torch.nn.init.normal_(self.vectors.weight, 0, 0.05)

    def forward(self, rows: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
        """Returns the logit of a click, of shape [samples]."""
        vectors: torch.Tensor = self.vectors(rows)
        first: torch.Tensor = self.weights(rows).sum(1).squeeze(1) + self.of_integers(integers).squeeze(1)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        deep: torch.Tensor = self.deep(torch.cat([vectors.flatten(1), integers], dim=1)).squeeze(1)
        return first + pairs + deep


def auc(scores: torch.Tensor, clicked: torch.Tensor) -> float:
    """Returns the probability that a clicked sample scores above one that was not clicked; ties count one half."""
    _, ties, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[ties].double()
    positive = clicked.sum().double()
    negative = len(clicked) - positive
    if positive == 0 or negative == 0:
        return float("nan")
    return float((ranks[clicked > 0].sum() - positive * (positive + 1) / 2) / (positive * negative))


@torch.no_grad()
def held_out_measures(model: torch.nn.Module, held_out: Samples) -> dict[str, float]:
    scores = model(held_out.rows, held_out.integers)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, held_out.clicked)
    return {"held_out_loss": loss.item(), "held_out_auc": auc(scores, held_out.clicked)}


def main(options: argparse.Namespace, world: common.World) -> None:
    if options.data:
        criteo = Criteo(options, world)
        batches, held_out = criteo.batches(), criteo.held_out
    else:
        planted = Planted(options.rows, options.seed)
        batches = planted.batches(options.seed, world.rank, options.batch)
        held_out = planted.held_out(options.seed, options.held_out)

    model = DeepFM(FIELDS * options.rows, options.embedding, options.layers, options.gradients == "sparse")
    ddp = common.distributed(model, options, world)
    optimizers = common.optimizers(model, options)

    run = common.Run(ddp, options, world)
    for _ in run.steps():
        samples = next(batches)
        scores = ddp(samples.rows, samples.integers)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, samples.clicked)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        run.record(loss)
    run.finish(lambda: held_out_measures(model, held_out))


def options() -> argparse.Namespace:
    parser = common.parser(__doc__, steps=400, batch=512, lr=0.05)
    own = parser.add_argument_group("options of this model")
    own.add_argument("--data", type=pathlib.Path, metavar="FILE", help="Criteo's train.txt; without it samples are generated")
    own.add_argument("--held-out", type=common.positive, default=8192, metavar="N", help="samples for the final measures (8192)")
    own.add_argument("--rows", type=_rows, default=20000, metavar="N", help="table rows per field (20000)")
    own.add_argument("--embedding", type=common.positive, default=16, metavar="N", help="width of the embeddings (16)")
    own.add_argument("--layers", type=_layers, default=(128, 64), metavar="N,N", help="widths of the perceptron's layers (128,64)")
    return parser.parse_args()


def _rows(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text}: at least 2, because one row per field is for missing values")
    return value


def _layers(text: str) -> tuple[int, ...]:
    return tuple(common.positive(each) for each in text.split(","))


if __name__ == "__main__":
    common.launch(main, options())
