"""Runs the targets of build/fuzz/bin/sparsesync_fuzz, several at a time. `scripts/stress fuzz` builds and calls it."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import random
import re
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

PROGRAM = ROOT / "build/fuzz/bin/sparsesync_fuzz"
FINDINGS = ROOT / "build/fuzz/findings"
DICTIONARY = ROOT / "tests/fuzz/json.dict"
OF_JSON = {"safetensors", "traces", "networks", "models"}
# Seconds for one input. A session with a peer that sends corrupted messages may wait for its deadline of 2 s more than once.
TIMEOUT_S = 30
MOST_MIB = 2048
# Maximum bytes of an input. Files are long and deeply nested. Decoders reach the same code with short inputs, and run four times as many of
# these.
LONGEST = {"index_codes": 4096, "messages": 4096}
LONGEST_OF_OTHERS = 200_000


@dataclasses.dataclass
class Outcome:
    """The result of one target's run."""

    target: str
    seed: int
    inputs: int = 0
    seconds: float = 0
    findings: list[str] = dataclasses.field(default_factory=list)


def all_targets() -> list[str]:
    """Returns the targets, which the program lists if it gets none."""
    if not PROGRAM.exists():
        sys.exit("scripts/stress fuzz: build/fuzz has no program; run scripts/stress fuzz, which builds it")
    done = subprocess.run([str(PROGRAM)], env={**os.environ, "SPARSESYNC_FUZZ_TARGET": ""}, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition(": ")[2].split()


def fuzz(target: str, seed: int, seconds: float, inputs: int) -> Outcome:
    """Runs one target until the time is over (`seconds`), the inputs are used up, or there is a finding."""
    outcome = Outcome(target, seed)
    with tempfile.TemporaryDirectory(prefix="sparsesync-fuzz-") as folder:
        seeds = pathlib.Path(folder) / "seeds"
        seeds.mkdir()
        artifacts = FINDINGS / target
        artifacts.mkdir(parents=True, exist_ok=True)
        before = set(artifacts.iterdir())
        command = [
            str(PROGRAM),
            str(seeds),
            f"-seed={seed}",
            f"-artifact_prefix={artifacts}/",
            f"-timeout={TIMEOUT_S}",
            f"-rss_limit_mb={MOST_MIB}",
            f"-max_len={LONGEST.get(target, LONGEST_OF_OTHERS)}",
            "-print_final_stats=1",
        ]
        if seconds:
            command.append(f"-max_total_time={max(1, round(seconds))}")
        if inputs:
            command.append(f"-runs={inputs}")
        if target in OF_JSON:
            command.append(f"-dict={DICTIONARY}")
        began = datetime.datetime.now()
        done = subprocess.run(
            command,
            env={**os.environ, "SPARSESYNC_FUZZ_TARGET": target, "SPARSESYNC_FUZZ_SEEDS": str(seeds), "TMPDIR": folder},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        outcome.seconds = (datetime.datetime.now() - began).total_seconds()
    counts = re.findall(r"^(?:stat::number_of_executed_units:\s*|#)(\d+)", done.stderr, re.MULTILINE)
    outcome.inputs = max(map(int, counts), default=0)
    new = sorted(set(artifacts.iterdir()) - before)
    outcome.findings = [str(each.relative_to(ROOT)) for each in new]
    if done.returncode != 0 or not counts:
        print(done.stderr[-6000:], file=sys.stderr)
        for each in outcome.findings:
            print(f"FINDING: SPARSESYNC_FUZZ_TARGET={target} build/fuzz/bin/sparsesync_fuzz {each}", flush=True)
        if not new:
            outcome.findings.append(f"ended with status {done.returncode}")
    return outcome


def provenance() -> dict[str, str]:
    """Returns the commit, compiler, processor and date."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    clang = subprocess.run(["clang++-14", "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "commit": commit,
        "compiler": clang,
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def runs_in(file: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the runs that --json has written to the file so far."""
    try:
        runs: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["runs"]
    except (ValueError, KeyError, TypeError):
        sys.exit(f"scripts/stress fuzz: {file} is not a result of scripts/stress fuzz; pass another file with --json")
    return runs


def main() -> int:
    every = all_targets()
    options = argparse.ArgumentParser(prog="scripts/stress fuzz", description=__doc__)
    options.add_argument("--seconds", type=float, help="duration of all targets together (60 without --inputs)")
    options.add_argument("--inputs", type=int, help="inputs per target")
    options.add_argument("--target", action="append", choices=every, help="only this one; may be repeated")
    options.add_argument("--seed", type=int, help="seed of the first job (default: random)")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    options.add_argument("--json", type=pathlib.Path, help="add inputs, findings and provenance of this run to this file")
    given = options.parse_args()
    # Read the file before the run, so that a file of another kind does not discard the results.
    runs = runs_in(given.json) if given.json and given.json.exists() else []
    targets = given.target or every
    jobs = min(given.jobs, len(targets))
    seconds = given.seconds if given.seconds is not None else 0 if given.inputs else 60.0
    each = seconds * jobs / len(targets)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1, 2**31 - len(targets))
    print(f"scripts/stress fuzz --seed {seed}", flush=True)
    outcomes: list[Outcome] = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(fuzz, target, seed + place, each, given.inputs or 0) for place, target in enumerate(targets)]
        for done in concurrent.futures.as_completed(running):
            outcome = done.result()
            outcomes.append(outcome)
            line = f"{outcome.target:<12} {outcome.inputs:>12,} inputs in {outcome.seconds:7.0f} s  {len(outcome.findings)} findings"
            print(line, flush=True)
    findings = sum(len(outcome.findings) for outcome in outcomes)
    print(f"{sum(outcome.inputs for outcome in outcomes):,} inputs, {findings} findings")
    if given.json:
        runs.append({"targets": [dataclasses.asdict(outcome) for outcome in outcomes], "findings": findings, "provenance": provenance()})
        total = sum(target["inputs"] for run in runs for target in run["targets"])
        found = sum(run["findings"] for run in runs)
        write_results(given.json, {"inputs": total, "findings": found, "runs": runs})
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
