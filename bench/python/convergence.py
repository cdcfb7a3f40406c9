#!/usr/bin/env python3
"""Compares held-out losses of models trained with sparsifiers on 4 workers with those of dense gradients and of training without
error feedback.

    bench/python/convergence.py [--tasks language,digits] [--seeds 1,2,3] [--part 1.0] [--build build/release]
                                [--out bench/results/convergence.json] [--picture docs/pictures/convergence.png]

`language` is the LSTM of python/examples/language_model.py on the source of Python's asyncio; `digits` is a convolutional network on
scikit-learn's pictures of digits. Needs the build and .venv (scripts/setup). All runs of a seed start with the same weights and use
the same batches; --part makes fewer steps. Prints a table, writes JSON, and draws the losses. Exit status 1 if a gap exceeds its
target.

gap: (final held-out loss - that of dense gradients) / (initial loss - final loss of dense gradients), in percent.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

WORKERS = 4
LOOKS = 20  # evaluations of the held-out loss in a run
MOST_GAP = 2.0  # percent of the loss that dense gradients gain
WITHOUT_OVER_WITH = 3.0


class Task(NamedTuple):
    """A model and its training, the same for all sparsifiers.

    `batches` takes a worker, `loss` a model and a batch, `held_out` a model.
    """

    steps: int
    lr: float  # initial learning rate; decays linearly to 0
    momentum: float
    chunk: int  # chunk size of CoarseGrained: these models are small
    model: Any
    batches: Callable[[int], Iterator[Any]]
    loss: Callable[[Any, Any], Any]
    held_out: Callable[[Any], float]


def language(seed: int) -> Task:
    """Predicts the next word. The embedding's gradient is row-sparse and stays so; most rows of the softmax are touched."""
    import language_model
    import torch

    vocabulary, streams, length, sampled = 1000, 5, 20, 600
    text = language_model.Text(Path(sysconfig.get_paths()["stdlib"]) / "asyncio", vocabulary)
    torch.manual_seed(seed)
    model = language_model.LanguageModel(vocabulary, 64, 128, sparse=False)
    of_all = language_model.in_streams(text.training, WORKERS * streams)

    def batches(rank: int) -> Iterator[Any]:
        sampler = language_model.Sampler(vocabulary, sampled, (seed, rank))
        state: dict[str, Any] = {}
        for words, targets, begins in language_model.batches(of_all[rank * streams : (rank + 1) * streams], length):
            samples, draws = sampler.draw()
            expected = [sampler.expected(each, draws).log().float() for each in (targets.flatten(), samples)]
            yield words, targets, samples, expected, None if begins else state["last"], state

    def loss(ddp: Any, batch: Any) -> Any:
        found, batch[-1]["last"] = ddp(*batch[:-1])
        return found

    return Task(500, 4.0, 0.0, 512, model, batches, loss, lambda own: own.full_loss(text.held_out, streams))


def digits(seed: int) -> Task:
    """Classifies digits in pictures of 8 x 8 pixels. 1,400 pictures are for training, 397 are held out."""
    import numpy as np
    import torch
    from sklearn.datasets import load_digits

    pictures = load_digits()
    order = torch.randperm(len(pictures.target), generator=torch.Generator().manual_seed(0))
    inputs = torch.from_numpy(pictures.images.astype(np.float32) / 16)[order].unsqueeze(1)
    targets = torch.from_numpy(pictures.target.astype(np.int64))[order]
    seen = 1400
    torch.manual_seed(seed)
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )

    def batches(rank: int) -> Iterator[Any]:
        random = torch.Generator().manual_seed(100 * seed + rank)
        while True:
            chosen = torch.randint(seen, (16,), generator=random)
            yield inputs[chosen], targets[chosen]

    def loss(model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return Task(1000, 0.05, 0.5, 64, model, batches, loss, lambda own: float(loss(own, (inputs[seen:], targets[seen:]))))


TASKS = {"language": language, "digits": digits}
LABELS = {
    "dense": "dense",
    "dgc": "DGC, 1%",
    "csc": "coarse-grained, 10%",
    "dgc_lossy": "DGC, 1%, without error feedback",
    "csc_lossy": "coarse-grained, 10%, without error feedback",
}


def ways(task: Task, steps: int) -> dict[str, Any]:
    """Returns the sparsifiers by the labels' keys. All warm up during the first tenth of the steps."""
    import sparsesync.torch

    shared = {"warmup_steps": steps // 10, "least_elements": 1}
    dgc = sparsesync.torch.DGC(density=0.01, **shared)
    csc = sparsesync.torch.CoarseGrained(share=0.1, chunk=task.chunk, **shared)
    # Without error feedback, lost gradients have no momentum to correct, so the optimizer applies the momentum.
    lossy = [dataclasses.replace(each, error_feedback=False, momentum_correction=False) for each in (dgc, csc)]
    return dict(zip(LABELS, (None, dgc, csc, *lossy), strict=True))


def train(task: Task, steps: int, sparsifier: Any) -> dict[str, Any]:
    """Trains, and returns worker 0's steps and held-out losses, starting before the first step. All workers have the same weights."""
    import sparsesync.torch
    import torch

    members = sparsesync.torch.local_group(WORKERS)
    looks = {round(steps * (i + 1) / LOOKS) for i in range(LOOKS)}
    curve: list[tuple[int, float]] = []
    sent = [0] * WORKERS
    failed: list[Exception] = []

    def work(rank: int) -> None:
        try:
            own = copy.deepcopy(task.model)
            ddp = sparsesync.torch.DistributedDataParallel(
                own, process_group=members[rank], scheme="balanced", sparsifier=sparsifier, deadline=60
            )
            optimizer = torch.optim.SGD(own.parameters(), lr=task.lr, momentum=task.momentum)
            sparsesync.torch.wrap_optimizer(optimizer, ddp)
            decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
            batches = task.batches(rank)
            for step in range(steps + 1):
                if rank == 0 and (step == 0 or step in looks):
                    with torch.no_grad():
                        curve.append((step, task.held_out(own)))
                if step < steps:
                    optimizer.zero_grad()
                    task.loss(ddp, next(batches)).backward()
                    optimizer.step()
                    decay.step()
            sent[rank] = ddp.statistics()["bytes_sent"]
            ddp.close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failed:
        raise failed[0]
    return {"steps": [step for step, _ in curve], "held_out": [loss for _, loss in curve], "bytes_sent_max": max(sent)}


def gap(run: dict[str, Any], dense: dict[str, Any]) -> float:
    first, last = dense["held_out"][0], dense["held_out"][-1]
    return float(100 * (run["held_out"][-1] - last) / (first - last))


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns for each sparsifier the gaps of all seeds, their mean, and the bytes relative to dense gradients."""
    dense = {run["seed"]: run for run in runs if run["way"] == "dense"}
    found: dict[str, dict[str, Any]] = {}
    for way in LABELS:
        own = [run for run in runs if run["way"] == way]
        gaps = [gap(run, dense[run["seed"]]) for run in own]
        found[way] = {
            "held_out": statistics.fmean(run["held_out"][-1] for run in own),
            "gap_percent": gaps,
            "gap_percent_mean": statistics.fmean(gaps),
            "bytes_over_dense": statistics.fmean(run["bytes_sent_max"] / dense[run["seed"]]["bytes_sent_max"] for run in own),
        }
    return found


def missed(of_ways: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Returns the targets that are missed."""
    for way in ("dgc", "csc"):
        largest, lossy = max(of_ways[way]["gap_percent"]), of_ways[f"{way}_lossy"]["gap_percent_mean"]
        if largest > MOST_GAP:
            yield f"{LABELS[way]}: the gap is {largest:.2f}%, the target is {MOST_GAP}%"
        if lossy < WITHOUT_OVER_WITH * of_ways[way]["gap_percent_mean"] or lossy <= 0:
            yield f"{LABELS[way]}: without error feedback the gap is {lossy:.2f}%, expected is {WITHOUT_OVER_WITH:g} times that with it"


def table(tasks: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Returns the table of docs/guide/sparsifiers.md."""
    yield "| task | gradients | held-out loss, mean | gap of each seed | bytes over dense |"
    yield "|---|---|---|---|---|"
    for name, of_ways in tasks.items():
        for way, each in of_ways.items():
            gaps = ", ".join(f"{one:.2f}%" for one in each["gap_percent"]) if way != "dense" else "-"
            yield f"| {name} | {LABELS[way]} | {each['held_out']:.4f} | {gaps} | {each['bytes_over_dense']:.3f} |"


def draw(path: Path, runs: list[dict[str, Any]]) -> None:
    """Draws each sparsifier's mean loss over seeds, with a shade from the smallest to the largest."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(run["task"] for run in runs))
    figure = Figure(figsize=(5 * len(tasks), 3.6), layout="constrained")
    colours = dict(zip(LABELS, ("#444444", "#0072b2", "#009e73", "#0072b2", "#009e73"), strict=True))
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for way, label in LABELS.items():
            own = [run for run in runs if (run["task"], run["way"]) == (task, way)]
            of_steps = list(zip(*(run["held_out"] for run in own), strict=True))
            dashes = "--" if way.endswith("_lossy") else "-"
            mean = [statistics.fmean(each) for each in of_steps]
            axes.plot(own[0]["steps"], mean, dashes, color=colours[way], label=label)
            axes.fill_between(
                own[0]["steps"], [min(e) for e in of_steps], [max(e) for e in of_steps], color=colours[way], alpha=0.15, lw=0
            )
        axes.set(title=task, xlabel="step", ylabel="held-out loss", yscale="log" if task == "digits" else "linear")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    sys.path[:0] = [str(given.build / "python"), str(ROOT / "python/examples")]
    import sparsesync
    import torch

    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    for name in given.tasks.split(","):
        for seed in map(int, given.seeds.split(",")):
            task = TASKS[name](seed)
            steps = max(LOOKS, round(task.steps * given.part))
            for way, sparsifier in ways(task, steps).items():
                runs.append({"task": name, "seed": seed, "way": way, **train(task, steps, sparsifier)})
                if sys.stderr.isatty():
                    print(f"\r{len(runs)} runs", end="", file=sys.stderr, flush=True)
    told = {name: summary([run for run in runs if run["task"] == name]) for name in given.tasks.split(",")}
    provenance = {**sparsesync.provenance(), "torch": torch.__version__, "workers": WORKERS, "part": given.part}
    print("\n".join(table(told)))
    if given.out:
        write_results(given.out, {"provenance": provenance, "tasks": told, "runs": runs})
    if given.picture:
        draw(given.picture, runs)
    wrong = [f"{name}, {line}" for name, of_ways in told.items() for line in missed(of_ways)]
    if wrong:
        sys.exit("\n".join(f"convergence.py: {line}" for line in wrong))


if __name__ == "__main__":
    main()
