"""A word-level LSTM language model with sampled softmax, on the source code of Python's standard library.

The embedding and the softmax weights are tables of words. A step touches few rows of them, so both have row-sparse
gradients.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import pathlib
import re
import sysconfig
from collections.abc import Iterator

import common
import numpy as np
import torch
from numpy.typing import NDArray

State = tuple[torch.Tensor, torch.Tensor]

# Share of the text that is held out for the final loss, and the words per stream that it is measured on.
HELD_OUT = 0.02
HELD_OUT_LENGTH = 200


class Text:
    """The words and punctuation of a folder's .py files as numbers, most frequent first. All rare words are `<unk>`."""

    def __init__(self, folder: pathlib.Path, vocabulary: int) -> None:
        numbers: dict[str, int] = {}
        files = [
            np.fromiter((numbers.setdefault(word, len(numbers)) for word in words(path)), dtype=np.int64)
            for path in sources(folder)
        ]
        in_order_of_sight = np.concatenate(files) if files else np.empty(0, dtype=np.int64)
        if len(in_order_of_sight) == 0:
            raise common.UserError(f"--text {folder}: no .py files with words in them")
        counts = np.bincount(in_order_of_sight)
        by_frequency = np.argsort(-counts, kind="stable")
        known = by_frequency[: vocabulary - 1]
        # `<unk>` is also ordered by frequency, as the sampler expects.
        place = int(np.searchsorted(-counts[known], -counts[by_frequency[vocabulary - 1 :]].sum()))
        ids = np.full(len(counts), place, dtype=np.int64)
        ids[known] = np.arange(len(known)) + (np.arange(len(known)) >= place)
        words_of_all = torch.from_numpy(ids[in_order_of_sight])
        training = len(words_of_all) - int(len(words_of_all) * HELD_OUT)
        self.training, self.held_out = words_of_all[:training], words_of_all[training:]

    def digest(self) -> str:
        return hashlib.blake2b(self.training.numpy().tobytes(), digest_size=16).hexdigest()


def sources(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the .py files of a folder, except those of installed packages."""
    found = sorted(folder.rglob("*.py"))
    return [path for path in found if not {"site-packages", "dist-packages"} & set(path.relative_to(folder).parts)]


def words(path: pathlib.Path) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", path.read_text(encoding="utf-8", errors="replace"))


def in_streams(text: torch.Tensor, streams: int) -> torch.Tensor:
    """Divides the text into streams of equal length: [streams, length]."""
    length = len(text) // streams
    return text[: streams * length].view(streams, length)


def batches(streams: torch.Tensor, length: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Yields without end: words and the words that follow them, each [streams, length], and whether the text starts over."""
    last = streams.shape[1] - length - 1
    if last < 0:
        raise common.UserError(
            f"the text has only {streams.shape[1]} words for each stream: use fewer workers, a smaller --batch or --length"
        )
    while True:
        for at in range(0, last + 1, length):
            yield streams[:, at : at + length], streams[:, at + 1 : at + length + 1], at == 0


class Sampler:
    """Distinct words, drawn log-uniformly: P(k) = log((k + 2) / (k + 1)) / log(V + 1), close to word frequencies."""

    def __init__(self, vocabulary: int, count: int, seed: tuple[int, int]) -> None:
        if count >= vocabulary:
            raise common.UserError(f"--sampled {count}: give fewer than the --vocabulary of {vocabulary} words")
        self._vocabulary = vocabulary
        self._count = count
        self._random = np.random.default_rng(seed)

    def draw(self) -> tuple[torch.Tensor, int]:
        """Returns the words, and the number of draws until there were enough distinct ones."""
        drawn: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        while True:
            uniform = self._random.random(2 * self._count)
            more = np.exp(uniform * math.log(self._vocabulary + 1)).astype(np.int64) - 1
            drawn = np.concatenate([drawn, more.clip(0, self._vocabulary - 1)])
            first = np.sort(np.unique(drawn, return_index=True)[1])
            if len(first) >= self._count:
                return torch.from_numpy(drawn[first[: self._count]]), int(first[self._count - 1]) + 1

    def expected(self, asked: torch.Tensor, draws: int) -> torch.Tensor:
        """Returns the expected count of each word among the distinct words of ``draws`` draws: 1 - (1 - P)^draws."""
        words = asked.to(torch.float64)
        chance = torch.log1p(1 / (words + 1)) / math.log(self._vocabulary + 1)
        return -torch.expm1(draws * torch.log1p(-chance))


class LanguageModel(torch.nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, sparse: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, embedding, sparse=sparse)
        self.lstm = torch.nn.LSTM(embedding, hidden, batch_first=True)
        # Tables, too: a step needs the weights and biases of targets and samples only.
        self.softmax = torch.nn.Embedding(vocabulary, hidden, sparse=sparse)
        self.bias = torch.nn.Embedding(vocabulary, 1, sparse=sparse)
        torch.nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        torch.nn.init.uniform_(self.softmax.weight, -0.1, 0.1)
        torch.nn.init.zeros_(self.bias.weight)

    def forward(
        self,
        words: torch.Tensor,
        targets: torch.Tensor,
        samples: torch.Tensor,
        log_expected: list[torch.Tensor],
        state: State | None,
    ) -> tuple[torch.Tensor, State]:
        """Returns the mean loss and the next state.

        words, targets: [streams, length]; samples: [count]; log_expected: log expected counts of the targets, [streams
        * length], and of the samples.
        """
        wanted = targets.flatten()
        # Looked up before the LSTM runs, so that announced rows are exchanged meanwhile.
        rows = torch.cat([wanted, samples])
        weights, biases = self.softmax(rows), self.bias(rows).squeeze(1)
        states, (h, c) = self.lstm(self.embedding(words), state)
        states = states.flatten(0, 1)
        of_target = (states * weights[: len(wanted)]).sum(1) + biases[: len(wanted)] - log_expected[0]
        of_samples = states @ weights[len(wanted) :].T + biases[len(wanted) :] - log_expected[1]
        # A sample that equals the target must not count as a wrong answer.
        of_samples = of_samples.masked_fill(wanted.unsqueeze(1) == samples, -math.inf)
        logits = torch.cat([of_target.unsqueeze(1), of_samples], dim=1)
        loss = torch.nn.functional.cross_entropy(logits, logits.new_zeros(len(wanted), dtype=torch.int64))
        return loss, (h.detach(), c.detach())

    @torch.no_grad()
    def full_loss(self, text: torch.Tensor, streams: int) -> float:
        """Returns the mean loss over the whole vocabulary, for the first words of each stream of a text."""
        cut = in_streams(text, streams)[:, : HELD_OUT_LENGTH + 1]
        states, _ = self.lstm(self.embedding(cut[:, :-1]))
        total = 0.0
        for stream, wanted in zip(states, cut[:, 1:], strict=True):
            logits = stream @ self.softmax.weight.T + self.bias.weight.squeeze(1)
            total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").item()
        return total / cut[:, 1:].numel()


def main(options: argparse.Namespace, world: common.World) -> None:
    sampler = Sampler(options.vocabulary, options.sampled, (options.seed, world.rank))
    if not options.text.is_dir():
        raise common.UserError(f"--text {options.text}: there is no such folder")
    text = Text(options.text, options.vocabulary)
    streams = in_streams(text.training, world.size * options.batch)
    own = streams[world.rank * options.batch : (world.rank + 1) * options.batch]
    of_steps = batches(own, options.length)

    model = LanguageModel(options.vocabulary, options.embedding, options.hidden, options.gradients == "sparse")
    ddp = common.distributed(model, options, world)
    if len(set(common.gather(ddp, text.digest()))) > 1:
        raise common.UserError("the workers have different texts: run all with the same version of Python, or give --text")
    optimizers = common.optimizers(model, options)

    run = common.Run(ddp, options, world)
    state: State | None = None
    for _ in run.steps():
        words, targets, begins = next(of_steps)
        samples, draws = sampler.draw()
        log_expected = [sampler.expected(each, draws).log().float() for each in (targets.flatten(), samples)]
        loss, state = ddp(words, targets, samples, log_expected, None if begins else state)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        run.record(loss)
    run.finish(lambda: {"held_out_loss": model.full_loss(text.held_out, options.batch)})


def options() -> argparse.Namespace:
    parser = common.parser(__doc__, steps=400, batch=20, lr=0.1)
    own = parser.add_argument_group("options of this model")
    own.add_argument("--vocabulary", type=common.positive, default=50000, metavar="N", help="words in the vocabulary (50000)")
    own.add_argument("--embedding", type=common.positive, default=128, metavar="N", help="width of the embeddings (128)")
    own.add_argument("--hidden", type=common.positive, default=128, metavar="N", help="width of the LSTM (128)")
    own.add_argument("--length", type=common.positive, default=35, metavar="N", help="words per stream and step (35)")
    own.add_argument("--sampled", type=common.positive, default=256, metavar="N", help="words sampled per step (256)")
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    own.add_argument("--text", type=pathlib.Path, default=library, metavar="FOLDER", help="folder of .py files (Python's standard library)")
    return parser.parse_args()


if __name__ == "__main__":
    common.launch(main, options())
