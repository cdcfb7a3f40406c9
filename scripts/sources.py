"""Shared by the checks beside it: the floors, their sources, and what these include."""

import re

FLOORS = ["kernels", "schemes", "analysis", "engine"]
USERS = ["tests", "bench", "python"]  # may include every floor, and only themselves besides
SUFFIXES = {".h", ".hpp", ".cuh", ".cpp", ".cc", ".cu"}

INCLUDE = re.compile(rf'^\s*#\s*include\s*(?:"([^"]+)"|<((?:{"|".join(FLOORS + USERS)})/[^>]+)>)')


def sources(root):
    """Every source of ours, in order; each below one of FLOORS + USERS."""
    for top in FLOORS + USERS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def includes_of(path):
    """(line number, text) of each #include of ours in a file."""
    # Comments go, their line ends stay; string literals with // or /* do not occur on include lines.
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), read(path), flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2)


def resolve(root, path, text):
    """The file that an #include names, relative to the root; judged by its path even if it is missing."""
    beside = (path.parent / text).resolve()
    below_root = (root / text).resolve()
    target = beside if beside.is_file() or text.startswith(".") else below_root
    return target.relative_to(root) if target.is_relative_to(root) else None
