#!/usr/bin/env python3
"""Measures how long an incremental build takes after one file changes, without and with ccache.

    bench/build_times.py [--build build/dev] [--out FILE] [FILE...]

Brings the build up to date first, which is not timed. Then touches each FILE twice, and builds once without ccache and once with it.
The time without ccache is the cost of a real change. FILE is a path in the build's checkout; the default is a list of
representative files.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

TELLING = [
    "analysis/cli/compare_command.cpp",
    "tests/schemes/conformance_test.cpp",
    "kernels/indices/index_code.cpp",
    "schemes/push_pull/push_pull.cpp",
    "engine/session/session.cpp",
    "kernels/rows/rows.h",
    "kernels/indices/index_code.h",
    "kernels/indices/sort.h",
    "kernels/base/buffer.h",
    "kernels/base/views.h",
]


def build(folder, **environment):
    """Runs a build. Returns the seconds and the number of build steps."""
    begin = time.monotonic()
    command = ["cmake", "--build", folder, "-j", str(os.cpu_count())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode != 0:
        sys.exit(f"build_times: {' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    steps = re.findall(r"^\[\d+/(\d+)\]", done.stdout, re.MULTILINE)
    return time.monotonic() - begin, int(steps[-1]) if steps else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/dev"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("files", nargs="*", default=TELLING, metavar="FILE")
    given = parser.parse_args()
    source = given.build.resolve().parents[1]
    build(given.build)
    found = {}
    print(f"{'touched':<40}{'without ccache':>16}{'with it':>10}{'steps':>8}")
    for name in given.files:
        if not (source / name).is_file():
            sys.exit(f"build_times: {source / name} does not exist; pass files of the build's checkout")
        seconds = {}
        for word, environment in (("without_ccache", {"CCACHE_DISABLE": "1"}), ("with_ccache", {})):
            (source / name).touch()
            seconds[word], seconds["steps"] = build(given.build, **environment)
        found[name] = seconds
        print(
            f"{name:<40}{seconds['without_ccache']:>14.1f} s{seconds['with_ccache']:>8.1f} s{seconds['steps']:>8}",
            flush=True,
        )
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
