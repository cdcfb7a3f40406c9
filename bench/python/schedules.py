#!/usr/bin/env python3
"""Compares the seconds that a step takes in PyTorch with the seconds that its schedule predicts, for each schedule.

    .venv/bin/python bench/python/schedules.py [--workers 4] [--rate 200mbit] [--out bench/results/schedules_run.json]
    .venv/bin/python bench/python/schedules.py --cases dense --schedules wfbp dear auto

Needs the release build and .venv (scripts/setup), or another build's package with --package. Workers are threads of this process,
each with a module in a sparsesync.torch.DistributedDataParallel, on links of local_group() that are waited for in real time. A layer's
pass sleeps until an absolute time, so that two cores can serve several workers, and its gradient is constant. All workers measure
their passes and the links, plan, and then run --steps steps by that plan. Prints a table and writes JSON.

By default all layers are identical, with dense or row-sparse gradients that take as long to exchange as the layer's passes. With
--model the layers are those of the model, and their passes take --compute together.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from results_file import write_results  # noqa: E402

CASES = {"dense": ("auto", False), "rows": ("balanced", False), "rows, announced": ("owned", True)}  # scheme, announce
WIDTH = 64
ROWS = 200_000
HOT = 1.25  # workers draw their rows from this many times as many
# Steps before the plan, which is made from measured passes, has been reviewed once. The next review is due after step 28.
WARM_UP = 14
MOST_STEPS = 12
WAITS = 1e-3  # seconds; a shorter pause before a pass does not count as a wait for a result
LAZY_BUCKETS = 4


def quantity(text: str, units: dict[str, float]) -> float:
    """Parses a number and its unit."""
    unit = text.lstrip("0123456789.")
    if unit not in units:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number with a unit ({', '.join(units)})")
    return float(text.removesuffix(unit)) * units[unit]


def rate(text: str) -> float:
    return quantity(text, {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9})


def seconds(text: str) -> float:
    return quantity(text, {"us": 1e-6, "ms": 1e-3, "s": 1.0})


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="threads (%(default)s)")
    parser.add_argument("--layers", type=int, default=12, help="identical layers (%(default)s)")
    parser.add_argument("--steps", type=int, default=12, help=f"measured steps of each schedule: 2 to {MOST_STEPS} (%(default)s)")
    parser.add_argument("--rate", type=rate, default="200mbit", help="rate of each worker's link in each direction (%(default)s)")
    parser.add_argument("--latency", type=seconds, default="200us", help="latency of each worker's link (%(default)s)")
    parser.add_argument("--compute", type=seconds, default="360ms", help="time of both passes together (%(default)s)")
    parser.add_argument("--model", type=Path, metavar="MODEL.json", help="use this model's layers instead of identical ones")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="gradients of identical layers (all)")
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help="schedules to run; `sparsesync info` lists them (all)")
    parser.add_argument("--package", type=Path, default=ROOT / "build/release/python", help="folder of sparsesync (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    given = parser.parse_args()
    if given.workers < 2 or given.layers < 1 or not 2 <= given.steps <= MOST_STEPS:
        parser.error(f"--workers must be at least 2, --layers at least 1, --steps from 2 to {MOST_STEPS}")
    if min(given.rate, given.compute) <= 0:
        parser.error("--rate and --compute must be greater than 0")
    if not (given.package / "sparsesync").is_dir():
        parser.error(f"--package {given.package} contains no sparsesync; build the preset release")
    return given


# ---- The model.


@dataclasses.dataclass(frozen=True)
class LayerOf:
    """A layer of the model: the seconds of its passes, and the shape of its gradient."""

    forward_s: float
    backward_s: float
    rows: int  # elements, if the gradient is dense
    width: int = 1
    touched: int = 0  # rows touched by each worker; 0 if the gradient is dense
    hot: int = 0  # workers draw their rows from the first `hot` rows

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.width


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    scheme: str
    announce: bool
    layers: tuple[LayerOf, ...]
    alike: bool


def united(touched: float, workers: int, hot: float) -> float:
    """Returns the size of the union, if each worker draws `touched` of `hot * touched` rows."""
    return hot * touched * (1 - (1 - 1 / hot) ** workers)


def layers_alike(given: argparse.Namespace, has_rows: bool) -> tuple[LayerOf, ...]:
    """Returns identical layers. Each exchanges its gradient for as long as its passes take."""
    n = given.workers
    takes = given.compute / given.layers
    start_ups = 2 * (n - 1) * given.latency
    to_send = max(64.0, (takes - start_ups) * given.rate / 8)  # bytes, in both phases
    forward, backward = takes / 3, 2 * takes / 3
    share = (n - 1) / n
    if not has_rows:
        layer = LayerOf(forward, backward, int(to_send / (2 * share * 4)))
    else:
        touched = max(1, int(to_send / (share * 4 * WIDTH * (1 + united(1, n, HOT)))))
        layer = LayerOf(forward, backward, ROWS, WIDTH, touched, int(HOT * touched))
    return (layer,) * given.layers


def layers_of_model(given: argparse.Namespace) -> tuple[str, tuple[LayerOf, ...]]:
    """Returns the name and the layers of a model file, with passes scaled to --compute."""
    model = json.loads(given.model.read_text(encoding="utf-8"))
    stretch = given.compute / sum(each["forward_s"] + each["backward_s"] for each in model["layers"])
    layers = []
    for each in model["layers"]:
        passes = each["forward_s"] * stretch, each["backward_s"] * stretch
        if "sparse" not in each:
            layers.append(LayerOf(*passes, int(each["bytes"] / 4)))
            continue
        rows, width, touched = each["sparse"]["rows"], each["sparse"]["width"], round(each["sparse"]["nnz"])
        gamma = densification(each["sparse"]["densification"], given.workers)
        layers.append(LayerOf(*passes, rows, width, touched, min(rows, int(hot_of(gamma, given.workers, rows / touched) * touched))))
    return model["name"], tuple(layers)


def densification(known: dict[str, float], workers: int) -> float:
    """Returns the densification for a number of workers. Interpolates as a power of that number between known points."""
    points = sorted([(1, 1.0), *((int(number), gamma) for number, gamma in known.items())])
    upper = next((i for i, (number, _) in enumerate(points) if number >= workers), len(points) - 1)
    (n0, g0), (n1, g1) = points[upper - 1], points[upper]
    return g0 * (workers / n0) ** (math.log(g1 / g0) / math.log(n1 / n0))


def hot_of(gamma: float, workers: int, most: float) -> float:
    """Returns the factor `hot` at which all workers together touch `gamma` times as many rows as one worker."""
    low, high = 1.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if united(1, workers, middle) < gamma else (low, middle)
    return high


def cases_of(given: argparse.Namespace) -> Iterator[Case]:
    if given.model:
        name, layers = layers_of_model(given)
        yield Case(name, *CASES["rows"], layers, alike=False)
        yield Case(f"{name}, announced", *CASES["rows, announced"], layers, alike=False)
        return
    for name in given.cases or CASES:
        yield Case(name, *CASES[name], layers_alike(given, name != "dense"), alike=True)


# ---- A worker's passes.


class Passes:
    """Simulates computation by sleeping until absolute times, which only move if a pass waits for a result."""

    def __init__(self) -> None:
        self._until = 0.0
        self.spans: list[tuple[float, float]] = []  # passes of the current step

    def begin_step(self) -> None:
        self._until = time.monotonic()
        self.spans = []

    def waited(self, seconds: float) -> None:
        """Records that the pass paused for `seconds` before a layer."""
        if seconds > WAITS:
            self._until = time.monotonic()

    def compute(self, seconds: float) -> None:
        began, self._until = self._until, self._until + seconds
        time.sleep(max(0.0, self._until - time.monotonic()))
        self.spans.append((began, self._until))


class Pass(torch.autograd.Function):
    """The forward and backward pass of a layer."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, layer: Layer) -> torch.Tensor:
        context.layer = layer
        layer.passes.compute(layer.of.forward_s)
        return x.clone()

    @staticmethod
    def backward(context: Any, *above: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        layer = context.layer
        layer.passes.compute(layer.of.backward_s)
        return above[0], layer.gradient(), None


class Layer(torch.nn.Embedding):
    """Has a weight, and a gradient that is the same in each step. A layer with a row-sparse gradient takes its rows as input."""

    def __init__(self, of: LayerOf, passes: Passes, rank: int, place: int) -> None:
        # No page of the weight is touched, except for rows of the gradient.
        super().__init__(of.rows, of.width, sparse=of.touched > 0, _weight=torch.empty(of.rows, of.width))
        self.of = of
        self.passes = passes
        self._came = 0.0
        self.ids = torch.empty(0, dtype=torch.int64)
        self._values = torch.ones(of.rows, of.width) if of.touched == 0 else torch.ones(of.touched, of.width)
        if of.touched > 0:
            source = torch.Generator().manual_seed(1000 * rank + place)
            self.ids = torch.randperm(of.hot, generator=source)[: of.touched].sort().values
        # Registered before the wrapper's hook, which waits for the results that the layer needs.
        self.register_forward_pre_hook(Layer._come)

    def _come(self, _: object) -> None:
        self._came = time.monotonic()

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.passes.waited(time.monotonic() - self._came)
        passed: torch.Tensor = Pass.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return passed

    def gradient(self) -> torch.Tensor:
        if self.of.touched == 0:
            return self._values.clone()
        return torch.sparse_coo_tensor(self.ids[None], self._values, self.weight.shape, is_coalesced=True, check_invariants=False)


class Model(torch.nn.Module):
    def __init__(self, layers: Sequence[LayerOf], passes: Passes, rank: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(each, passes, rank, place) for place, each in enumerate(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(layer.ids, x)
        return x


# ---- What a training took.

Span = tuple[float, float]
Spans = dict[tuple[int, str], Span]  # begin and end of each bucket's phases in a step


def exposed_seconds(span: Span, passes: Sequence[Span]) -> float:
    """Returns the seconds of a phase during which no pass was running."""
    return span[1] - span[0] - sum(max(0.0, min(span[1], end) - max(span[0], begin)) for begin, end in passes)


@dataclasses.dataclass
class Crossed:
    """Mean seconds of each phase per step."""

    seconds: dict[str, float]
    exposed: dict[str, float]

    @staticmethod
    def of(steps: Sequence[tuple[Spans, Sequence[Span]]]) -> Crossed:
        found = Crossed({}, {})
        for phase in ("announce", "reduce", "gather"):
            spans = [[(span, passes) for (_, of), span in crossed.items() if of == phase] for crossed, passes in steps]
            found.seconds[phase] = statistics.fmean(sum(end - begin for (begin, end), _ in each) for each in spans)
            found.exposed[phase] = statistics.fmean(sum(exposed_seconds(*each) for each in step) for step in spans)
        return found


@dataclasses.dataclass
class Row:
    case: str
    schedule: str
    expected_s: float
    run_s: float
    crossed: Crossed
    alone: dict[str, float]  # expected seconds of the phases if each layer runs alone; only of `sequential`
    forward_s: float
    backward_s: float


class Worker:
    """A thread that trains."""

    def __init__(self, given: argparse.Namespace, case: Case, schedule: str, member: Any) -> None:
        self._given = given
        self._case = case
        self._schedule = schedule
        self._member = member
        self.iteration_s = 0.0
        self.expected: dict[str, float] = {}
        self.exposed: list[dict[str, Any]] = []
        self.crossed = Crossed({}, {})

    def train(self) -> None:
        import sparsesync.torch

        passes = Passes()
        model = Model(self._case.layers, passes, self._member.rank)
        ddp = sparsesync.torch.DistributedDataParallel(
            model,
            process_group=self._member,
            scheme=self._case.scheme,
            announce=self._case.announce,
            schedule=self._schedule,
            bucket_cap_mb=self._lazy_mib(),
            init_sync=False,
        )
        # Updates take no time in simulations, so they take none here.
        optimizer = sparsesync.torch.wrap_optimizer(Nothing(ddp.parameters(), {}), ddp, per_parameter=True)
        steps: list[tuple[Spans, Sequence[Span]]] = []
        iterations = []
        last: tuple[Spans, Sequence[Span]] = {}, ()
        for step in range(WARM_UP + 1 + self._given.steps):
            began = time.monotonic()
            optimizer.zero_grad()
            before = passes.spans
            passes.begin_step()
            result = ddp(torch.ones((), requires_grad=True))
            crossed = self._crossed(ddp)
            # All results have arrived, and index prefetches are those of this step. A phase in progress still has the figures of the
            # previous step.
            if step > WARM_UP and all(span != last[0].get(key) for key, span in crossed.items()):
                steps.append((crossed, [*before, *passes.spans]))
            last = crossed, passes.spans
            result.backward()
            optimizer.step()
            if step == 0 and self._schedule == "lazy":
                ddp.synchronizer.measure()
            if step > WARM_UP:
                iterations.append(time.monotonic() - began)
        ddp.synchronize()
        if not steps:
            raise SystemExit("schedules.py: in every measured step a phase was still running when the results arrived")
        self.iteration_s = statistics.median(iterations)
        self.crossed = Crossed.of(steps)
        self._take_expected(ddp)
        ddp.close()

    def _lazy_mib(self) -> float | None:
        """Returns a bucket size for `lazy` that gives several buckets: with its default of 25 MiB there would be one."""
        if self._schedule != "lazy":
            return None
        of_buckets = [4 * each.touched * each.width if each.touched else each.bytes for each in self._case.layers]
        return sum(of_buckets) / LAZY_BUCKETS / (1 << 20)

    def _crossed(self, ddp: Any) -> Spans:
        return {
            (place, phase): span
            for place, bucket in enumerate(ddp.synchronizer.buckets)
            for phase, span in ddp.synchronizer.session.use(bucket.number)["last"].items()
        }

    def _take_expected(self, ddp: Any) -> None:
        """Keeps the seconds that worker 0 expects of the current schedule. `lazy` plans nothing, so this creates a planner for it."""
        stated = ddp.statistics()["schedule"]
        self.exposed = stated["exposed"]
        if stated["expected"]:
            self.expected = stated["expected"]
            return
        import sparsesync

        schedule = ddp.synchronizer.measure()
        forward, backward = schedule.timer.passes
        seconds = {each.index: (forward[layer], backward[layer]) for layer, each in enumerate(schedule.layers.members)}
        planner = sparsesync.SchedulePlanner(
            ddp.synchronizer.session,
            schedule.layers.native(seconds),
            self._schedule,
            full_bytes=(self._lazy_mib() or 0) * (1 << 20),
            scheme=self._case.scheme,
            announce=self._case.announce,
        )
        if len(planner.buckets) != stated["buckets"]:
            raise SystemExit(f"schedules.py: the planner has {len(planner.buckets)} buckets, the training {stated['buckets']}")
        for layer, (touched, united_by_all) in schedule.observed().items():
            planner.observe(layer, touched, united_by_all)
        while not planner.add_step(forward, backward):
            pass
        planner.review()
        self.expected = planner.expected


class Nothing(torch.optim.Optimizer):
    """Updates nothing."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def measured(given: argparse.Namespace, case: Case, schedule: str) -> Row:
    import sparsesync.torch

    members = sparsesync.torch.local_group(given.workers, rate_bps=given.rate, latency_s=given.latency)
    workers = [Worker(given, case, schedule, member) for member in members]
    failed = []

    def run(worker: Worker) -> None:
        try:
            worker.train()
        except BaseException:
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failed:
            thread.join(1)
    if failed:
        raise SystemExit(failed[0])
    first = workers[0]
    alone = {
        phase: sum(each["seconds"] for each in first.exposed if each["phase"] == phase) for phase in ("reduce", "gather")
    } if schedule == "sequential" else {}  # fmt: skip
    return Row(
        case.name,
        schedule,
        first.expected["iteration_s"],
        statistics.median(each.iteration_s for each in workers),
        first.crossed,
        alone,
        sum(each.forward_s for each in case.layers),
        sum(each.backward_s for each in case.layers),
    )


# ---- Tables.


def closed_form(row: Row) -> float | None:
    """Returns DeAR's speed-up over WFBP for many layers by the closed form of docs/developers/schedules.md, which counts only the longer
    of two overlapping times.
    """
    if not row.alone:
        return None
    reduce, gather = row.alone["reduce"], row.alone["gather"]
    wfbp = row.forward_s + max(row.backward_s, reduce + gather)
    return wfbp / (max(row.forward_s, gather) + max(row.backward_s, reduce))


def hidden(row: Row) -> float:
    """Returns the hidden fraction of the communication that the forward pass could hide."""
    could = min(row.crossed.seconds["gather"], row.forward_s)
    return max(0.0, row.crossed.seconds["gather"] - row.crossed.exposed["gather"]) / could


def results_of(rows: Sequence[Row], cases: Sequence[Case]) -> list[dict[str, Any]]:
    alike = {case.name for case in cases if case.alike}
    of = {(row.case, row.schedule): row for row in rows}
    results = []
    for row in rows:
        wfbp, sequential = (of.get((row.case, name)) for name in ("wfbp", "sequential"))
        results.append(
            {
                "case": row.case,
                "schedule": row.schedule,
                "simulated_s": row.expected_s,
                "run_s": row.run_s,
                "run_over_simulated": row.run_s / row.expected_s,
                "gain_over_wfbp": wfbp.run_s / row.run_s if wfbp else None,
                "simulated_gain_over_wfbp": wfbp.expected_s / row.expected_s if wfbp else None,
                "closed_form_of_dear": closed_form(sequential) if sequential and row.case in alike else None,
                "reduce_s": row.crossed.seconds["reduce"],
                "gather_s": row.crossed.seconds["gather"],
                "gather_hidden": hidden(row),
                "announce_s": row.crossed.seconds["announce"],
                "announce_exposed_s": row.crossed.exposed["announce"],
            }
        )
    return results


def line_of(row: dict[str, Any]) -> list[str]:
    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    is_dear = row["schedule"] == "dear"
    return [
        row["case"],
        row["schedule"],
        f"{1e3 * row['simulated_s']:.0f} ms",
        f"{1e3 * row['run_s']:.0f} ms",
        ratio(row["run_over_simulated"]),
        ratio(row["gain_over_wfbp"]),
        ratio(row["simulated_gain_over_wfbp"]),
        ratio(row["closed_form_of_dear"]) if is_dear else "-",
        f"{100 * row['gather_hidden']:.0f}%" if is_dear else "-",
        f"{100 * row['announce_exposed_s'] / row['announce_s']:.1f}%" if row["announce_s"] > 0 else "-",
    ]


HEADINGS = (
    "case", "schedule", "simulated", "run", "run / simulated", "x faster than wfbp", "simulated", "closed form of dear", "gather hidden",
    "announce exposed",
)  # fmt: skip


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(HEADINGS), *(line_of(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main() -> None:
    given = options()
    sys.path.insert(0, str(given.package))
    import sparsesync

    known = [name for name, _ in sparsesync.schedules()]
    schedules = given.schedules or known
    for name in schedules:
        if name not in known:
            raise SystemExit(f"schedules.py: unknown schedule '{name}'; known: {', '.join(known)}")
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)  # delays a pass that has slept by at most this much
    cases = list(cases_of(given))
    rows: list[Row] = []
    for case, schedule in itertools.product(cases, schedules):
        rows.append(measured(given, case, schedule))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    results = results_of(rows, cases)
    what = str(given.model) if given.model else f"{given.layers} layers"
    print(
        f"{given.workers} workers, {what}, {given.rate / 1e6:g} Mbit/s each way, latency "
        f"{1e6 * given.latency:g} us; passes of {1e3 * given.compute:g} ms\n\n{table_of(results)}"
    )
    if given.out:
        document = {
            "workers": given.workers,
            "model": str(given.model) if given.model else None,
            "layers": given.layers,
            "steps": given.steps,
            "rate_bps": given.rate,
            "latency_s": given.latency,
            "compute_s": given.compute,
            "rows": results,
            "provenance": {**sparsesync.provenance(), "torch": torch.__version__},
        }
        write_results(given.out, document)


if __name__ == "__main__":
    main()
