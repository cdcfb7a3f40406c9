"""Runs random sessions with threads as workers, and compares each result with NumPy's. `scripts/stress soak` runs it.

An episode is one session that its seed determines: workers, scheme, tensors, types, reduction, rounds, budgets and links. It has at most
one event: a worker rejects a step, disagrees, or leaves. Findings are wrong results, results that differ between workers, errors that
the episode does not explain, hangs, and descriptors or threads that an episode leaves behind. A finding prints the seed that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sparsesync
from bindings_support import LOCAL, STORED, numbers_of, rows_of, stored, synchronize
from sparsesync import TensorSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from results_file import write_results  # noqa: E402

DEADLINE_S = 60.0
HANG_S = 180.0  # an episode that takes longer hangs
SETTLE_S = 5.0  # threads that have been joined may be visible for an instant
MINUTE_S = 60.0
# Allocators and caches fill up during this part of a run; afterwards memory has to be flat.
WARM_UP_S = 600.0
MOST_GROWTH = 0.05
MOST_ELEMENTS = 60_000  # per tensor: many small episodes find more than a few large ones
REPEATS = 12  # rows of a gradient that names some of them repeatedly
BREAKS = ["wrong sum", "different bits", "error", "descriptor", "thread", "hang"]

# Schemes that add in rank order, so that floating-point sums have the same bits as NumPy's (docs/concepts/schemes.md, "one-shot").
IN_RANK_ORDER = {
    *("all_gather", "balanced", "balanced_hash", "block_ps", "dynamic_split", "owned", "sparse_ps", "split_all_gather"),
}
ANNOUNCING = ["balanced", "owned"]
ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"f64": 5e-324, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
NARROWER = {"f64": ["f32", "f16", "bf16"], "f32": ["f16", "bf16"]}
MOMENTS = ["before reduce", "after reduce", "between phases", "after gather", "raises"]

Gradient = Any  # None, a dense array, or a pair of indices and values


class LeavingError(Exception):
    """Ends a worker in the middle of its session."""


@dataclasses.dataclass(frozen=True)
class Event:
    """An intended failure."""

    kind: str  # refuses, disagrees, leaves
    rank: int
    step: int
    moment: str = ""


@dataclasses.dataclass(frozen=True)
class Episode:
    """A session and its inputs."""

    seed: int
    workers: int
    scheme: str
    specs: tuple[tuple[str, int, int, str], ...]
    values: str  # whole, real, special
    reduction: str
    wire: str | None
    rounds: int | None
    announce: bool
    threads: int
    trials: int
    budgets: tuple[int | None, ...]
    rate_bps: float | None
    steps: int
    event: Event | None

    def tensors(self) -> list[TensorSpec]:
        return [TensorSpec(*each) for each in self.specs]


def draw(seed: int) -> Episode:
    """Draws the episode of a seed."""
    random = np.random.default_rng([seed, 0])

    def one_of(choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    def happens(share: float) -> bool:
        return bool(random.random() < share)

    workers = one_of([1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8]) if happens(0.97) else one_of([12, 16, 24])
    scheme = "auto" if happens(0.01) else one_of(LOCAL)
    dtype = one_of(list(STORED))
    width = one_of([1, 2, 3, 4, 8, 16, 33, 300])
    specs = []
    for number in range(one_of([1, 1, 2, 3, 5])):
        rows = one_of([1, 2, 3, 17, 64, 100, 257, 1000, 4099])
        of_tensor = one_of([1, 5]) if happens(0.2) else width
        rows = min(rows, MOST_ELEMENTS // of_tensor)
        specs.append((f"tensor {number}", rows, of_tensor, one_of(list(STORED)) if happens(0.2) else dtype))
    floats = all(each[3] in ROUNDOFF for each in specs)
    wires = set.intersection(*(set(NARROWER.get(each[3], [])) for each in specs))
    wire = one_of(sorted(wires)) if wires and happens(0.3) else None
    values = one_of(["whole", "whole", "real"]) if floats else "whole"
    if floats and wire is None and happens(0.1):
        values = "special"
    announces = scheme in ANNOUNCING and happens(0.3)
    steps = one_of([1, 2, 3, 4])
    event = None
    if happens(0.3):
        kind = one_of(["refuses", "refuses", "disagrees", "leaves", "leaves"])
        event = Event(kind, int(random.integers(workers)), int(random.integers(steps)), one_of(MOMENTS) if kind == "leaves" else "")
    bytes_of_all = sum(each[1] * each[2] * 8 for each in specs)
    budgets: list[int | None] = [None] * workers
    if happens(0.15):
        budget = int(bytes_of_all * 10 ** random.uniform(-1, 1.2)) + 1000
        budgets = [budget] * workers if happens(0.5) else budgets
        budgets[int(random.integers(workers))] = budget
    return Episode(
        seed=seed,
        workers=workers,
        scheme=scheme,
        specs=tuple(specs),
        values=values,
        reduction="mean" if floats and happens(0.2) else "sum",
        wire=wire,
        rounds=one_of([None, None, 1, 2, 3, 8]),
        announce=announces,
        threads=one_of([1, 1, 2, 3]),
        trials=one_of([0, 1, 2]),
        budgets=tuple(budgets),
        rate_bps=1e9 if happens(0.05) else None,
        steps=steps,
        event=event,
    )


# ---- Inputs, and NumPy's results.


def numbers(random: np.random.Generator, episode: Episode, dtype: str, shape: tuple[int, int]) -> Any:
    """Returns the values of a gradient."""
    if episode.values == "whole":
        # Every partial sum is exact in the type on the wire.
        most = 1 if episode.wire else 3
        return stored(random.integers(-most, most + 1, shape), dtype)
    drawn = random.standard_normal(shape) * 10 ** random.uniform(-2, 1)
    if episode.values == "special":
        special = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, SMALLEST[dtype], -3 * SMALLEST[dtype]])
        chosen = random.random(shape) < 0.1
        drawn[chosen] = special[random.integers(len(special), size=int(chosen.sum()))]
    return stored(drawn, dtype)


def gradient_of(random: np.random.Generator, episode: Episode, spec: TensorSpec) -> Gradient:
    """One worker's gradient of one tensor, in one of the forms that a session accepts."""
    form = ["none", "nothing", "dense", "full", "rows", "rows", "repeats"][int(random.integers(7))]
    if form == "none":
        return None
    if form in ("dense", "full"):
        values = numbers(random, episode, spec.dtype, (spec.rows, spec.width))
        if form == "dense":
            values[random.random(spec.rows) < 0.7] = 0
        return values
    count = {"nothing": 0, "rows": int(random.integers(1, spec.rows + 1)), "repeats": REPEATS}[form]
    indices = random.integers(0, spec.rows, count) if form == "repeats" else random.choice(spec.rows, count, replace=False)
    return indices.astype(np.int64), numbers(random, episode, spec.dtype, (count, spec.width))


def inputs_of(episode: Episode) -> list[list[list[Gradient]]]:
    """Gradients by step, worker and tensor."""
    random = np.random.default_rng([episode.seed, 1])
    specs = episode.tensors()
    return [[[gradient_of(random, episode, spec) for spec in specs] for _ in range(episode.workers)] for _ in range(episode.steps)]


def own_sum(gradient: Gradient, spec: TensorSpec) -> Any:
    """Returns one worker's gradient as a dense array. Duplicate rows are added in their order; 16-bit types are added in f32 and rounded
    once.
    """
    indices, values = rows_of(gradient, spec)
    total = np.zeros((spec.rows, spec.width), numbers_of(np.empty(0, STORED[spec.dtype]), spec.dtype).dtype)
    np.add.at(total, indices, values.astype(total.dtype))
    return numbers_of(stored(total, spec.dtype), spec.dtype) if spec.dtype in ("f16", "bf16") else total


def own_magnitudes(gradient: Gradient, spec: TensorSpec) -> Any:
    """The sum of the magnitudes that one worker adds to each element."""
    indices, values = rows_of(gradient, spec)
    total = np.zeros((spec.rows, spec.width))
    np.add.at(total, indices, np.abs(values.astype(np.float64)))
    return total


def problem_of(episode: Episode, gradients: list[Gradient], spec: TensorSpec, result: Any) -> str:
    """Compares a result with NumPy's sum in rank order. Returns the difference; empty if there is none."""
    with np.errstate(all="ignore"):
        own = [own_sum(each, spec) for each in gradients]
        total = np.zeros_like(own[0])
        for each in own:
            total = total + each
        if spec.dtype not in ROUNDOFF:
            return difference(result, total, 0)
        exact = episode.reduction == "sum" and (episode.values == "whole" or (episode.scheme in IN_RANK_ORDER and not episode.wire))
        if exact:
            return difference(result, numbers_of(stored(total, spec.dtype), spec.dtype), 0)
        # Each partial sum is rounded at most once, and the total once more. With a type on the wire, the duplicate rows of a worker are
        # also added in that type.
        divisor = episode.workers if episode.reduction == "mean" else 1
        reference = sum((each.astype(np.float64) for each in own), np.zeros(total.shape)) / divisor
        sizes = [own_magnitudes(each, spec) for each in gradients] if episode.wire else [np.abs(each.astype(np.float64)) for each in own]
        magnitudes = sum(sizes, np.zeros(total.shape)) / divisor
        terms = episode.workers + 2 + (REPEATS if episode.wire else 0)
        type_of_sums = episode.wire or spec.dtype
        bound = terms * (ROUNDOFF[type_of_sums] * magnitudes + SMALLEST[type_of_sums])
        bound += 2 * ROUNDOFF[spec.dtype] * magnitudes + SMALLEST[spec.dtype]
        return difference(result, reference, np.nan_to_num(bound, nan=0, posinf=0))


def difference(result: Any, expected: Any, bound: Any) -> str:
    """Describes the elements of `result` that differ from `expected` by more than `bound`."""
    if result.shape != expected.shape:
        return f"the shape is {result.shape} and not {expected.shape}"
    wrong = (result != expected) & ~(np.isnan(result) & np.isnan(expected))
    if np.any(bound):
        finite = np.isfinite(result) & np.isfinite(expected)
        with np.errstate(all="ignore"):
            wrong &= ~finite | (np.abs(result.astype(np.float64) - expected) > bound)
    if not wrong.any():
        return ""
    at = tuple(int(each[0]) for each in np.nonzero(wrong))
    return f"{int(wrong.sum())} of {wrong.size} elements are wrong; element {at} is {result[at]!r} and not {expected[at]!r}"


# ---- Workers.


class Worker:
    """One worker of an episode, with its result of each step."""

    def __init__(self) -> None:
        self.results: dict[int, list[tuple[Any, Any]]] = {}
        self.refused: dict[int, BaseException] = {}
        self.ended: tuple[int, BaseException] | None = None
        self.left = False
        self.disagreed = False
        self.steps = 0


def work(episode: Episode, rank: int, network: Any, gradients: list[list[list[Gradient]]], worker: Worker, broken: str) -> None:
    """Runs the session of one worker."""
    specs, event = episode.tensors(), episode.event
    step = -1
    try:
        end = network.join(rank)
        with sparsesync.Session(
            end,
            deadline_s=DEADLINE_S,
            seed=episode.seed,
            threads=episode.threads,
            trials=episode.trials,
            memory_bytes=episode.budgets[rank],
        ) as session:
            if event and event.kind == "disagrees":
                other = [*specs, TensorSpec("of one worker", 1, 1)] if rank == event.rank else specs
                try:
                    release = session.register_bucket("bucket", other, "all_gather")
                    session.release_bucket(release)
                except sparsesync.AgreementError:
                    worker.disagreed = True
            options = {"reduction": episode.reduction, "wire": episode.wire, "announce": episode.announce, "rounds": episode.rounds}
            bucket = session.register_bucket("bucket", specs, episode.scheme, **options)
            for step in range(episode.steps):
                if broken == "error" and rank == 0:
                    raise ZeroDivisionError("unprovoked")
                if broken == "hang" and rank == 0:
                    time.sleep(3)
                own = list(gradients[step][rank])
                rows = announced_rows(episode, rank, step, own, specs) if episode.announce else None
                if event and event.step == step and event.rank == rank:
                    if event.kind == "leaves":
                        leave(event, session, bucket, own, rows)
                        worker.left = True
                        return
                    if event.kind == "refuses":
                        own[-1] = (np.array([specs[-1].rows]), stored(np.ones((1, specs[-1].width)), specs[-1].dtype))
                try:
                    synchronize(session, bucket, own, rows)
                except (sparsesync.InputError, sparsesync.BudgetError, sparsesync.RefusedError) as error:
                    worker.refused[step] = error
                    continue
                worker.steps += 1
                worker.results[step] = [read_result(session, bucket, i, spec) for i, spec in enumerate(specs)]
            # If an error has ended the session, this call reports it.
            step = episode.steps
            session.barrier()
    except LeavingError:
        worker.left = True
    except BaseException as error:  # passed on to the check
        worker.ended = (step, error)


def read_result(session: Any, bucket: int, tensor: int, spec: TensorSpec) -> tuple[Any, Any]:
    """Reads a result as a dense array and in the session's form. Checks that both are equal."""
    out = np.empty((spec.rows, spec.width), STORED[spec.dtype])
    session.write_dense(bucket, tensor, out)
    result = session.result(bucket, tensor)
    indices, values = result if isinstance(result, tuple) else (np.arange(spec.rows), result)
    whole = np.zeros_like(out)
    whole[indices] = values
    if difference(numbers_of(whole, spec.dtype), numbers_of(out, spec.dtype), 0) or (np.diff(indices) <= 0).any():
        raise AssertionError(f"result() and write_dense() of {spec.name} differ")
    return numbers_of(out, spec.dtype), (indices, values)


def announced_rows(episode: Episode, rank: int, step: int, own: list[Gradient], specs: list[TensorSpec]) -> list[Any]:
    """Returns the rows that a worker announces: those of its gradient and a few others."""
    random = np.random.default_rng([episode.seed, 2, rank, step])
    rows = []
    for gradient, spec in zip(own, specs, strict=True):
        indices = rows_of(gradient, spec)[0]
        kept = indices[indices < spec.rows]
        rows.append(np.concatenate([kept, random.integers(0, spec.rows, 2)]))
    return rows


def leave(event: Event, session: Any, bucket: int, own: list[Gradient], rows: list[Any] | None) -> None:
    """Ends a worker's part in the middle of a step. The caller closes the session."""
    if event.moment == "before reduce":
        return
    if event.moment == "raises":
        raise LeavingError
    if rows is not None:
        session.announce(bucket, rows)
    reduced = session.reduce(bucket, own)
    if event.moment == "after reduce":
        return
    try:
        session.wait(reduced)
        if event.moment == "after gather":
            session.gather(bucket)
    except sparsesync.Error:  # raised by a budget
        pass


EXPECTED_OF_LEAVING = (sparsesync.PeerLostError, sparsesync.AbortedError)


def findings_of(episode: Episode, workers: list[Worker], gradients: list[list[list[Gradient]]]) -> Iterator[str]:
    """Compares the workers' results with those that the episode explains."""
    specs, event = episode.tensors(), episode.event
    budgets = any(each is not None for each in episode.budgets)
    for rank, worker in enumerate(workers):
        if worker.ended:
            step, error = worker.ended
            explained = EXPECTED_OF_LEAVING if event and event.kind == "leaves" else ()
            if budgets and step < 0:  # while registering
                explained = (*explained, sparsesync.BudgetError, sparsesync.RefusedError)
            if not isinstance(error, explained):
                yield f"worker {rank}, step {step}: {type(error).__name__}: {error}"
        elif event and event.kind == "leaves" and not worker.left and episode.workers > 1:
            yield f"worker {rank} did not notice that worker {event.rank} left"
        if event and event.kind == "disagrees" and not worker.disagreed and episode.workers > 1 and not worker.ended:
            yield f"worker {rank} did not notice that worker {event.rank} disagrees"
        for step, error in worker.refused.items():
            provoked = event and event.kind == "refuses" and event.step == step
            if provoked and isinstance(error, sparsesync.InputError if rank == event.rank else sparsesync.RefusedError):
                continue
            if not budgets or isinstance(error, sparsesync.InputError):
                yield f"worker {rank}, step {step}: {type(error).__name__}: {error}"
    ended = any(worker.ended or worker.left for worker in workers)
    for step in range(episode.steps):
        having = [rank for rank, worker in enumerate(workers) if step in worker.results]
        refusing = [rank for rank, worker in enumerate(workers) if step in worker.refused]
        if having and refusing and not ended:
            yield f"step {step}: workers {refusing} were refused, workers {having} have results"
        if event and event.kind == "refuses" and event.step == step and having:
            yield f"step {step}: workers {having} have results of a step that worker {event.rank} refused"
        for tensor, spec in enumerate(specs):
            bits = set()
            for rank in having:
                dense, result = workers[rank].results[step][tensor]
                bits.add(tuple(each.tobytes() for each in result))
                problem = problem_of(episode, [of_worker[tensor] for of_worker in gradients[step]], spec, dense)
                if problem:
                    yield f"worker {rank}, step {step}, {spec.name}: {problem}"
                    break
            if len(bits) > 1:
                yield f"step {step}, {spec.name}: results differ between workers"


@dataclasses.dataclass
class Counts:
    """Sums over episodes."""

    episodes: int = 0
    workers: int = 0
    worker_steps: int = 0
    results: int = 0
    refused: int = 0
    left: int = 0
    aborted: int = 0


def run_episode(episode: Episode, counts: Counts, broken: str = "", hang_s: float = HANG_S) -> list[str]:
    """Runs one episode. Returns its findings."""
    gradients = inputs_of(episode)
    network = sparsesync.LocalNetwork(episode.workers, rate_bps=episode.rate_bps)
    workers = [Worker() for _ in range(episode.workers)]
    threads = [
        threading.Thread(target=work, args=(episode, rank, network, gradients, worker, broken), daemon=True)
        for rank, worker in enumerate(workers)
    ]
    for each in threads:
        each.start()
    until = time.monotonic() + hang_s
    for each in threads:
        each.join(max(0, until - time.monotonic()))
    hanging = [rank for rank, each in enumerate(threads) if each.is_alive()]
    if hanging:
        return [f"workers {hanging} hang"]
    spoil(workers, broken)
    counts.episodes += 1
    counts.workers += episode.workers
    counts.worker_steps += sum(each.steps for each in workers)
    counts.results += sum(len(of_step) for each in workers for of_step in each.results.values())
    counts.refused += sum(len(each.refused) for each in workers)
    counts.left += sum(each.left for each in workers)
    counts.aborted += sum(each.ended is not None for each in workers)
    return list(findings_of(episode, workers, gradients))


def spoil(workers: list[Worker], broken: str) -> None:
    """Makes one result wrong, to test the checks."""
    for worker in workers[-1:]:
        for of_step in worker.results.values():
            dense, (indices, values) = of_step[0]
            if broken == "wrong sum":
                of_step[0] = (dense + 1, (indices, values))
            elif broken == "different bits":
                of_step[0] = (dense, (indices, np.append(values, 0)))


# ---- The process: memory, descriptors and threads.

_libc = ctypes.CDLL(None)


def resident_bytes() -> int:
    """Returns resident memory, after returning freed memory to the system."""
    gc.collect()
    _libc.malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def tasks() -> set[str]:
    """Returns the identifiers of the threads. A thread that has just been joined may stay visible for an instant."""
    return set(os.listdir("/proc/self/task"))


def left_behind(descriptors_before: int, tasks_before: set[str]) -> str:
    """Waits for new descriptors and threads to disappear. Returns a description of the remaining ones; empty if there are none."""
    until = time.monotonic() + SETTLE_S
    while (more := descriptors() - descriptors_before) > 0 or tasks() - tasks_before:
        if time.monotonic() > until:
            return f"{max(more, 0)} descriptors and {len(tasks() - tasks_before)} threads are left"
        gc.collect()
        time.sleep(0.01)
    return ""


def growth_of(samples: list[dict[str, float]], warm_up_s: float = WARM_UP_S) -> float | None:
    """Returns the growth of resident memory after the first `warm_up_s` seconds, as a fraction; None if the run is shorter."""
    warm = [each["resident_bytes"] for each in samples if each["seconds"] >= warm_up_s]
    return max(warm) / warm[0] - 1 if len(warm) > 1 else None


def soak(
    seed: int, episodes: int, seconds: float, broken: str = "", hang_s: float = HANG_S, progress_s: float = MINUTE_S
) -> dict[str, Any]:
    """Runs episodes of consecutive seeds from `seed` on, for at most `seconds` seconds. Returns the results. An episode hangs after
    `hang_s` seconds. A line is printed every `progress_s` seconds.
    """
    counts, findings, samples = Counts(), [], []
    kinds: collections.Counter[str] = collections.Counter()
    run_episode(draw(seed), Counts())  # initializes what is created once
    before = (descriptors(), tasks())
    opened = []
    began = time.monotonic()
    next_line = 0.0
    for number in range(seed, seed + episodes):
        elapsed = time.monotonic() - began
        if elapsed >= seconds:
            break
        if elapsed >= next_line:
            samples.append(sample(elapsed, counts, len(findings)))
            next_line += progress_s
        episode = draw(number)
        kinds[episode.scheme] += 1
        problems = run_episode(episode, counts, broken, hang_s)
        if broken == "descriptor":
            opened.append(os.open(os.devnull, os.O_RDONLY))
        elif broken == "thread":
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        hangs = any(each.endswith("hang") for each in problems)
        if not hangs and (rest := left_behind(*before)):
            problems.append(rest)
            before = (descriptors(), tasks())
        if problems:
            shown = "\n    ".join([*problems[:4], *([f"and {len(problems) - 4} more"] if len(problems) > 4 else []), str(episode)])
            print(f"FINDING: scripts/stress soak --seed {number} --episodes 1\n    {shown}", flush=True)
        findings += [{"seed": number, "problem": problem, "episode": repr(episode)} for problem in problems]
        if hangs:
            break  # its threads still run
    elapsed = time.monotonic() - began
    samples.append(sample(elapsed, counts, len(findings)))
    for each in opened:
        os.close(each)
    growth = growth_of(samples)
    if growth is not None and growth > MOST_GROWTH:
        findings.append({"seed": seed, "problem": f"resident memory grew by {growth:.1%} after the first {WARM_UP_S:.0f} s", "episode": ""})
    return {
        "seed": seed,
        "seconds": elapsed,
        **dataclasses.asdict(counts),
        "schemes": dict(sorted(kinds.items())),
        "resident_growth": growth,
        "samples": samples,
        "findings": findings,
        "provenance": sparsesync.provenance(),
    }


def sample(elapsed: float, counts: Counts, findings: int) -> dict[str, float]:
    """Measures the process and prints one line."""
    taken = {"seconds": elapsed, "resident_bytes": resident_bytes(), "descriptors": descriptors(), "threads": len(tasks())}
    print(
        f"{elapsed:7.0f} s: {counts.episodes} episodes, {counts.worker_steps} steps of workers, {counts.results} results, "
        f"{counts.refused} refused, {findings} findings; {taken['resident_bytes'] / 2**20:.0f} MiB, "
        f"{taken['descriptors']} descriptors, {taken['threads']} threads",
        flush=True,
    )
    return taken


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/stress soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, help="end after this many seconds (60 without --episodes)")
    options.add_argument("--episodes", type=int, help="end after this many episodes")
    options.add_argument("--seed", type=int, help="seed of the first episode; later ones count up (default: random)")
    options.add_argument("--json", type=Path, help="write the result to this file")
    given = options.parse_args()
    seconds = given.seconds if given.seconds is not None else 60.0 if given.episodes is None else float("inf")
    seed = given.seed if given.seed is not None else int(np.random.SeedSequence().entropy) % 2**31
    print(f"scripts/stress soak --seed {seed}", flush=True)
    result = soak(seed, given.episodes or sys.maxsize, seconds)
    if given.json:
        write_results(given.json, result)
    print(f"{result['episodes']} episodes in {result['seconds']:.0f} s, {len(result['findings'])} findings")
    sys.stdout.flush()
    # A worker that hangs would keep the interpreter from ending.
    os._exit(1 if result["findings"] else 0)


if __name__ == "__main__":
    main()
