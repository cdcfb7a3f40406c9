"""Tests scripts/gpu-bundle and scripts/gpu-run with a bundle of made-up programs, and with real ones in a build with the emulated GPU."""
# ctest: COST 25

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from trees import ROOT, tree

BUILD = Path(os.environ.get("SPARSESYNC_BUILD_DIR", "/none"))
LIST = BUILD / "gpu_check/CTestTestfile.cmake"
EMULATED = LIST.exists() and LIST.read_text(encoding="utf-8").startswith("# built by emulated")
PROGRAM = """case $1 in
  info) [[ $3 == - ]] && out=/dev/stdout || out=$3; cp "$(dirname "$0")/info.json" "$out" ;;
  trace) mkdir "${@: -2:1}" ;;
  compare) echo '{"schemes": [{"correct": true}]}' >"${@: -1}" ;;
esac
"""
RAN = "echo '[==========] 2 tests from 1 test suite ran. (15 ms total)'\n"
PASSES = "[[ $SPARSESYNC_TEST_DEVICE == cuda && $GTEST_OUTPUT == xml:* ]] || exit 9\n" + RAN
SKIPS = "echo 'SKIPPED: no GPU: none'; exit 77\n"
SANITIZER = '[[ $1 == --version ]] && exit\n[[ $3 == --error-exitcode ]] || exit 9\n%s\necho "= ERROR SUMMARY: %d errors"; exit %d\n'
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]


class Bundle:
    """Programs of a build, and a bundle of them. `self.items` is {name: its line in CTestTestfile.cmake}."""

    def __init__(self, folder):
        self.folder, self.items = folder, {}
        self.put("build/bin/sparsesync", PROGRAM)
        self.set_machine()

    def put(self, name, text):
        tree(self.folder, {name: f"#!/bin/bash\n{text}"})
        (self.folder / name).chmod(0o755)

    def set_machine(self, problem=None, smi="exit 9"):
        info = json.dumps({"nccl": "2.30.1", "cuda": {"problem": problem}}, indent=2)
        tree(self.folder, {"build/bin/info.json": info})
        self.put("path/nvidia-smi", smi + "\n")

    def add(self, kind, name, text, arguments=""):
        self.put(f"build/tests/{name}", text)
        self.items[name] = f'item({kind} "{name}" "tests/{name}" {arguments})\n'

    def call(self, *command):
        environment = {**os.environ, "PATH": f"{self.folder / 'path'}:/usr/bin:/bin"}
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=300, check=False)
        print(done.stdout, done.stderr)
        return done.returncode, done.stdout

    def pack(self):
        text = "# built by a test\n" + (ROOT / "cmake/gpu-check-items.cmake").read_text(encoding="utf-8") + "".join(self.items.values())
        tree(self.folder, {"build/gpu_check/CTestTestfile.cmake": text})
        return self.call(ROOT / "scripts/gpu-bundle", "--without-tools", self.folder / "build", self.folder / "bundle")[0]

    def run(self, *arguments, pack=True):
        """Returns (exit status, the lines of the summary: "WORD: NAME")."""
        if pack:
            assert self.pack() == 0
            tree(self.folder, {"bundle/bin/info.json": (self.folder / "build/bin/info.json").read_text(encoding="utf-8")})
        status, output = self.call(self.folder / "bundle/gpu-check", "--out", self.folder / "results", *arguments)
        return status, {line.strip() for line in output.partition("\ngpu-check: ")[2].splitlines()[1:]}

    def outcomes(self):
        files = (self.folder / "results/junit").iterdir()
        return {case.get("name"): case.get("status") for file in files for case in ET.parse(file).iter("testcase")}


@pytest.fixture
def bundle(tmp_path):
    return Bundle(tmp_path)


def test_items_that_pass_fail_and_hang(bundle):
    bundle.add("test", "kernels.passes", '[[ "$GTEST_SHARD_INDEX/$GTEST_TOTAL_SHARDS $*" == "1/4 " ]] || exit 8\n' + PASSES, "shard=1/4")
    bundle.add("test", "kernels.fails", RAN + "exit 1\n")
    bundle.add("test", "kernels.crashes", RAN + "kill -SEGV $$\n")
    bundle.add("test", "kernels.empty", "echo 0 tests from 0 test suites ran.\n")
    bundle.add("test", "kernels.skips", SKIPS)
    bundle.add("test", "engine.hangs", "sleep 100\n")
    bundle.add("bench", "bench.a", 'out=${@: -2:1}; echo "{}" >"${out#*=}"\n')
    bundle.add("bench", "bench.b", "echo \"ERROR OCCURRED: 'wrong sums'\"\n")
    bundle.add("python", "python.left_out", PASSES)
    status, said = bundle.run("--item-limit", "3", "-LE", "sanitizer", "-E", "nccl")
    bad = ["kernels.fails", "kernels.crashes", "kernels.empty", "kernels.skips", "engine.hangs", "bench.b"]
    good = ["kernels.passes", "bench.a", "example.compare_trace", "example.compare", "example.compare_clean"]
    assert status == 1 and said == {f"failed: {name}" for name in bad}
    assert bundle.outcomes() == {**dict.fromkeys(bad, "fail"), **dict.fromkeys(good, "run")}
    assert {path.name for path in (bundle.folder / "results/benches").iterdir()} == {"bench.a.json", "example.compare.json"}
    assert "built by a test" in (bundle.folder / "results/machine.txt").read_text(encoding="utf-8")


def test_the_time_limit_names_the_items_that_did_not_run(bundle):
    for name, text in (("kernels.a", PASSES), ("engine.b", "sleep 100\n"), ("engine.slow_c", PASSES)):
        bundle.add("test", name, text)
    assert bundle.run("--time-limit", "10", "-R", "^(kernels|engine)") == (3, {"not run: engine.b", "not run: engine.slow_c"})
    # A second call continues the first one: a passed item does not run again, although it would fail now.
    bundle.put("bundle/tests/engine.b", PASSES)
    bundle.put("bundle/tests/kernels.a", "exit 1\n")
    assert bundle.run("--continue", "-R", "^(kernels|engine)", pack=False) == (0, set())


def test_without_a_gpu_every_item_is_started_and_named(bundle):
    bundle.set_machine(problem="no GPU: none")
    bundle.add("test", "kernels.a", SKIPS)
    bundle.add("nccl", "engine.nccl_transport_cuda", SKIPS)
    names = ["kernels.a", "engine.nccl_transport_cuda", *(f"{tool}.kernels.a" for tool in TOOLS)]
    assert bundle.run("-E", "example") == (0, {f"skipped: {name}" for name in names})
    bundle.add("test", "engine.b", "echo no such library; exit 127\n")
    assert bundle.run("-R", "^engine.b") == (1, {"failed: engine.b"})
    bundle.set_machine(problem="no GPU: old driver", smi="echo NVIDIA H200")
    assert bundle.run()[0] == 1, "an unusable GPU is a failure"


@pytest.mark.parametrize(("runs", "errors", "status"), [(RAN, 0, 0), (RAN, 3, 86), (RAN, 3, 0), ("", 0, 0), (RAN, 0, 1)])
def test_the_sanitizer(bundle, runs, errors, status):
    bundle.add("test", "kernels.a", PASSES)
    bundle.put("path/compute-sanitizer", SANITIZER % (runs, errors, status))
    good = (0, set()) if runs and not errors and not status else (1, {"failed: memcheck.kernels.a"})
    assert bundle.run("--sanitizer", "memcheck") == good


def test_the_tools_of_a_bundle_come_first(bundle):
    bundle.add("test", "kernels.a", PASSES)
    bundle.put("path/compute-sanitizer", SANITIZER % (RAN, 3, 1))
    bundle.put("tools/compute-sanitizer", SANITIZER % ('"${@:5}"', 0, 0))
    assert bundle.pack() == 0
    shutil.copy(bundle.folder / "build/bin/info.json", bundle.folder / "bundle/bin")
    bundle.call("/bin/tar", "-C", bundle.folder / "tools", "-czf", bundle.folder / "bundle/tools.tar.gz", ".")
    assert bundle.run("-L", "sanitizer", pack=False) == (0, set()) and len(bundle.outcomes()) == 4


def test_the_most_valuable_come_first(bundle):
    names = "bench.kernels.compact_headline kernels.a bench.schemes.gpu_sync bench.kernels.rows floors.part_0 floors.slow_0".split()
    for name in reversed(names):
        bundle.add("bench" if "bench" in name else "test", name, PASSES)
    assert bundle.pack() == 0
    found = bundle.call(bundle.folder / "bundle/gpu-check", "-N", "-LE", "example")[1].splitlines()
    assert found == [*names[:3], "memcheck.kernels.a", *names[3:], *(f"{tool}.kernels.a" for tool in TOOLS[1:])]


@pytest.mark.parametrize("arguments", [("--time-limit", "soon"), ("--out",), ("--sanitizer", "nocheck"), ("-R", "nothing")])
def test_wrong_arguments(bundle, arguments):
    assert bundle.run(*arguments) == (2, set())


def test_nccl_that_does_not_share_a_gpu(bundle):
    bundle.add("nccl", "engine.nccl_transport_cuda", "case $* in *=Nccl.two_*) exit 1 ;; esac\n" + PASSES)
    assert bundle.run("-R", "^engine") == (0, {"skipped: engine.nccl_transport_cuda"})
    assert bundle.outcomes()["engine.nccl_alone_cuda"] == "run"


def test_a_bundle_refuses_large_programs_and_other_folders(bundle):
    bundle.add("test", "kernels.a", PASSES)
    os.truncate(bundle.folder / "build/tests/kernels.a", 64 * 1024 * 1024 + 1)
    assert bundle.pack() == 1
    shutil.rmtree(bundle.folder / "bundle")
    tree(bundle.folder, {"bundle/thesis.txt": ""})
    assert bundle.pack() == 1 and (bundle.folder / "bundle/thesis.txt").exists()


@pytest.mark.skipif(not EMULATED, reason="this build has no emulated GPU")
def test_real_programs_on_the_emulated_gpu(bundle):
    bundle.add("test", "kernels.cast", "")
    shutil.copy(BUILD / "tests/kernels/kernels_cast_test", bundle.folder / "build/tests/kernels.cast")
    assert bundle.run("-R", "^kernels") == (0, set())
    assert ET.parse(bundle.folder / "results/tests/kernels.cast.xml").getroot().get("tests") != "0"
