"""The command ``python -m sparsesync``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sparsesync",
        description="Checks this installation. The program `sparsesync`, which measures gradients and networks, is separate.",
        epilog="example:\n  python -m sparsesync doctor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser("doctor", add_help=False, help="print what is installed, usable and missing")
    given, rest = parser.parse_known_args(arguments)
    if given.command != "doctor":
        if rest:
            doctor.error(f"unrecognized arguments: {' '.join(rest)}")
        parser.print_help()
        return 0
    from sparsesync.doctor import command

    return command.main(rest)


if __name__ == "__main__":
    sys.exit(main())
