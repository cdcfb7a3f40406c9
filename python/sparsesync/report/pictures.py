"""The pictures of a report, each drawn from one document."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsesync import _units as units

from .drawing import DASHES, FAINT, INK, MARKERS, SERIES, Picture, axes, logarithmic, to_svg


def finished(plot: Axes, title: str, caption: str, alternative: str, columns: list[str], rows: list[list[str]]) -> Picture:
    figure = plot.figure
    assert isinstance(figure, Figure)  # axes() makes no subfigures
    return Picture(title, caption, alternative, to_svg(figure, alternative), columns, rows)


def by_number(pairs: dict[str, Any]) -> list[tuple[int, Any]]:
    """Returns the entries of an object whose keys are numbers, as (number, value) in increasing order."""
    return sorted((int(key), value) for key, value in pairs.items())


def density_over_steps(tensor: dict[str, Any]) -> Picture:
    density = tensor["row_density"]["by_step"]
    with axes() as plot:
        plot.plot(range(len(density)), [100 * each for each in density], color=SERIES[0], marker="o" if len(density) < 60 else None)
        plot.set_xlabel("step")
        plot.set_ylabel("rows touched by a worker, %")
        plot.set_ylim(bottom=0)
    spread = tensor["row_density"]
    return finished(
        plot,
        "Row density over steps",
        "The share of the tensor's rows that a worker touches, averaged over workers.",
        f"Line over {len(density)} steps: mean {units.percent(spread['mean'])}, "
        f"from {units.percent(spread['min'])} to {units.percent(spread['max'])}.",
        ["step", "row density"],
        [[str(step), units.percent(each)] for step, each in enumerate(density)][:200],
    )


def overlap(tensor: dict[str, Any]) -> Picture:
    found = tensor["overlap"]
    bins = found["histogram"]
    with axes() as plot:
        plot.bar([(i + 0.5) / len(bins) for i in range(len(bins))], bins, width=0.9 / len(bins), color=SERIES[0])
        plot.axvline(found["mean"], color=INK, linestyle="--", linewidth=1)
        plot.set_xlabel("overlap of two workers (dashed: mean)")
        plot.set_ylabel("pairs and steps")
        plot.set_xlim(0, 1)
    return finished(
        plot,
        "Overlap of workers",
        "Rows that both workers of a pair touch, divided by the rows of the worker that touches fewer; one value per pair and step.",
        f"Histogram of {units.count(found['pairs'])} pairs: mean {found['mean']:.3f}, standard deviation {found['stdev']:.3f}.",
        ["overlap", "pairs"],
        [[f"{i / len(bins):.2f} to {(i + 1) / len(bins):.2f}", units.count(each)] for i, each in enumerate(bins) if each],
    )


def densification(tensor: dict[str, Any]) -> Picture:
    found = by_number(tensor["densification"])
    workers = [k for k, _ in found]
    with axes() as plot:
        plot.plot(workers, [ratio for _, ratio in found], color=SERIES[0], marker="o", label="this trace")
        plot.plot(workers, workers, color=INK, linestyle=":", linewidth=1.2, label="γ = k: no common rows")
        plot.plot(workers, [1] * len(workers), color=INK, linestyle="--", linewidth=1.2, label="γ = 1: identical rows")
        plot.set_xscale("log", base=2)
        plot.set_yscale("log", base=2)
        plot.set_xticks(workers, [str(k) for k in workers])
        ticks = [2**i for i in range(int(math.log2(max(workers))) + 1)]
        plot.set_yticks(ticks, [str(tick) for tick in ticks])
        plot.minorticks_off()
        plot.set_xlabel("workers, k")
        plot.set_ylabel("densification, γ")
        plot.legend()
    return finished(
        plot,
        "Densification",
        "Row density of the sum over k workers, divided by that of one worker's gradient, between the two bounds.",
        f"Curve that rises from 1 to {found[-1][1]:.2f} at {found[-1][0]} workers; the upper bound there is {found[-1][0]}.",
        ["workers", "densification"],
        [[str(k), f"{ratio:.3f}"] for k, ratio in found],
    )


def skewness(tensor: dict[str, Any]) -> Picture:
    found = by_number(tensor["skewness"])
    with axes() as plot:
        places = range(len(found))
        bars = plot.bar(places, [ratio for _, ratio in found], width=0.6, color=SERIES[0])
        plot.bar_label(bars, [f"{ratio:.3g}" for _, ratio in found], padding=2)
        plot.axhline(1, color=INK, linestyle="--", linewidth=1)
        plot.set_xticks(places, [str(p) for p, _ in found])
        plot.set_xlabel("equal ranges (dashed: no skew)")
        plot.set_ylabel("largest over mean")
    return finished(
        plot,
        "Skewness",
        "Rows divided into equal ranges, one per server: touched rows of the fullest server over the mean.",
        "Bars: " + ", ".join(f"{ratio:.3g} with {p} ranges" for p, ratio in found) + ".",
        ["equal ranges", "skewness"],
        [[str(p), f"{ratio:.3f}"] for p, ratio in found],
    )


def hot_rows(tensor: dict[str, Any]) -> Picture:
    found = tensor["hot_rows"]
    so_far, sums = 0.0, []
    for each in found:
        so_far += each["share"]
        sums.append(so_far)
    with axes() as plot:
        places = range(1, len(found) + 1)
        plot.bar(places, [100 * each["share"] for each in found], color=SERIES[0], label="share of all touches, %")
        plot.plot(places, [100 * each for each in sums], color=SERIES[1], marker="s", label="cumulative share, %")
        plot.set_xlabel("hot rows, hottest first")
        plot.set_ylabel("share of touches, %")
        plot.locator_params(axis="x", integer=True)
        plot.legend()
    return finished(
        plot,
        "Hot rows",
        "The rows that are touched most often, counted per worker and step.",
        f"Bars of the {len(found)} hottest rows, which together have {units.percent(sums[-1])} of all touches.",
        ["row", "share of touches"],
        [[units.count(each["row"]), units.percent(each["share"])] for each in found],
    )


def touches(tensor: dict[str, Any]) -> Picture:
    found = [(times, rows) for times, rows in by_number(tensor["touch_histogram"]) if times > 0]
    with axes() as plot:
        places = range(len(found))
        plot.bar(places, [rows for _, rows in found], width=0.7, color=SERIES[0])
        most = max((rows for _, rows in found), default=0)
        logarithmic(plot.yaxis, lambda number: units.count(round(number)), [min(0.5, most), most])
        plot.set_ylim(bottom=0.5)
        plot.set_xticks(places, [str(times) if times < 2 else f"{times}+" for times, _ in found])
        plot.set_xlabel("touches of a row, counted per worker and step")
        plot.set_ylabel("rows")
    untouched = tensor["touch_histogram"].get("0", 0)
    return finished(
        plot,
        "How often rows are touched",
        "A bar covers the range up to the next label. Rows without touches are not drawn.",
        f"Histogram of touches; {units.count(untouched)} rows are never touched, "
        f"{units.count(found[0][1])} once.",
        ["touches", "rows"],
        [[str(times) if times < 2 else f"{times} to {2 * times - 1}", units.count(rows)] for times, rows in found],
    )


def shown_name(scheme: dict[str, Any]) -> str:
    """Returns the name of a scheme; for auto, with the scheme that it chose."""
    name: str = scheme["name"]
    return f"{name}: {scheme['chosen']}" if scheme.get("chosen") else name


def of_tensor(tensor: dict[str, Any]) -> list[Picture]:
    """Returns the pictures of one tensor of a profile."""
    pictures = [densification(tensor), skewness(tensor)]
    if tensor["overlap"]["pairs"] > 0:
        pictures.insert(0, overlap(tensor))
    if len(tensor["row_density"]["by_step"]) > 1:
        pictures.insert(0, density_over_steps(tensor))
    if tensor["hot_rows"]:
        pictures += [hot_rows(tensor), touches(tensor)]
    return pictures


def scheme_bytes(compare: dict[str, Any]) -> Picture:
    ran = sorted((each for each in compare["schemes"] if "skipped" not in each), key=lambda each: each["bytes_busiest"])
    ideal, bound = compare["partitioned_ideal_bytes"], compare["lower_bound_bytes"]
    with axes(height=0.9 + 0.3 * len(ran)) as plot:
        places = range(len(ran))
        bars = plot.barh(places, [each["bytes_busiest"] for each in ran], color=SERIES[0])
        plot.bar_label(bars, [units.size(each["bytes_busiest"]) for each in ran], padding=3)
        if bound > 0:
            plot.axvline(bound, color=SERIES[1], label=f"lower bound, {units.size(bound)}")
            plot.axvline(ideal, color=SERIES[2], linestyle="--", label=f"partitioned ideal, {units.size(ideal)}")
        plot.set_yticks(places, [shown_name(each) for each in ran])
        plot.invert_yaxis()
        logarithmic(plot.xaxis, units.size, [each["bytes_busiest"] for each in ran])
        plot.set_xlim(right=max(each["bytes_busiest"] for each in ran) * 6 + 1)
        plot.set_xlabel("bytes of the busiest worker per step (logarithmic)")
        plot.grid(visible=False, axis="y")
        if bound > 0:
            plot.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    first = ran[0]
    return finished(
        plot,
        "Bytes of each scheme",
        "The most bytes that any worker sends or receives in a step, headers included.",
        f"Bars of {len(ran)} schemes; {first['name']} sends the fewest, {units.size(first['bytes_busiest'])}; "
        f"the lower bound is {units.size(bound)}, the partitioned ideal {units.size(ideal)}.",
        ["scheme", "bytes", "relative to the partitioned ideal"],
        [
            [each["name"], units.size(each["bytes_busiest"]), f"{each['bytes_busiest'] / ideal:.3f}" if ideal > 0 else "-"]
            for each in ran
        ],
    )


def scheme_seconds(compare: dict[str, Any]) -> Picture:
    ran = sorted((each for each in compare["schemes"] if "skipped" not in each), key=lambda each: each["seconds_median"])
    with axes(height=0.9 + 0.3 * len(ran)) as plot:
        places = range(len(ran))
        bars = plot.barh(places, [each["seconds_median"] for each in ran], color=SERIES[0], label="median")
        plot.bar_label(bars, [units.seconds(each["seconds_median"]) for each in ran], padding=3)
        predicted = [(place, each["seconds_predicted"]) for place, each in zip(places, ran, strict=True) if each["seconds_predicted"]]
        if predicted:
            values = [value for _, value in predicted]
            plot.plot(values, [place for place, _ in predicted], "|", color=INK, markersize=14, label="predicted")
            plot.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
        plot.set_yticks(places, [shown_name(each) for each in ran])
        plot.invert_yaxis()
        logarithmic(plot.xaxis, units.seconds, [each["seconds_median"] for each in ran])
        plot.set_xlim(right=max(each["seconds_median"] for each in ran) * 6)
        plot.set_xlabel("seconds per step (logarithmic)")
        plot.grid(visible=False, axis="y")
    first = ran[0]
    return finished(
        plot,
        "Seconds of each scheme",
        f"Median duration of a step with {compare['workers']} workers over {compare['transport']}, {compare['clock']} clock.",
        f"Bars of {len(ran)} schemes; {first['name']} is the fastest, {units.seconds(first['seconds_median'])}.",
        ["scheme", "median", "predicted"],
        [
            [
                each["name"],
                units.seconds(each["seconds_median"]),
                units.seconds(each["seconds_predicted"]) if each["seconds_predicted"] else "-",
            ]
            for each in ran
        ],
    )


# The order fixes the colour and marker of a scheme, so that it looks the same in every report.
PLACES = [
    *("balanced", "owned", "balanced_hash", "recursive_doubling", "all_gather", "sparse_ps", "block_ps", "dense_ring"),
    *("split_all_gather", "dynamic_split", "two_level", "dense_native", "dense_direct"),
]


def place_of(name: str, names: list[str]) -> int:
    return PLACES.index(name) if name in PLACES else len(PLACES) + names.index(name)


def plan_seconds(plan: dict[str, Any]) -> Picture:
    points = plan["workers"]
    workers = [each["n"] for each in points]
    seconds: dict[str, dict[int, float]] = {}
    for each in points:
        for scheme in each["schemes"]:
            seconds.setdefault(scheme["name"], {})[each["n"]] = scheme["seconds"]
    # Schemes that are the fastest for some number of workers are drawn with thicker lines.
    best = [name for name in dict.fromkeys(each["best"] for each in points) if name]
    names = best + sorted(set(seconds) - set(best), key=lambda name: (list(seconds[name].values())[-1], name))
    with axes(width=11, height=5) as plot:
        for name in names:
            place = place_of(name, names)
            of = [(n, seconds[name][n]) for n in workers if n in seconds[name]]
            plot.plot(
                *zip(*of, strict=True),
                color=SERIES[place % len(SERIES)],
                linestyle=DASHES[place // len(SERIES) % len(DASHES)],
                marker=MARKERS[(place + place // len(SERIES) * 3) % len(MARKERS)],
                label=name,
                linewidth=2.4 if name in best else 1,
            )
        theorem = [min(each["theorem"]["balanced_s"], each["theorem"]["hierarchy_s"]) for each in points]
        plot.plot(workers, theorem, color=INK, linestyle=":", label="theorem's optimum")
        for each in plan["crossovers"]:
            plot.axvline(each["n"], color=FAINT, linewidth=1.4)
            plot.annotate(f"{each['n']}: {each['to']}", (each["n"], 1), xycoords=("data", "axes fraction"),
                          rotation=90, va="top", ha="right", fontsize=8)
        plot.set_xscale("log", base=2)
        logarithmic(plot.yaxis, units.seconds, [*theorem, *(each for of in seconds.values() for each in of.values())])
        plot.set_xticks(workers, [units.count(n) for n in workers], rotation=45)
        plot.minorticks_off()
        plot.set_xlabel("workers")
        plot.set_ylabel("seconds per step")
        plot.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    changes = "; ".join(f"from {each['n']} on {each['to']}" for each in plan["crossovers"]) or "with no change"
    return finished(
        plot,
        "Plan",
        "Predicted duration of a step with each scheme. Vertical lines mark where another scheme becomes the fastest. "
        "The theorem's optimum assumes 4-byte indices, no latency and perfect balance; schemes with better index codes lie below it.",
        f"Curves of {len(names)} schemes from {workers[0]} to {workers[-1]} workers: "
        f"the fastest is {best[0] if best else 'none'} at first, {changes}.",
        ["workers", "best", *names],
        [
            [
                units.count(each["n"]),
                each["best"] or "-",
                *(units.seconds(seconds[name][each["n"]]) if each["n"] in seconds[name] else "-" for name in names),
            ]
            for each in points
        ],
    )


def plan_densification(plan: dict[str, Any]) -> Picture:
    points = plan["workers"]
    workers = [each["n"] for each in points]
    with axes() as plot:
        told = [(each["n"], each["densification"]) for each in points]
        seen = sum(not each["extrapolated"] for each in points)
        if seen > 0:
            plot.plot(*zip(*told[:seen], strict=True), color=SERIES[0], marker="o", label="measured")
        if seen < len(told):
            plot.plot(*zip(*told[max(seen - 1, 0) :], strict=True), color=SERIES[0], linestyle="--", marker="o", label="extrapolated")
        plot.plot(workers, [each["densification_from_an_eighth"] for each in points], color=SERIES[1], marker="s",
                  linewidth=1, label="predicted from an eighth of the workers")
        plot.set_xscale("log", base=2)
        logarithmic(plot.yaxis, lambda number: f"{number:g}", [each["densification"] for each in points])
        plot.set_xticks(workers, [units.count(n) for n in workers], rotation=45)
        plot.minorticks_off()
        plot.set_xlabel("workers")
        plot.set_ylabel("densification, γ")
        plot.legend()
    return finished(
        plot,
        "Densification behind the plan",
        "Measured up to the trace's workers, extrapolated beyond. As a check of the method, the second curve is extrapolated from "
        "an eighth of the workers, at least one; compare it with the measured values.",
        f"Curve to {points[-1]['densification']:.3g} at {units.count(workers[-1])} workers.",
        ["workers", "densification", "predicted from an eighth"],
        [[units.count(each["n"]), f"{each['densification']:.3f}", f"{each['densification_from_an_eighth']:.3f}"] for each in points],
    )
