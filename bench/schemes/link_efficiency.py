#!/ usr / bin / env python3
"""How near the wire's rate, and how near the partitioned ideal, `balanced` comes on real index data.

    bench/schemes/link_efficiency.py DATA [--program build/release/bin/sparsesync] [--out bench/results/link_efficiency.json]

DATA is a folder with lm1b_tokens.npy (token ids, 1-D) and criteo_fields.npy (categorical fields, 2-D). Writes one JSON file
with every report of `sparsesync compare` and prints a table. The time that counts is the median of `--repeat` runs.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RATE = "200mbit"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/sparsesync")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/link_efficiency.json")
    parser.add_argument("--repeat", type=int, default=11)
    given = parser.parse_args()

    inputs = {
        "lm1b": ["from-tokens", given.data / "lm1b_tokens.npy", "--rows", 793471, "--batch", 2560],
        "criteo": ["from-fields", given.data / "criteo_fields.npy", "--batch", 1024],
    }
    for _, file, *_ in inputs.values():
        if not file.exists():
            sys.exit(f"link_efficiency: {file} is not there: give the folder that holds it")

    def run(*arguments):
        command = [str(given.program), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"link_efficiency: {result.stderr}")
        return result.stdout

    reports = []
    print(f"{'trace':<8}{'workers':>8}{'width':>7}{'x ideal':>9}{'grid':>8}{'seconds':>9}{'x bytes/rate':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in inputs.items():
#On a link where eight workers share two cores; unshaped, where only bytes count.
            cells = [(8, 128, True), (8, 32, True)]
            cells += [(n, width, False) for n in (16, 5, 7, 12) for width in (32, 128)]
            for workers, width, shaped in cells:
                trace = pathlib.Path(folder) / "trace"
                run("trace", *make, "--width", width, "--workers", workers, "--out", trace, "--force")
                link = ["--rate", RATE, "--latency", "50us"] if shaped else []
                repeat = given.repeat if shaped else 1
                text = run("compare", trace, "--schemes", "balanced", "--repeat", repeat, "--json", "-", *link)
                report = json.loads(text)
                report["provenance"]["trace"] = name
                reports.append(report)
                (scheme,) = report["schemes"]
                assert scheme["correct"], scheme
                ideal = scheme["bytes_busiest"] / report["partitioned_ideal_bytes"]
                (choice,) = scheme["tensors"]
                grid = f"{choice['row_groups']}x{choice['column_slices']}"
                seconds = wire = "-"
                if shaped:
                    seconds = f"{scheme['seconds_median']:.4f}"
                    least = scheme["bytes_busiest"] * 8 / report["network"]["rate_bps"]
                    wire = f"{scheme['seconds_median'] / least:.3f}"
                print(f"{name:<8}{workers:>8}{width:>7}{ideal:>9.4f}{grid:>8}{seconds:>9}{wire:>14}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(reports, indent=1) + "\n")
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
