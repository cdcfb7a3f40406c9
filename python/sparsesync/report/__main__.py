"""The command ``python -m sparsesync.report A.json B.json -o page.html``."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from .documents import UnusableError, on_one_line, printable, read
from .page import page


def write(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file atomically: whole or not at all."""
    path = pathlib.Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UnusableError(f"{on_one_line(path)}: {error.strerror}: give a path that can be written to") from error


def first_line(error: Exception) -> str:
    return printable(str(error).partition("\n")[0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sparsesync.report",
        description="Draws one self-contained HTML page from the JSON of sparsesync profile, compare, plan, calibrate and "
        "simulate, and from timelines of simulate.",
        epilog="example:\n  sparsesync profile TRACE --json profile.json\n  python -m sparsesync.report profile.json -o page.html",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("-o", "--out", required=True, metavar="PAGE.html", help="write the page to this file; an existing file is replaced")
    parser.add_argument("--title", default="sparsesync report", help="heading of the page (%(default)r)")
    given = parser.parse_args(arguments)
    try:
        write(given.out, page([read(path) for path in given.files], given.title))
    except UnusableError as error:
        print(f"sparsesync.report: {error}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The keys show a known kind of document, but its content is not as the program writes it.
        what = f"{type(error).__name__}: {first_line(error)}"
        print(f"sparsesync.report: a file is not as sparsesync writes it ({what}): create it again", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
