"""The JSON files that a report is made from. Their keys show which command wrote them."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, NoReturn

# Keys that identify each kind of document: a key, and a key of the entries of the list under it.
KINDS: dict[str, list[tuple[str, str | None]]] = {
    "profile": [("tensors", "densification"), ("tensors", "overlap")],
    "compare": [("schemes", None), ("partitioned_ideal_bytes", None)],
    "plan": [("workers", "schemes"), ("crossovers", None)],
    "network": [("links", None), ("host", None)],
    "simulation": [("model", None), ("results", "schedule"), ("results", "exposed_s")],
    "timeline": [("traceEvents", "ph"), ("traceEvents", "pid")],
}


# Deepest nesting of values, the same limit as in the command-line tool.
DEEPEST = 64


class UnusableError(Exception):
    """A file that cannot be used in a report. The message is one line: what, where, and how to fix it."""


@dataclasses.dataclass
class Document:
    """A file: its content and its path."""

    path: str
    kind: str
    content: dict[str, Any]

    @property
    def name(self) -> str:
        return pathlib.PurePath(self.path).name


def has(content: dict[str, Any], key: str, entry_key: str | None) -> bool:
    if key not in content:
        return False
    if entry_key is None:
        return True
    entries = content[key]
    return isinstance(entries, list) and all(isinstance(each, dict) and entry_key in each for each in entries)


def on_one_line(path: str | os.PathLike[str]) -> str:
    """Returns a path as it is, or with escapes if it contains unprintable characters."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def printable(text: str) -> str:
    """Escapes characters that are invisible, or that reorder the text around them."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def with_printable_texts(content: Any) -> Any:
    """Returns a JSON value with all strings made printable()."""
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list):
        return [with_printable_texts(each) for each in content]
    if isinstance(content, dict):
        return {printable(key): with_printable_texts(value) for key, value in content.items()}
    return content


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def refuse_depth(content: object) -> None:
    """Checks that values nest at most DEEPEST levels, because pages are drawn by recursive functions.

    Raises ValueError.
    """
    level = [content]
    for _ in range(DEEPEST):
        values = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [inner for each in values for inner in each]
    if any(isinstance(each, (dict, list)) for each in level):
        raise ValueError(f"nests values more than {DEEPEST} deep")


def read(path: str | os.PathLike[str]) -> Document:
    """Reads a file and detects its kind. Raises UnusableError."""
    mend = "give a file that sparsesync profile, compare, plan, calibrate or simulate wrote with --json, or simulate with --timeline"
    shown = on_one_line(path)
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"), parse_constant=refuse_constant)
        refuse_depth(content)
        # A lone surrogate, which JSON's escapes can express and a page cannot, becomes a question mark.
        content = json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", errors="replace"))
        content = with_printable_texts(content)
    except OSError as error:
        raise UnusableError(f"{shown}: {error.strerror}: {mend}") from error
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{shown}: is not JSON ({error}): {mend}") from error
    kinds = [
        kind
        for kind, keys in KINDS.items()
        if isinstance(content, dict) and all(has(content, key, entry_key) for key, entry_key in keys)
    ]
    if not kinds:
        raise UnusableError(f"{shown}: is not a kind of document that a report supports: {mend}")
    return Document(str(path), kinds[0], content)
