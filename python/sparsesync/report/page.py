"""The page of a report: a section for each document, with its pictures, tables and provenance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jinja2

from sparsesync import _units as units

from . import pictures, schedules
from .documents import Document
from .drawing import Picture

# Largest number of tensors to draw; the table has all.
MOST_DRAWN = 8


@dataclasses.dataclass
class Table:
    columns: list[str]
    rows: list[list[str]]
    words: bool = False  # the cells hold names and sentences, not numbers


@dataclasses.dataclass
class Group:
    """Pictures that are shown together."""

    title: str
    pictures: list[Picture]
    wide: bool = False


@dataclasses.dataclass
class Section:
    """The section of one document."""

    title: str
    summary: str
    provenance: list[tuple[str, str]]
    tables: list[Table] = dataclasses.field(default_factory=list)
    groups: list[Group] = dataclasses.field(default_factory=list)


def plural(number: int, word: str) -> str:
    return f"{units.count(number)} {word}{'' if number == 1 else 's'}"


def of_profile(content: dict[str, Any], section: Section) -> None:
    tensors = content["tensors"]
    section.summary = f"{plural(len(tensors), 'tensor')}, {plural(tensors[0]['workers'], 'worker')}, {plural(tensors[0]['steps'], 'step')}."
    rows = []
    for tensor in tensors:
        zipf = tensor["zipf"]
        rows.append(
            [
                tensor["name"],
                units.count(tensor["rows"]),
                units.count(tensor["width"]),
                units.percent(tensor["row_density"]["mean"]),
                units.percent(tensor["density"]),
                f"{tensor['overlap']['mean']:.3f}" if tensor["overlap"]["pairs"] else "-",
                f"{list(tensor['densification'].values())[-1]:.3f}",
                f"{zipf['s']:.3f} ({zipf['ci'][0]:.3f} to {zipf['ci'][1]:.3f})" if zipf else "-",
                f"{tensor['drift'][1]:.3f} … {tensor['drift'][-1]:.3f}" if len(tensor["drift"]) > 1 else "-",
            ]
        )
    columns = ["tensor", "rows", "width", "row density", "density", "overlap", "densification", "Zipf exponent (95%)", "drift"]
    section.tables.append(Table(columns, rows))
    drawn = sorted(tensors, key=lambda tensor: -tensor["row_density"]["mean"] * tensor["rows"] * tensor["width"])[:MOST_DRAWN]
    if len(drawn) < len(tensors):
        section.summary += f" Pictures show the {len(drawn)} tensors with the largest gradients."
    for tensor in drawn:
        section.groups.append(Group(tensor["name"], pictures.of_tensor(tensor)))


def of_compare(content: dict[str, Any], section: Section) -> None:
    ran = [each for each in content["schemes"] if "skipped" not in each]
    section.summary = (
        f"{plural(content['workers'], 'worker')} over {content['transport']}, {content['clock']} clock, "
        f"{plural(content['steps'], 'step')}, median of {content['repeat']}."
    )
    wrong = [each["name"] for each in ran if not each["correct"]]
    if wrong:
        section.summary += f" Incorrect results: {', '.join(wrong)}."
    if ran:
        section.groups.append(Group("", [pictures.scheme_bytes(content), pictures.scheme_seconds(content)]))
    skipped = [[each["name"], each["skipped"]] for each in content["schemes"] if "skipped" in each]
    if skipped:
        section.tables.append(Table(["skipped", "reason"], skipped, words=True))


def of_plan(content: dict[str, Any], section: Section) -> None:
    network = content["network"]
    section.summary = f"{units.rate(network['rate_bps'])} in each direction, latency {units.seconds(network['latency_s'])}."
    if content["crossovers"]:
        rows = [[units.count(each["n"]), each["to"], each["from"]] for each in content["crossovers"]]
        section.tables.append(Table(["from this number of workers", "the fastest is", "instead of"], rows, words=True))
    if content["workers"]:
        drawn = [pictures.plan_seconds(content), pictures.plan_densification(content)]
        section.groups.append(Group("", drawn[:1], wide=True))
        section.groups.append(Group("", drawn[1:]))


def of_network(content: dict[str, Any], section: Section) -> None:
    section.summary = "Links, as measured by calibrate."
    rows = []
    for name, what in (("inter", "between nodes"), ("intra", "inside a node")):
        link = content["links"].get(name)
        for of, key in ((what, None), (f"{what}, all to all", "loaded")):
            each = link if link and key is None else (link or {}).get(key) if key else None
            if each:
                latency, rate = each["ci"]
                rows.append(
                    [
                        of,
                        units.seconds(each["latency_s"]),
                        f"{units.seconds(latency[0])} to {units.seconds(latency[1])}",
                        units.rate(each["rate_bps"]),
                        f"{units.rate(rate[0])} to {units.rate(rate[1])}",
                    ]
                )
    section.tables.append(Table(["link", "latency", "95% interval", "rate", "95% interval"], rows))


def of_simulation(content: dict[str, Any], section: Section) -> None:
    found = schedules.by_workers(content)
    network = content["network"]
    if network.get("affine"):
        start, rate = network["affine"]
        link = f"an all-reduce takes {units.seconds(start)} plus {1e9 * rate:.3g} ns per byte"
    else:
        link = f"{units.rate(network['rate_bps'])} in each direction, latency {units.seconds(network['latency_s'])}"
    section.summary = f"{content['model']}; {link}."
    if not found:
        return
    section.groups.append(Group("", [schedules.step_parts(content)]))
    if len(found) > 1:
        section.groups.append(Group("", [schedules.scaling(content)], wide=True))


def of_timeline(content: dict[str, Any], section: Section) -> None:
    found = schedules.timelines(content)
    section.summary = f"{plural(len(found), 'timeline')} of the last steps."
    if len(found) > schedules.MOST_DRAWN:
        section.summary += f" The picture shows the first {schedules.MOST_DRAWN}."
    section.groups.append(Group("", [schedules.when_what_crosses(found[: schedules.MOST_DRAWN])], wide=True))


SECTIONS = {
    "profile": of_profile,
    "compare": of_compare,
    "plan": of_plan,
    "network": of_network,
    "simulation": of_simulation,
    "timeline": of_timeline,
}
TITLES = {
    "profile": "Profile",
    "compare": "Comparison",
    "plan": "Plan",
    "network": "Network",
    "simulation": "Simulation",
    "timeline": "Timeline",
}


def page(documents: Iterable[Document], title: str) -> str:
    """Returns the whole page as HTML."""
    sections = []
    for document in documents:
        provenance = document.content.get("provenance", {})
        origin = [("file", document.path), *((str(name), str(value)) for name, value in provenance.items())]
        section = Section(f"{TITLES[document.kind]}: {document.name}", "", origin)
        SECTIONS[document.kind](document.content, section)
        if "trace" in provenance:
            section.summary += f" Trace: {provenance['trace']}."
        sections.append(section)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2").render(title=title, sections=sections)
