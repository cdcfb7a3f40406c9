"""Measures how long `import sparsesync` and `import sparsesync.torch` take, the latter beyond `import torch, torch.distributed`.

    python bench/python/import_times.py [--repeat N] [--json FILE]

Each measurement is the median of N fresh processes of this Python (default: 21). The first process of each case compiles the
sources to bytecode and is not counted. The bytecode goes to a temporary folder, so that PYTHONDONTWRITEBYTECODE does not matter.
CPU time is measured, too: other programs lengthen it less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# The module, and what is imported before the clock starts.
CASES = {"sparsesync": "sys", "sparsesync.torch": "torch, torch.distributed", "torch, torch.distributed": "sys", "numpy": "sys"}
PROGRAM = """
import sys, time, {before}
began, began_cpu = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - began, time.process_time() - began_cpu)
"""


def seconds(module: str, environment: dict[str, str]) -> tuple[float, float]:
    """Returns the time and the CPU time of an import in a fresh process."""
    program = PROGRAM.format(module=module, before=CASES[module])
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    elapsed, cpu = map(float, done.stdout.split())
    return elapsed, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=21, help="processes per case")
    parser.add_argument("--json", type=Path, help="also write the times to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        times: dict[str, list[tuple[float, float]]] = {module: [] for module in CASES}
        for round_number in range(arguments.repeat + 1):
            for module, measured in times.items():
                taken = seconds(module, environment)
                if round_number > 0:
                    measured.append(taken)
    result = {}
    print(f"{'import':<26} {'median':>10} {'min':>10} {'max':>10} {'median CPU':>12}")
    for module, measured in times.items():
        elapsed, cpu = zip(*measured, strict=True)
        each = {"median_s": statistics.median(elapsed), "min_s": min(elapsed), "max_s": max(elapsed)}
        each["median_cpu_s"] = statistics.median(cpu)
        result[module] = {"after": CASES[module], **each}
        median, least, most, median_cpu = (seconds_of * 1e3 for seconds_of in each.values())
        print(f"{module:<26} {median:7.1f} ms {least:7.1f} ms {most:7.1f} ms {median_cpu:9.1f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
