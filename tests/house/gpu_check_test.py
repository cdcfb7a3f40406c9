"""scripts/gpu-runner and scripts/gpu-bundle on programs that are made up: what goes wrong is told, and nothing is taken for run
that was not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from trees import ROOT, tree

INFO = """{
  "commit": "0123456789ab",
  "cuda": {
    "problem": %s
  },
  "nccl": "%s"
}"""
PROGRAM = """#!/bin/bash
case $1 in
  info) cat "$(dirname "$0")/info.json" ;;
  trace) mkdir -p "${@: -2:1}" ;;
  compare)
    %s
    echo '{"schemes": [{"correct": true}]}' >"${@: -1}" ;;
esac
"""
REFUSES = 'echo "sparsesync: no GPU: none" >&2; exit 1'
GOOD = """#!/bin/bash
# As GoogleTest's programs do.
if [[ $1 == --gtest_list_tests ]]; then exit 0; fi
[[ $SPARSESYNC_TEST_DEVICE == cuda ]] || exit 9
echo '[==========] Running 2 tests from 1 test suite.'
echo '[ RUN      ] A.passes/"1"'
echo '[       OK ] A.passes/"1" (1500 ms)'
echo '[ RUN      ] A.skips'
echo 'a_test.cpp:1: Skipped'
echo 'of others alone'
echo '[  SKIPPED ] A.skips (0 ms)'
echo '[==========] 2 tests from 1 test suite ran. (1500 ms total)'
"""
FAILS = """#!/bin/bash
echo '[ RUN      ] A.fails/x'
echo '[  FAILED  ] A.fails/x, where GetParam() = 4 (20 ms)'
echo '[==========] 1 test from 1 test suite ran. (20 ms total)'
exit 1
"""
CRASHES = """#!/bin/bash
echo '[ RUN      ] A.crashes'
kill -SEGV $$
"""
NOTHING = """#!/bin/bash
echo '[==========] Running 0 tests from 0 test suites.'
echo '[==========] 0 tests from 0 test suites ran. (0 ms total)'
"""
SKIPS = """#!/bin/bash
echo 'SKIPPED: the host does not reach it'
exit 77
"""
SLEEPS = "#!/bin/bash\nsleep 60\n"
BENCH = """#!/bin/bash
for argument in "$@"; do
  case $argument in
    --benchmark_list_tests=true) exit 0 ;;
    --benchmark_out=*) out=${argument#*=} ;;
  esac
done
cat >"$out" <<'JSON'
%s
JSON
"""
ROWS = '{"benchmarks": [{"run_name": "copy"}]}'
WRONG_ROWS = '{\n"benchmarks": [{"run_name": "copy",\n  "error_occurred": true,\n  "error_message": "wrong sums"\n}]}'
TABLE = '#!/bin/bash\n[[ $1 == --help ]] || echo \'{"milliseconds": 5}\' >"$2"\n'
SANITIZER = """#!/bin/bash
if [[ $1 == --version ]]; then echo 2025.3; exit 0; fi
[[ $3 == --error-exitcode && -x $5 && $6 == --gtest_filter=-*Many* ]] || exit 9
echo "========= COMPUTE-SANITIZER"
"${@:5}"
echo "========= %s"
exit %d
"""
# A Python whose pip copies a wheel instead of downloading one.
PIP = """#!/bin/bash
if [[ "$1 $2" == "-m pip" ]]; then
  echo "$*" >"$(dirname "$0")/asked"
  while [[ $1 != --dest ]]; do shift; done
  cp %s "$2"
  exit
fi
exec %s "$@"
"""


class Runner:
    """A folder with programs and a list of them, as a build leaves it."""

    def __init__(self, folder):
        self.folder, self.listed = folder, [("built", "nvcc 13, sm_90")]
        self.set_machine()

    def set_machine(self, problem=None, nccl="2.30.1", compare=":", gpu=""):
        """`problem`: why sparsesync has no GPU. `nccl`: its version, or why it is missing. `compare`: its first command.
        `gpu`: the output of nvidia-smi, which fails if it is empty."""
        self.put_tool("nvidia-smi", f"#!/bin/bash\necho '{gpu}'\n" if gpu else "#!/bin/bash\nexit 9\n")
        info = INFO % (json.dumps(problem), nccl)
        self.put("bin/sparsesync", PROGRAM % compare)
        tree(self.folder / "root", {"bin/info.json": info})

    def put(self, name, text):
        path = self.folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def add(self, kind, name, text, *arguments):
        self.put(f"tests/{name}", text)
        self.listed.append((kind, name, f"tests/{name}", *arguments))

    def put_tool(self, name, text):
        """A program in $PATH."""
        folder = self.folder / "path"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)

    def set_sanitizer(self, summary, status=0):
        self.put_tool("compute-sanitizer", SANITIZER % (summary, status))

    def write_list(self):
        tree(self.folder / "root", {"gpu-check.list": "".join("\t".join(line) + "\n" for line in self.listed)})

    def run(self, *arguments):
        """(exit status, output, {name: item}, all of the JSON)"""
        self.write_list()
        out = self.folder / "out.json"
        command = [ROOT / "scripts/gpu-runner", "--root", self.folder / "root", "--work", self.folder / "work", "--out", out]
        environment = {"PATH": f"{self.folder / 'path'}:/usr/bin:/bin"}
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"items": []}
        return done.returncode, done.stdout, {item["name"]: item for item in result["items"]}, result


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


def test_what_passes_is_told_with_its_tests_and_where_it_ran(runner):
    runner.add("test", "kernels.a", GOOD)
    runner.add("nccl", "engine.nccl", GOOD)
    runner.add("bench", "bench.a", BENCH % ROWS)
    runner.add("table", "bench.b", TABLE)
    runner.set_sanitizer("ERROR SUMMARY: 0 errors")
    status, output, items, result = runner.run()
    assert status == 0, output
    assert {item["outcome"] for item in items.values()} == {"passed"}
    assert set(items) == {
        "kernels.a", "engine.nccl", "bench.a", "bench.b", "example.compare", "example.compare_nccl",
        "memcheck.kernels.a", "racecheck.kernels.a", "synccheck.kernels.a", "initcheck.kernels.a",
    }  # fmt: skip
    assert items["kernels.a"]["tests"] == [
        {"name": 'A.passes/"1"', "outcome": "passed", "seconds": 1.5},
        {"name": "A.skips", "outcome": "skipped", "seconds": 0, "reason": "of others alone"},
    ]
    assert items["bench.a"]["result"] == json.loads(ROWS) and items["bench.b"]["result"] == {"milliseconds": 5}
    provenance = result["provenance"]
    assert provenance["built"] == "nvcc 13, sm_90" and provenance["info"]["commit"] == "0123456789ab"
    assert provenance["compute_sanitizer"] == "2025.3" and provenance["nccl"] == "2.30.1"
    assert (result["passed"], result["failed"], result["not_run"], result["cut"]) == (10, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "reason", "tests"),
    [
        (FAILS, "exit status 1", [("A.fails/x", "failed")]),
        (CRASHES, "exit status 139", [("A.crashes", "did not end")]),
        (NOTHING, "no test ran", []),
        (SKIPS, "SKIPPED: the host does not reach it", []),
    ],
)
def test_a_test_that_does_not_pass_fails_the_run(runner, text, reason, tests):
    runner.add("test", "kernels.a", GOOD)
    runner.add("test", "kernels.b", text)
    status, output, items, _ = runner.run("--only", "tests")
    assert status == 1 and f"failed: kernels.b ({reason})" in output
    assert items["kernels.a"]["outcome"] == "passed"
    bad = items["kernels.b"]
    assert (bad["outcome"], bad["reason"]) == ("failed", reason)
    assert [(test["name"], test["outcome"]) for test in bad["tests"]] == tests
    assert "output" in bad


def test_a_program_that_takes_too_long_fails(runner):
    runner.add("test", "kernels.a", SLEEPS)
    status, output, items, _ = runner.run("--only", "tests", "--item-limit", "1")
    assert status == 1 and items["kernels.a"]["reason"] == "took longer than 1 s", output


@pytest.mark.parametrize(("rows", "reason"), [(WRONG_ROWS, "wrong sums"), ("{}", "no row")])
def test_a_bench_whose_result_is_wrong_fails(runner, rows, reason):
    runner.add("bench", "bench.a", BENCH % rows)
    status, output, items, _ = runner.run("--only", "benches")
    assert status == 1 and items["bench.a"]["reason"] == reason, output


@pytest.mark.parametrize(
    ("summary", "status"), [("ERROR SUMMARY: 3 errors", 86), ("ERROR SUMMARY: 3 errors", 0), ("nothing", 0), ("crashed", 1)]
)
def test_what_the_sanitizer_finds_fails(runner, summary, status):
    runner.add("test", "kernels.a", GOOD)
    runner.set_sanitizer(summary, status)
    exit_status, output, items, _ = runner.run("--only", "sanitizer")
    assert exit_status == 1 and {item["outcome"] for item in items.values()} == {"failed"}, output
    assert len(items) == 4


def test_a_sanitizer_that_starts_no_program_fails(runner):
    """As PyPI's compute-sanitizer before 13.4.92."""
    runner.add("test", "kernels.a", GOOD)
    runner.put_tool("compute-sanitizer", (SANITIZER % ("ERROR SUMMARY: 0 errors", 0)).replace('"${@:5}"', ""))
    status, output, items, _ = runner.run("--only", "sanitizer")
    assert status == 1 and {item["reason"] for item in items.values()} == {"no test ran"}, output


def test_the_sanitizer_beside_the_programs_is_preferred(runner):
    runner.add("test", "kernels.a", GOOD)
    runner.set_sanitizer("crashed", 1)
    _, output, _, _ = runner.run("--dry-run", "--only", "sanitizer")
    assert output.splitlines()[-1].endswith(f"compute-sanitizer: {runner.folder}/path/compute-sanitizer")
    used = runner.folder / "used"
    runner.put(
        "sanitizer/compute-sanitizer", SANITIZER.replace("#!/bin/bash", f"#!/bin/bash\ntouch {used}") % ("ERROR SUMMARY: 0 errors", 0)
    )
    _, output, _, _ = runner.run("--dry-run", "--only", "sanitizer")
    assert output.splitlines()[-1].endswith(f"compute-sanitizer: {runner.folder}/root/sanitizer/compute-sanitizer")
    assert not used.exists()
    status, output, items, _ = runner.run("--only", "sanitizer")
    assert status == 0 and used.exists() and {item["outcome"] for item in items.values()} == {"passed"}, output


def test_an_example_that_is_wrong_fails(runner):
    runner.set_machine(compare="exit 1")
    status, output, items, _ = runner.run("--only", "example")
    assert status == 1 and items["example.compare"]["outcome"] == "failed", output


def test_what_a_machine_lacks_is_named_and_not_taken_for_run(runner):
    runner.set_machine(nccl="(NCCL cannot be opened)")
    runner.add("test", "kernels.a", GOOD)
    runner.add("nccl", "engine.nccl", FAILS)
    status, output, items, _ = runner.run()
    assert status == 0, output
    missing = {name: item["reason"] for name, item in items.items() if item["outcome"] == "not run"}
    assert missing == {
        "engine.nccl": "no NCCL here",
        "example.compare_nccl": "no NCCL here",
        **{f"{tool}.kernels.a": "no compute-sanitizer here" for tool in ("memcheck", "racecheck", "synccheck", "initcheck")},
    }
    for name, reason in missing.items():
        assert f"not run: {name} ({reason})" in output


def test_nccl_that_does_not_share_a_gpu_is_told(runner):
    """The suites that need it are not run; what does not is."""
    probed = "if [[ $* == *=Nccl.two_workers_* ]]; then echo 'what(): NCCL: invalid usage'; exit 1; fi\n"
    text = GOOD.replace("[[ $SPAR", probed + "[[ $NCCL_MULTI_RANK_GPU_ENABLE == 1 && $SPAR")
    runner.add("nccl", "engine.nccl", text)
    status, output, items, _ = runner.run("--only", "tests")
    assert status == 0, output
    assert items["engine.nccl"]["outcome"] == "not run"
    assert "NCCL 2.30.1 does not connect two workers on one GPU" in items["engine.nccl"]["reason"]
    assert "invalid usage" in items["engine.nccl"]["reason"]
    assert items["engine.nccl_alone_cuda"]["outcome"] == "passed"


def test_without_a_gpu_all_is_named_and_started(runner):
    runner.set_machine(problem="no GPU: none", compare=REFUSES)
    runner.add("test", "kernels.a", GOOD)
    runner.add("bench", "bench.a", BENCH % ROWS)
    runner.add("table", "bench.b", TABLE)
    runner.add("python", "python.a", FAILS)
    status, output, items, result = runner.run()
    assert status == 0, output
    assert {item["outcome"] for item in items.values()} == {"not run"}
    assert len(items) == 10 and result["problem"] == "no GPU: none" and result["not_run"] == 10
    for name in items:
        assert f"not run: {name} (no GPU: none)" in output


def test_a_gpu_that_cannot_be_used_is_a_loud_failure(runner):
    problem = "no GPU: the driver supports CUDA 12.4, this build needs 13.0"
    runner.set_machine(problem=problem, compare=REFUSES, gpu="GPU 0: NVIDIA H200 (UUID: GPU-1)")
    runner.add("test", "kernels.a", GOOD)
    status, output, items, _ = runner.run()
    assert status == 1 and not items
    first = output.splitlines()[0]
    assert "FAILED" in first and problem in first
    assert "NVIDIA H200" in output and "nvcc 13, sm_90" in output


def test_without_a_gpu_a_program_that_does_not_start_fails(runner):
    runner.set_machine(problem="no GPU: none", compare=REFUSES)
    runner.add("test", "kernels.a", GOOD)
    runner.add("test", "kernels.b", "#!/bin/bash\necho 'no such library'\nexit 127\n")
    status, output, items, _ = runner.run("--only", "tests")
    assert status == 1 and items["kernels.b"]["reason"] == "exit status 127", output
    assert items["kernels.a"]["outcome"] == "not run"


@pytest.mark.parametrize(("does", "reason"), [(":", "it does not say why"), ("echo 'no GPU: none'", "it went on")])
def test_without_a_gpu_an_example_that_goes_on_fails(runner, does, reason):
    runner.set_machine(problem="no GPU: none", compare=does)
    status, output, items, _ = runner.run("--only", "example")
    assert status == 1 and reason in items["example.compare"]["reason"], output


def test_the_time_limit_cuts_and_another_call_goes_on(runner):
    runner.add("test", "kernels.a", GOOD)
    runner.add("test", "kernels.b", SLEEPS)
    runner.add("test", "kernels.c", GOOD)
    status, output, items, result = runner.run("--only", "tests", "--jobs", "1", "--time-limit", "2")
    assert status == 3 and result["cut"] == 2, output
    assert [items[f"kernels.{name}"]["outcome"] for name in "abc"] == ["passed", "cut", "cut"]
    # What has passed does not run again: it would fail now.
    runner.put("tests/kernels.a", FAILS)
    runner.put("tests/kernels.b", GOOD)
    status, output, items, _ = runner.run("--only", "tests", "--continue")
    assert status == 0 and {item["outcome"] for item in items.values()} == {"passed"}, output
    # Results of items that are not chosen stay in the file.
    runner.add("table", "bench.a", TABLE)
    status, output, items, _ = runner.run("--only", "benches", "--continue")
    assert status == 0 and set(items) == {"bench.a", *(f"kernels.{name}" for name in "abc")}, output
    status, output, _, _ = runner.run("--only", "tests")
    assert status == 1, "without --continue it begins anew"


# Kills

STEPS = [("test", "kernels.a", GOOD), ("table", "bench.schemes.gpu_sync", TABLE), ("bench", "bench.kernels.a", BENCH % ROWS),
         ("test", "floors.a", GOOD), ("nccl", "engine.nccl", GOOD)]  # fmt: skip


def waits(marker):
    """A program that writes its process id and waits; it answers --gtest_filter=Nccl.two_workers_* at once."""
    return (
        f"#!/bin/bash\ncase $* in *Nccl.two_workers_*) exit 0 ;; esac\necho $$ >{marker}.part; mv {marker}.part {marker}\nexec sleep 60\n"
    )


def start_until(runner, markers, *arguments):
    """The runner's process and those of the programs that wait: all have begun when it returns."""
    runner.write_list()
    command = [
        ROOT / "scripts/gpu-runner", "--root", runner.folder / "root", "--work", runner.folder / "work",
        "--out", runner.folder / "out.json", *arguments,
    ]  # fmt: skip
    environment = {"PATH": f"{runner.folder / 'path'}:/usr/bin:/bin"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not all(marker.exists() for marker in markers):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process, [int(marker.read_text(encoding="utf-8")) for marker in markers]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("after", range(len(STEPS)))
def test_a_kill_after_any_item_leaves_the_results_of_all_before(runner, after):
    """Item number `after` waits, and the runner is killed meanwhile: the items before it are whole, valid JSON."""
    marker = runner.folder / "began"
    for i, (kind, name, text) in enumerate(STEPS):
        runner.add(kind, name, waits(marker) if i == after else text)
    process, pids = start_until(runner, [marker], "--only", "tests", "--only", "benches")
    process.kill()
    process.wait()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    result = json.loads((runner.folder / "out.json").read_text(encoding="utf-8"))
    assert [item["name"] for item in result["items"]] == [name for _, name, _ in STEPS[:after]]
    assert result["passed"] == after and result["pending"] == len(STEPS) - after
    assert result["provenance"]["info"]["commit"] == "0123456789ab"
    # The rest runs with --continue; what has passed does not run again.
    runner.put(f"tests/{STEPS[after][1]}", STEPS[after][2])
    for _, name, _ in STEPS[:after]:
        runner.put(f"tests/{name}", FAILS)
    status, output, items, result = runner.run("--only", "tests", "--only", "benches", "--continue")
    assert status == 0 and len(items) == result["passed"] == len(STEPS) and result["pending"] == 0, output


def test_a_kill_of_parallel_items_loses_only_those_that_run(runner):
    markers = [runner.folder / "b", runner.folder / "d"]
    for name in "abcde":
        runner.add("test", f"kernels.{name}", waits(runner.folder / name) if name in "bd" else GOOD)
    process, pids = start_until(runner, markers, "--only", "tests", "--jobs", "3")
    out = runner.folder / "out.json"
    deadline = time.monotonic() + 30
    while json.loads(out.read_text(encoding="utf-8"))["passed"] < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert [item["name"] for item in result["items"]] == ["kernels.a", "kernels.c", "kernels.e"] and result["pending"] == 2


@pytest.mark.parametrize("kind", ["test", "bench"])
def test_a_signal_ends_the_programs_and_keeps_the_results(runner, kind):
    marker = runner.folder / "began"
    runner.add("bench", "bench.kernels.compact_headline", BENCH % ROWS)
    runner.add(kind, "bench.kernels.b" if kind == "bench" else "kernels.b", waits(marker))
    process, pids = start_until(runner, [marker], "--only", "tests", "--only", "benches")
    process.terminate()
    assert process.wait(timeout=15) == 3
    assert not any(is_alive(pid) for pid in pids)
    result = json.loads((runner.folder / "out.json").read_text(encoding="utf-8"))
    assert [item["name"] for item in result["items"]] == ["bench.kernels.compact_headline"]


def test_an_estimate_raises_the_default_item_limit(runner):
    """An item of 33 s may take 66; others 60."""
    runner.add("test", "kernels.part_0_cuda", GOOD)
    runner.put_tool("timeout", '#!/bin/bash\necho "$*" >>"$(dirname "$0")/limits"\nexec /usr/bin/timeout "$@"\n')
    runner.set_sanitizer("ERROR SUMMARY: 0 errors")
    status, output, _, _ = runner.run("--match", "*kernels.part*")
    assert status == 0, output
    calls = [line.split() for line in (runner.folder / "path/limits").read_text(encoding="utf-8").splitlines()]
    limits = [call[2] for call in calls if call[:2] == ["-k", "10"]]
    assert limits[:2] == ["60", "66"]


def test_parts_of_a_slow_test(runner):
    text = GOOD.replace("[[ $SPAR", '[[ "$GTEST_SHARD_INDEX/$GTEST_TOTAL_SHARDS $*" == "1/4 --gtest_filter=*slow*" ]] || exit 8\n[[ $SPAR')
    runner.add("test", "kernels.a", text, "--gtest_filter=*slow*", "shard=1/4")
    status, output, _, _ = runner.run("--only", "tests")
    assert status == 0, output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "everything"], "no part 'everything'"),
        (["--time-limit", "soon"], "--time-limit 'soon'"),
        (["--match"], "--match needs a value"),
        (["--fast"], "unknown argument '--fast'"),
        (["--match", "nothing.*"], "no item matches 'nothing.*'"),
    ],
)
def test_wrong_arguments(runner, arguments, said):
    runner.add("test", "kernels.a", GOOD)
    status, output, _, _ = runner.run(*arguments)
    assert status == 2 and said in output


# The order


def bundle_list(runner):
    """The items of a bundle, in the order of its gpu-check.list: cmake/SparsesyncTests.cmake and bench/CMakeLists.txt."""
    runner.add("nccl", "engine.nccl_transport_cuda", GOOD)
    runner.add("nccl", "engine.nccl_transport_cuda_slow", GOOD)
    for kind, count in (("kernels.part", 8), ("floors.part", 16), ("floors.slow", 8)):
        for shard in range(count):
            runner.add("test", f"{kind}_{shard}_cuda", GOOD, f"shard={shard}/{count}")
    for name in ("aggregate", "compact_headline", "compact", "index_code", "residual", "rows"):
        runner.add("bench", f"bench.kernels.{name}_cuda", BENCH % ROWS)
    runner.add("table", "bench.schemes.gpu_sync", TABLE)
    runner.add("python", "python.gpu", GOOD)
    runner.set_sanitizer("ERROR SUMMARY: 0 errors")


def test_the_dry_run_prints_the_order_by_value(runner):
    bundle_list(runner)
    status, output, items, _ = runner.run("--dry-run", "--jobs", "8")
    assert status == 0 and not items and not (runner.folder / "work").exists(), output
    names = re.findall(r"^ *\d+ s +\d+ s  (\S+)$", output, re.M)
    assert len(names) == len(set(names)) == len(runner.listed) - 1 + 2 + 4 * 8
    steps = [
        "bench.kernels.compact_headline", "kernels.", "bench.schemes.gpu_sync", "memcheck.", "bench.kernels.", "python.|example.compare$",
        "floors.part", "floors.slow", "racecheck.|synccheck.", ".*nccl", "initcheck.",
    ]  # fmt: skip
    found = [next(i for i, step in enumerate(steps) if re.match(step, name)) for name in names]
    assert found == sorted(found) and set(found) == set(range(len(steps))), names
    assert "about" in output.splitlines()[-1]


@pytest.mark.parametrize("jobs", ["2", "8"])
def test_the_first_two_minutes_have_the_headline_figure_and_all_suites_of_the_kernels(runner, jobs):
    bundle_list(runner)
    _, output, _, _ = runner.run("--dry-run", "--jobs", jobs)
    plan = re.findall(r"^ *(\d+) s +(\d+) s  (\S+)$", output, re.M)
    early = {name for begin, takes, name in plan if int(begin) + int(takes) <= 120}
    assert {"bench.kernels.compact_headline_cuda", "bench.schemes.gpu_sync"} | {f"kernels.part_{i}_cuda" for i in range(8)} <= early


def test_the_dry_run_takes_arguments(runner):
    bundle_list(runner)
    _, output, _, _ = runner.run("--dry-run", "--jobs", "1", "--match", "kernels.part_[01]*", "--time-limit", "24")
    assert output.split()[3:] == "0 s 24 s kernels.part_0_cuda 24 s 24 s kernels.part_1_cuda (after the time limit)".split() + (
        f"gpu-check: about 48 s with 1 tests at a time; compute-sanitizer: {runner.folder}/path/compute-sanitizer".split()
    )


def test_benches_run_alone_and_tests_in_parallel(runner):
    """Each program of parallel items waits for the other; a bench fails if a test runs at the same time."""
    text = GOOD.replace(
        "[[ $SPAR", "touch %s; for i in {1..100}; do [[ -e %s ]] && break; sleep 0.1; done; [[ -e %s ]] || exit 8\n[[ $SPAR"
    )
    a, b, met = (runner.folder / name for name in ("a", "b", "met"))
    runner.add("test", "kernels.a", text % (a, b, b) + f"touch {met}\n")
    runner.add("test", "kernels.b", text % (b, a, a) + f"for i in {{1..100}}; do [[ -e {met} ]] && break; sleep 0.1; done; rm {a} {b}\n")
    runner.add("table", "bench.schemes.gpu_sync", f"#!/bin/bash\n[[ ! -e {a} ]] || exit 7\n" + TABLE)
    status, output, _, _ = runner.run("--only", "tests", "--only", "benches", "--jobs", "2")
    assert status == 0, output


# The summary


def benchmark_json(rows):
    """As Google Benchmark writes it: {name: (nanoseconds, bytes/s or None)}."""
    texts = []
    for name, (time_ns, rate) in rows.items():
        fields = [f'"name": "{name}/iterations:20/manual_time"', '"family_index": 0', f'"run_name": "{name}"',
                  f'"real_time": {time_ns:e}', '"cpu_time": 1.0e+00', '"time_unit": "ns"']  # fmt: skip
        fields += [f'"bytes_per_second": {rate:e}'] if rate else []
        texts.append("    {\n      " + ",\n      ".join(fields) + "\n    }")
    context = '{\n  "context": {\n    "executable": "x",\n    "caches": [\n      {\n        "type": "Data"\n      }\n    ]\n  },\n'
    return context + '  "benchmarks": [\n' + ",\n".join(texts) + "\n  ]\n}"


def test_the_summary_has_each_kernel_beside_the_copy_of_its_executable(runner):
    headline = {
        "copy/threads:1": (4e5, 4e12), "read_reduce": (2e5, 3e12),
        "compact_groups/f32/width:1/per_mille:52": (3e5, 2.4e12), "compact_groups/f32/width:1/per_mille:1": (2.5e5, 3e12),
        "compact_groups/bf16/width:1/per_mille:52": (1.5e5, 2e12),
    }  # fmt: skip
    runner.add("bench", "bench.kernels.compact_headline_cuda", BENCH % benchmark_json(headline))
    rows = {"copy/threads:1": (4e5, 2e12), "gather/width:1": (1e6, 1e11), "gather/width:8": (1e6, 1e12), "cast/f32": (1e3, 1.5e12)}
    runner.add("bench", "bench.kernels.rows_cuda", BENCH % benchmark_json(rows))
    runner.add("bench", "bench.kernels.owners_cuda", BENCH % benchmark_json({"choose/rows:7": (5e6, None), "look/rows:7": (5e6, 1e12)}))
    runner.add("bench", "bench.kernels.sort_cuda", BENCH % WRONG_ROWS)
    runner.add("table", "bench.schemes.gpu_sync", TABLE.replace("5}", '5,\\n"busy_over_copy": 2.125\\n}').replace("echo", "echo -e"))
    runner.add("test", "kernels.a", GOOD)
    runner.add("test", "kernels.b", FAILS)
    runner.add("test", "floors.slow_1", GOOD)
    status, output, _, _ = runner.run()
    assert status == 1
    lines = [" ".join(line.split()) for line in output.splitlines()]
    summary = lines[lines.index("kernel (its slowest row) rows time rate copy read slowest row") :]
    assert summary[1:8] == [
        "copy 1 0.400 ms 4000 GB/s 100% 133% threads:1",
        "read_reduce 1 0.200 ms 3000 GB/s 75% 100%",
        "compact_groups/f32 2 0.300 ms 2400 GB/s 60% 80% width:1/per_mille:52",
        "compact_groups/bf16 1 0.150 ms 2000 GB/s 50% 67% width:1/per_mille:52",
        "gather 2 1.000 ms 100 GB/s 5% ~3% width:1",
        "cast 1 0.001 ms 1500 GB/s 75% ~50% f32",
        "choose 1 5.000 ms - - - rows:7",
    ]
    assert summary[8] == "look 1 5.000 ms 1000 GB/s ~25% ~33% rows:7"
    assert "bench.schemes.gpu_sync: the device is busy 2.12 times as long as a copy of the bytes takes" in summary
    assert "kernels 1 passed, 1 failed; tests: 1 passed, 1 skipped, 1 failed" in summary
    assert "floors (slow) 1 passed; tests: 1 passed, 1 skipped" in summary
    assert "bench 4 passed, 1 failed" in summary and "memcheck 2 not run" in summary
    # Failures last.
    assert summary[-2:] == ["failed: kernels.b (exit status 1)", "failed: bench.kernels.sort_cuda (wrong sums)"]


# Bundles


@pytest.fixture
def bundle(runner):
    """Packs the runner's folder: (exit status, output). With a `python`, whose pip is asked for compute-sanitizer."""

    def run(python=None, **environment):
        runner.write_list()
        arguments = [runner.folder / "root", runner.folder / "bundle"]
        done = subprocess.run(
            [ROOT / "scripts/gpu-bundle", *([] if python else ["--without-sanitizer"]), *arguments],
            env={**os.environ, "SPARSESYNC_PYTHON": str(python), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


def test_a_bundle_runs_by_itself(runner, bundle):
    runner.add("test", "kernels.a", GOOD)
    runner.add("test", "kernels.b", FAILS)
    runner.add("python", "python.a", GOOD)
    shutil.copy("/bin/true", runner.folder / "root/tests/kernels.a.so")
    status, output = bundle()
    assert status == 0 and "left out: python.a" in output, output
    # info.json is this test's own.
    shutil.copy(runner.folder / "root/bin/info.json", runner.folder / "bundle/bin")
    shutil.rmtree(runner.folder / "root")
    done = subprocess.run(
        [runner.folder / "bundle/gpu-check", "--only", "tests"],
        cwd="/", env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "1 passed, 1 failed, 0 not run" in done.stdout, done.stdout
    result = json.loads((runner.folder / "bundle/gpu-check-work/gpu-check.json").read_text(encoding="utf-8"))
    assert [item["name"] for item in result["items"]] == ["kernels.a", "kernels.b"]
    # Again, in its place.
    assert os.access(runner.folder / "bundle/gpu-check", os.X_OK)


def test_a_bundle_brings_compute_sanitizer(runner, bundle):
    """pip's place is taken by a program that makes a wheel with the files of NVIDIA's."""
    runner.add("test", "kernels.a", GOOD)
    parts = ["TreeLauncherSubreaper", "TreeLauncherTargetLdPreloadHelper", "libInterceptorInjectionTarget.so",
             "libTreeLauncherPlaceholder.so", "libTreeLauncherTargetInjection.so",
             "libTreeLauncherTargetUpdatePreloadInjection.so", "libsanitizer-collection.so"]  # fmt: skip
    files = {f"nvidia/cu13/compute-sanitizer/{name}": name for name in [*parts, "libsanitizer-public.so"]}
    files["nvidia/cu13/compute-sanitizer/compute-sanitizer"] = SANITIZER % ("ERROR SUMMARY: 0 errors", 0)
    files["nvidia_cuda_sanitizer_api-1.dist-info/licenses/License.txt"] = "license"
    with zipfile.ZipFile(runner.folder / "a.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    python = runner.folder / "python"
    python.write_text(PIP % (runner.folder / "a.whl", sys.executable), encoding="utf-8")
    python.chmod(0o755)
    status, output = bundle(python)
    assert status == 0 and "2025.3" in output.splitlines(), output
    asked = (runner.folder / "asked").read_text(encoding="utf-8")
    assert "--require-hashes" in asked and "--requirement requirements-bundle.txt" in asked
    assert {path.name for path in (runner.folder / "bundle/sanitizer").iterdir()} == {"compute-sanitizer", "License.txt", *parts}
    runner.set_sanitizer("crashed", 1)
    shutil.copy(runner.folder / "root/bin/info.json", runner.folder / "bundle/bin")
    done = subprocess.run(
        [runner.folder / "bundle/gpu-check", "--only", "sanitizer"],
        cwd="/", env={"PATH": f"{runner.folder / 'path'}:/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "4 passed, 0 failed, 0 not run" in done.stdout, done.stdout
    # A wheel without one of the files.
    with zipfile.ZipFile(runner.folder / "a.whl", "w") as wheel:
        wheel.writestr("nvidia/cu13/compute-sanitizer/compute-sanitizer", "")
    status, output = bundle(python)
    assert status != 0 and "TreeLauncherSubreaper" in output, output


def test_a_bundle_is_not_made_without_compute_sanitizer_by_accident(runner, bundle):
    runner.add("test", "kernels.a", GOOD)
    status, output = bundle(sys.executable, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert status == 1 and "PIP_FIND_LINKS" in output and "--without-sanitizer" in output, output
    status, output = bundle()
    assert status == 0 and "left out: compute-sanitizer" in output, output
    assert not (runner.folder / "bundle/sanitizer").exists()


def test_a_bundle_says_which_glibc_it_needs(runner, bundle):
    """bash needs libtinfo, which goes into lib/."""
    runner.add("test", "kernels.a", GOOD)
    for name in ("kernels.b", "kernels.c"):
        runner.add("test", name, "")
        shutil.copy("/bin/bash", runner.folder / f"root/tests/{name}")
    status, output = bundle()
    assert status == 0, output
    assert re.search(r"^needs glibc 2\.[0-9]+: tests/kernels\.b tests/kernels\.c$", output, re.M), output
    assert "libtinfo.so.6 goes into lib/" in output


def test_a_bundle_that_is_too_large_is_refused(runner, bundle):
    runner.add("test", "kernels.a", GOOD)
    with (runner.folder / "root/tests/kernels.a").open("ab") as file:
        file.truncate(60 * 1024 * 1024 + 1)
    status, output = bundle()
    assert status == 1 and "60 MiB at most" in output


def test_a_folder_that_is_no_bundle_stays(runner, bundle):
    runner.add("test", "kernels.a", GOOD)
    tree(runner.folder / "bundle", {"thesis.txt": "all there is"})
    status, output = bundle()
    assert status == 1 and "not a bundle" in output
    assert (runner.folder / "bundle/thesis.txt").exists()


def test_a_program_that_is_listed_and_not_built_is_an_error(runner, bundle):
    runner.listed.append(("test", "kernels.a", "tests/kernels.a"))
    status, output = bundle()
    assert status != 0 and "kernels.a" in output
