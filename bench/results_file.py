#!/usr/bin/env python3
"""Writes the JSON of a benchmark with one table row per line, so that files stay short and a diff shows the rows that changed.

    bench/results_file.py FILE...    formats JSON files in place

Each of these takes one line:

- a value that fits into 140 columns
- an element of a list
- an object of numbers and strings; it may also hold one more level of lists and objects
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = 140


def children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def depth(value: Any) -> int:
    """Returns the nesting depth of lists and objects: 0 for a number."""
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(depth, children(value)), default=0)


def is_row(value: Any) -> bool:
    if isinstance(value, list):
        return depth(value) == 1 and not any(isinstance(each, str) for each in value)
    return depth(value) == 1 or (depth(value) == 2 and any(depth(each) == 0 for each in children(value)))


def results_text(value: Any, column: int = 0, indent: int = 0) -> str:
    """Formats JSON. `column` is the column in which the value begins, `indent` the indentation of its line."""
    line = json.dumps(value)
    if depth(value) == 0 or (indent > 0 and (column + len(line) <= COLUMNS or is_row(value))):
        return line
    pad = " " * (indent + 1)
    if isinstance(value, list):
        lines = [pad + json.dumps(each) for each in value]
        return "[\n" + ",\n".join(lines) + f"\n{' ' * indent}]"
    lines = []
    for key, each in value.items():
        name = f"{pad}{json.dumps(key)}: "
        lines.append(name + results_text(each, len(name), indent + 1))
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


def write_results(path: Path, value: Any) -> None:
    of_json = json.loads(json.dumps(value))  # makes the keys strings
    path.write_text(results_text(of_json) + "\n", encoding="utf-8")


def main(names: list[str]) -> int:
    if not names or names[0].startswith("-"):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    for path in map(Path, names):
        write_results(path, json.loads(path.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
