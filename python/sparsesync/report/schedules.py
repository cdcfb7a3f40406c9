"""The pictures of schedules: the duration of a step with each, and communication over time, hidden or exposed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sparsesync import _units as units

from .drawing import DASHES, INK, MARKERS, SERIES, Picture, axes, logarithmic
from .pictures import finished

# The order fixes the colour and marker of a schedule, so that it looks the same in every report.
PLACES = ["wfbp", "dear", "auto", "lazy", "mg_wfbp", "mg_wfbp_exact", "merge_all", "sequential"]
# Colours of a timeline, and the names of its rows in the trace file.
FORWARD, BACKWARD, HIDDEN, EXPOSED = SERIES[0], SERIES[4], SERIES[2], SERIES[1]
ROWS = ("passes", "communication, hidden", "communication, exposed")
# Largest number of timelines to draw; further ones are left out.
MOST_DRAWN = 8
# Spans with a smaller gap, as a share of the picture's width, are drawn as one.
NEAR = 1 / 2000


def place_of(name: str) -> int:
    return PLACES.index(name) if name in PLACES else len(PLACES)


def by_workers(simulation: dict[str, Any]) -> dict[int, dict[str, dict[str, Any]]]:
    """Returns the results as {workers: {schedule: result}}, ordered by workers."""
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for each in simulation["results"]:
        found.setdefault(each["workers"], {})[each["schedule"]] = each
    return dict(sorted(found.items()))


def share(part: float, whole: float) -> str:
    return units.percent(part / whole) if whole > 0 else "-"


def step_parts(simulation: dict[str, Any]) -> Picture:
    """Draws the parts of a step, for the largest number of workers."""
    workers, results = list(by_workers(simulation).items())[-1]
    names = list(results)
    with axes(height=0.9 + 0.34 * len(names)) as plot:
        places = range(len(names))
        compute = [results[name]["compute_s"] for name in names]
        exposed = [results[name]["exposed_s"] for name in names]
        plot.barh(places, compute, color=FORWARD, label="computation")
        bars = plot.barh(places, exposed, left=compute, color=EXPOSED, label="exposed communication")
        plot.bar_label(bars, [units.seconds(results[name]["iteration_s"]) for name in names], padding=3)
        plot.set_yticks(places, names)
        plot.invert_yaxis()
        plot.xaxis.set_major_formatter(lambda number, _: units.seconds(number) if number else "0")
        plot.set_xlim(right=1.15 * max(results[name]["iteration_s"] for name in names) or 1)
        plot.grid(visible=False, axis="y")
        plot.set_xlabel(f"duration of a step with {units.count(workers)} workers")
        plot.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    least = min(names, key=lambda name: results[name]["iteration_s"])
    return finished(
        plot,
        "Duration of a step with each schedule",
        "Communication is hidden while a worker computes, and exposed while the worker waits for it.",
        f"Bars of {len(names)} schedules with {units.count(workers)} workers: {least} is the fastest, "
        f"{units.seconds(results[least]['iteration_s'])}, including {units.seconds(results[least]['exposed_s'])} exposed.",
        ["schedule", "step", "computation", "communication", "exposed", "hidden share of communication"],
        [
            [
                name,
                units.seconds(each["iteration_s"]),
                units.seconds(each["compute_s"]),
                units.seconds(each["communication_s"]),
                units.seconds(each["exposed_s"]),
                share(max(0.0, each["communication_s"] - each["exposed_s"]), each["communication_s"]),
            ]
            for name, each in results.items()
        ],
    )


def scaling(simulation: dict[str, Any]) -> Picture:
    found = by_workers(simulation)
    workers = list(found)
    names = list(dict.fromkeys(each["schedule"] for each in simulation["results"]))
    with axes(width=11, height=4.6) as plot:
        drawn = []
        for name in names:
            place = place_of(name)
            of = [(n, results[name]["iteration_s"]) for n, results in found.items() if name in results]
            drawn += [seconds for _, seconds in of]
            plot.plot(
                *zip(*of, strict=True),
                color=SERIES[place % len(SERIES)],
                linestyle=DASHES[place % len(DASHES)],
                marker=MARKERS[place % len(MARKERS)],
                label=name,
            )
        compute = [max(each["compute_s"] for each in results.values()) for results in found.values()]
        plot.plot(workers, compute, color=INK, linestyle=":", linewidth=1.2, label="computation")
        plot.set_xscale("log", base=2)
        plot.set_xticks(workers, [units.count(n) for n in workers], rotation=45)
        plot.minorticks_off()
        logarithmic(plot.yaxis, units.seconds, drawn)
        plot.set_xlabel("workers")
        plot.set_ylabel("seconds per step")
        plot.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return finished(
        plot,
        "Duration of a step by number of workers",
        "The distance above the dotted line is exposed communication.",
        f"Curves of {len(names)} schedules from {units.count(workers[0])} to {units.count(workers[-1])} workers.",
        ["workers", *names],
        [
            [units.count(n), *(units.seconds(results[name]["iteration_s"]) if name in results else "-" for name in names)]
            for n, results in found.items()
        ],
    )


@dataclasses.dataclass
class Timeline:
    """A process of a trace, in seconds since its start."""

    name: str
    forward: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    backward: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    hidden: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    exposed: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def lanes(self) -> list[list[tuple[float, float]]]:
        return [self.forward, self.backward, self.hidden, self.exposed]

    def begin(self) -> float:
        return min((begin for lane in self.lanes() for begin, _ in lane), default=0.0)

    def end(self) -> float:
        return max((end for lane in self.lanes() for _, end in lane), default=0.0)


def timelines(trace: dict[str, Any]) -> list[Timeline]:
    """Returns the processes that have the rows that sparsesync writes. Raises ValueError if there are none."""
    names: dict[int, str] = {}
    rows: dict[tuple[int, int], str] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = str(event["args"]["name"])
        if event["ph"] == "M" and event["name"] == "thread_name":
            rows[event["pid"], event["tid"]] = event["args"]["name"]
    found: dict[int, Timeline] = {}
    for event in trace["traceEvents"]:
        row = rows.get((event["pid"], event.get("tid")))
        if event["ph"] != "X" or row not in ROWS:
            continue
        timeline = found.setdefault(event["pid"], Timeline(names.get(event["pid"], str(event["pid"]))))
        begin, length = float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6
        if not (math.isfinite(begin) and math.isfinite(length) and length >= 0):
            raise ValueError(f"a span of {event['name']} that takes {length} s")
        lane = {
            ROWS[0]: timeline.forward if str(event["name"]).endswith(" forward") else timeline.backward,
            ROWS[1]: timeline.hidden,
            ROWS[2]: timeline.exposed,
        }[row]
        lane.append((begin, begin + length))
    if not found:
        raise ValueError(f"no row of a trace is called {ROWS[0]}, {ROWS[1]} or {ROWS[2]}")
    return [found[process] for process in sorted(found)]


def joined(spans: list[tuple[float, float]], near: float) -> list[tuple[float, float]]:
    """Returns spans as (begin, length) in order, joined across gaps that are too small to see."""
    wholes: list[list[float]] = []
    for begin, end in sorted(spans):
        if wholes and begin - wholes[-1][1] <= near:
            wholes[-1][1] = max(wholes[-1][1], end)
        else:
            wholes.append([begin, end])
    return [(begin, end - begin) for begin, end in wholes]


def total(spans: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


def when_what_crosses(drawn: list[Timeline]) -> Picture:
    """Draws the timelines below each other, over one time axis."""
    longest = max(each.end() - each.begin() for each in drawn)
    labels: dict[str, str] = {
        FORWARD: "forward",
        BACKWARD: "backward",
        HIDDEN: "communication, hidden",
        EXPOSED: "communication, exposed",
    }
    with axes(width=11, height=1.1 + 0.95 * len(drawn)) as plot:
        for place, each in enumerate(drawn):
            for lane, height, colour in zip(each.lanes(), (0, 0, 1, 2), (FORWARD, BACKWARD, HIDDEN, EXPOSED), strict=True):
                spans = [(begin - each.begin(), length) for begin, length in joined(lane, longest * NEAR)]
                plot.broken_barh(spans, (4 * place + height, 0.85), facecolors=colour, label=labels.pop(colour, None))
        plot.set_yticks([4 * place + 1.4 for place in range(len(drawn))], [each.name for each in drawn])
        plot.tick_params(axis="y", length=0)
        plot.invert_yaxis()
        plot.set_xlim(0, longest or 1)
        plot.xaxis.set_major_formatter(lambda number, _: units.seconds(number) if number else "0")
        plot.grid(visible=False, axis="y")
        plot.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
    return finished(
        plot,
        "Communication over time",
        "For each schedule, from top to bottom: the passes of worker 0, communication while it computes, and communication while it waits.",
        "Timelines: " + "; ".join(f"{each.name}, {units.seconds(total(each.exposed))} exposed" for each in drawn) + ".",
        ["timeline", "shown", "passes", "communication, hidden", "communication, exposed"],
        [
            [
                each.name,
                units.seconds(each.end() - each.begin()),
                units.seconds(total(each.forward) + total(each.backward)),
                units.seconds(total(each.hidden)),
                units.seconds(total(each.exposed)),
            ]
            for each in drawn
        ],
    )
