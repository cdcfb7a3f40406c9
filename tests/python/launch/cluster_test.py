"""Runs the programs of bench/cluster briefly with two workers: results are correct, and nothing is left behind."""
# ctest: PROCESSORS 2 SLOW ALL

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "bench" / "cluster"
PROGRAM = pathlib.Path(os.environ.get("SPARSESYNC_PROGRAM", ROOT / "build/release/bin/sparsesync"))
BUILD = PROGRAM.parents[1]

torch = pytest.importorskip("torch")
if not list((BUILD / "python/sparsesync").glob("_native.*.so")):
    pytest.skip(f"there is no Python package in {BUILD}", allow_module_level=True)
sys.path[:0] = [str(BUILD / "python"), str(CLUSTER)]

import exchange  # noqa: E402
from hosts import NAME, Hosts  # noqa: E402
from variants import DENSE_PEER, SPARSE_PEER, VARIANTS  # noqa: E402

HEADERS = 1.4  # tiny messages with headers and acknowledgements, relative to their content


def namespaces_left():
    """Returns the namespaces of benchmarks that are over."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    ours = filter(None, (NAME.fullmatch(line.split()[0]) for line in listed.splitlines()))
    return [match[0] for match in ours if not pathlib.Path("/proc", match[1]).exists()]


@pytest.fixture(scope="module")
def hosts_permitted():
    """Skips the tests if hosts cannot be created."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        with Hosts(1) as hosts:
            hosts.shape(1e9)
    except FileNotFoundError as error:
        pytest.skip(f"hosts need {error.filename}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {' '.join(error.cmd)}: {error.stderr.strip()}")


@pytest.fixture
def bench(hosts_permitted, tmp_path):
    """Returns a function that runs a program of bench/cluster. It returns the JSON and checks that the network namespaces are gone."""

    def run(program, *words):
        done = subprocess.run(
            [sys.executable, CLUSTER / program, *map(str, words), "--build", BUILD, "--out", tmp_path / "result.json"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert not namespaces_left()
        return done

    return run


@pytest.fixture
def trace(tmp_path):
    def made(workers):
        path = tmp_path / f"of_{workers}"
        words = f"--rows 4000 --width 16 --density 0.02 --zipf 1 --workers {workers} --steps 1 --seed 1 --out {path}"
        subprocess.run([PROGRAM, "trace", "synthetic", *words.split()], check=True, capture_output=True, timeout=60)
        return path

    return made


def test_every_variant_is_measured_and_right(bench, trace, tmp_path):
    done = bench("peers.py", "--trace", trace(2), "--hosts", 2, "--rounds", 1, "--repeat", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert report["workers"] == 2
    assert report["provenance"]["torch"] == torch.__version__
    (of_trace,) = report["traces"].values()
    figures = of_trace["variants"]
    assert list(figures) == [each.key for each in VARIANTS]
    for each in VARIANTS:
        of_variant = figures[each.key]
        assert of_variant["correct"]
        assert 0 < of_variant["seconds_min"] <= of_variant["seconds_median"]
        assert each.label in done.stdout
        link = of_variant["link"]["bytes_busiest"]
        if each.is_ours:
            # The bytes that schemes count are those that the link passed, except for headers.
            assert of_variant["bytes_busiest"] < link < HEADERS * of_variant["bytes_busiest"] + 4000, each
            assert of_variant["schemes"] == [each.scheme] or each.scheme == "auto"
        if each.is_dense:
            assert link > 4000 * 16 * 4
    assert figures[SPARSE_PEER]["times_torch-sparse"] == figures[DENSE_PEER]["times_torch-dense"] == 1
    # After an index prefetch only values are sent.
    announced = figures["mpi-owned-announced"]
    assert announced["announced"]["bytes_busiest"] + announced["bytes_busiest"] > of_trace["lower_bound_bytes"]
    assert announced["bytes_busiest"] < figures["mpi-balanced"]["bytes_busiest"]
    assert figures["mpi-balanced-bf16"]["bytes_busiest"] < 0.6 * figures["mpi-balanced"]["bytes_busiest"]
    drawn = xml.etree.ElementTree.parse(tmp_path / "result.svg").getroot()
    said = {element.text for element in drawn.iter() if element.tag.endswith("text")}
    assert {each.label for each in VARIANTS} <= said


def test_transports_of_one_machine_are_measured_and_right(tmp_path):
    words = [*"--workers 2 --rounds 1 --repeat 2 --most-bytes 10000 --build".split(), BUILD, "--out", tmp_path / "result.json"]
    done = subprocess.run(
        [sys.executable, CLUSTER / "one_machine.py", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    of_two = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["workers"]["2"]
    assert list(of_two) == ["all-reduce of 64 B", "all-gather of 64 B", "sparse, 1 KiB in 100,000 rows"]
    for case, figures in of_two.items():
        assert figures["torch, Gloo"]["times_torch"] == 1
        assert {name.split(", ")[-1] for name in figures} == {"Gloo", "gloo", "ucx", "mpi", "local"}, case
        for name, each in figures.items():
            assert each["seconds"] > 0 and each["processor_seconds"] > 0 and f"  {name}" in done.stdout


def test_a_trace_of_other_workers_is_refused(bench, trace, tmp_path):
    done = bench("peers.py", "--trace", trace(3), "--hosts", 2, "--rounds", 1)
    assert done.returncode == 1
    assert done.stderr.startswith("peers: ") and "3 workers" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "result.json").exists()


def test_a_rank_that_fails_ends_all_under_torchrun(hosts_permitted, tmp_path):
    program = tmp_path / "program.py"
    fails = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('so it is')\ntime.sleep(1000)\n"
    program.write_text(fails, encoding="utf-8")
    with Hosts(2) as hosts, pytest.raises(RuntimeError, match="(?s)torchrun of host 1 ended with status 1.*so it is"):
        hosts.torchrun(program, timeout=100)


def test_a_rank_that_hangs_ends_all_under_torchrun(hosts_permitted, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import time\ntime.sleep(1000)\n", encoding="utf-8")
    with Hosts(1) as hosts, pytest.raises(RuntimeError, match="torchrun of host 0 did not end in time"):
        hosts.torchrun(program, timeout=1)


def test_a_wrong_result_is_found():
    rows, values = torch.tensor([2, 5, 7]), torch.arange(1.0, 7.0).view(3, 2)
    whole = torch.zeros(9, 2)
    whole[rows] = values
    exchange.check((rows.clone(), values.clone()), (rows, values))
    exchange.check(whole, (rows, values))

    off = values.clone()
    off[1, 1] += 1
    missing = whole.clone()
    missing[5] = 0
    besides = whole.clone()
    besides[8, 1] = 0.5
    for result, said in (
        ((rows, off), "1 values differ from the sums"),
        ((rows[:2], values[:2]), "got 2 rows, expected the 3 touched rows"),
        ((torch.tensor([2, 5, 8]), values), "got 3 rows, expected the 3 touched rows"),
        (missing, "2 values differ from the sums"),
        (besides, "1 values of untouched rows are not 0"),
    ):
        with pytest.raises(ValueError, match=said):
            exchange.check(result, (rows, values))


def test_a_sum_is_that_of_all_parts():
    def part(*rows):
        indices = torch.tensor(rows)
        return indices.numpy(), torch.stack([indices + 1.0, indices + 2.0], dim=1).numpy()

    rows, values = exchange.summed([part(3, 1), part(), part(3, 9)])
    assert rows.tolist() == [1, 3, 9]
    assert values.tolist() == [[2, 3], [8, 10], [10, 11]]


def test_a_training_beside_torchs(bench, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "some.py").write_bytes(pathlib.Path(subprocess.__file__).read_bytes())
    done = bench(
        "training.py", "--hosts", 2, "--rounds", 1, "--steps", 9, "--text", text,
        "--runs", "mpi", "ucx", "torch-sparse", "lightning", "alone", "--gloo-threads", 1,
        "--vocabulary", 300, "--embedding", 8, "--hidden", 8, "--batch", 2, "--length", 5, "--sampled", 20,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    runs = report["runs"]
    assert list(runs) == ["mpi", "ucx", "torch-sparse", "lightning", "alone"]
    assert not report["wrong"]
    for run in ("mpi", "ucx", "torch-sparse", "lightning"):
        assert runs[run]["weights_equal"]
        assert len(runs[run]["losses"]) == 9
    assert runs["mpi"]["losses_off_torch-sparse"] < 1e-5
    assert runs["alone"]["losses"] != runs["mpi"]["losses"]
    assert runs["lightning"]["losses_off_ucx"] < 1e-5
    assert runs["lightning"]["times_ucx"] == runs["lightning"]["steps_per_second"] / runs["ucx"]["steps_per_second"]
    assert report["model"]["parameters_bytes"] == 4 * report["model"]["parameters"]
