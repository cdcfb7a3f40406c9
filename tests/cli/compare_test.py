"""Tests `sparsesync compare` and `info`: output, byte counts, results against NumPy, and errors in one line."""
# ctest: SLOW progress_bar of_64_workers every_dtype

import json
import os
import pty
import struct
import subprocess

import pytest

numpy = pytest.importorskip("numpy")

from compare_support import (  # noqa: E402 - it imports numpy
    AUTO,
    HEADER_BYTES,
    NUMPY_TYPES,
    OVER_MPI_ALONE,
    SCHEMES,
    WITHOUT_SERVERS,
    compare,
    read_safetensors,
    real_trace,
    write_trace,
)


@pytest.fixture
def trace(run, tmp_path):
    """Makes a small trace of three workers."""
    made = run(
        *"trace synthetic --rows 2000 --width 8 --density 0.05 --zipf 1 --workers 3 --steps 2 --out T".split()
    )
    assert made.returncode == 0, made
    return tmp_path / "T"


# Output


def test_json_has_every_key_of_the_contract(run, trace):
    report, schemes = compare(run, trace, "--rate", "1gbit", "--latency", "50us")
    assert list(schemes) == [*SCHEMES, AUTO]
    assert report["tensors"] == [{"name": "embedding", "rows": 2000, "width": 8, "dtype": "f32"}]
    assert (report["workers"], report["steps"], report["repeat"]) == (3, 2, 1)
    assert (report["transport"], report["clock"]) == ("local", "real")
    assert report["network"] == {"rate_bps": 1e9, "latency_s": 5e-05}
    assert report["partitioned_ideal_bytes"] > report["lower_bound_bytes"] > 0
    assert {"commit", "compiler", "cpu", "seed", "date"} <= set(report["provenance"])
    for name, scheme in schemes.items():
        assert scheme["correct"] is True
        assert scheme["bytes_busiest"] == max(scheme["bytes_sent_max"], scheme["bytes_received_max"])
        assert scheme["bytes_total"] == pytest.approx(
            scheme["bytes_index"] + scheme["bytes_values"] + HEADER_BYTES * scheme["messages"]
        )
        assert 0 < scheme["seconds_min"] <= scheme["seconds_median"]
        assert scheme["seconds_predicted"] > 0
        assert scheme["memory_bytes"] > 0
        assert set(scheme["tensors"][0]) == {"index_code", "row_groups", "column_slices"}
        assert (scheme["push_imbalance"] is None) == ((scheme["chosen"] or name).split(" ")[0] in WITHOUT_SERVERS)
    grid = schemes["balanced"]["tensors"][0]
    assert grid["row_groups"] * grid["column_slices"] == 3


def test_an_unshaped_link_has_no_rate_and_no_prediction(run, trace):
    report, schemes = compare(run, trace)
    assert report["network"] == {"rate_bps": None, "latency_s": 0}
    assert all(scheme["seconds_predicted"] is None for scheme in schemes.values())


def test_the_virtual_clock(run, tmp_path):
    """Records a run and replays it on simulated links, without real waiting."""
    trace = "trace synthetic --rows 20000 --width 8 --density 0.01 --zipf 1 --workers 8 --steps 2 --out T"
    assert run(*trace.split()).returncode == 0
    link = ("--rate", "200mbit", "--latency", "50us")
    report, schemes = compare(run, "T", "--clock", "virtual", *link, repeat=2)
    assert (report["transport"], report["clock"]) == ("local", "virtual")
    assert report["network"] == {"rate_bps": 200e6, "latency_s": 5e-05}
    _, real = compare(run, "T", *link)
    for name, scheme in schemes.items():
        assert scheme["correct"]
        assert scheme["seconds_median"] >= scheme["seconds_min"] >= scheme["bytes_busiest"] * 8 / 200e6
        assert scheme["seconds_predicted"] > 0
        for key in ("bytes_sent_max", "bytes_received_max", "bytes_total", "bytes_index", "messages"):
            assert scheme[key] == real[name][key], (name, key)
    # A link that would take minutes causes no wait.
    _, slow = compare(run, "T", "--clock", "virtual", "--rate", "100kbit", schemes="dense_ring")
    assert slow["dense_ring"]["seconds_median"] >= slow["dense_ring"]["bytes_busiest"] * 8 / 1e5 > 60
    table = run("compare", "T", "--clock", "virtual", *link, "--repeat", 1, "--schemes", "balanced").stdout
    assert "virtual clock" in table


def test_the_virtual_clock_of_one_and_of_64_workers(run, tmp_path):
    for workers in (1, 64):
        trace = f"trace synthetic --rows 3000 --width 8 --density 0.01 --zipf 1 --workers {workers} --steps 1 --out T{workers}"
        assert run(*trace.split()).returncode == 0
        _, schemes = compare(run, f"T{workers}", "--clock", "virtual", "--rate", "1gbit")
        for scheme in schemes.values():
            assert scheme["correct"]
            assert 10 > scheme["seconds_min"] >= scheme["bytes_busiest"] * 8 / 1e9
            assert scheme["seconds_min"] > 0


def test_schemes_that_local_lacks_are_skipped_by_name(run, trace):
    _, schemes = compare(run, trace, schemes="dense_native,balanced")
    assert "over mpi" in schemes["dense_native"]["skipped"] and schemes["balanced"]["correct"]


def test_the_table_is_sorted_and_marks_the_winner(run, trace):
    result = run("compare", trace, "--repeat", 1, "--rate", "20mbit")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith("memory needed")
    names = [*SCHEMES, AUTO + ":"]
    rows = [line for line in result.stdout.splitlines() if line[3:].split(" ")[0] in names]
    assert len(rows) == len(names) and rows[0].startswith("*") and not any(row.startswith("*") for row in rows[1:])
    assert all(row.rstrip().endswith("yes") for row in rows)
    assert len({row.rindex("yes") for row in rows}) == 1, "the columns line up"


def test_one_worker_moves_nothing(run, tmp_path):
    run(*"trace synthetic --rows 100 --width 4 --density 0.1 --zipf 0 --workers 1 --out T".split())
    report, schemes = compare(run, tmp_path / "T")
    assert report["partitioned_ideal_bytes"] == report["lower_bound_bytes"] == 0
    assert all(s["bytes_total"] == 0 and s["messages"] == 0 and s["correct"] for s in schemes.values())


# Results against NumPy


def test_numpy_agrees_with_the_results_of_every_worker(run, tmp_path):
    random = numpy.random.default_rng(11)
    tensors = [
        {"name": "a", "rows": 300, "width": 5, "dtype": "f32"},
        {"name": "b", "rows": 40, "width": 2, "dtype": "f32"},
    ]
    workers, steps = 5, 2
    given = {}

    def part(worker, step, tensor):
        nnz = 0 if (worker, step) == (3, 1) else int(random.integers(1, 80))
        indices = random.integers(0, tensor["rows"], nnz)  # any order, with duplicates
        values = random.standard_normal((nnz, tensor["width"])).astype(numpy.float32)
        given[worker, step, tensor["name"]] = indices, values
        return indices, values

    trace = write_trace(tmp_path / "recorded", tensors, workers, steps, part)
    _, schemes = compare(run, trace, "--result", "R")
    assert all(scheme["correct"] for scheme in schemes.values())
    for step in range(steps):
        for tensor in tensors:
            dense = numpy.zeros((tensor["rows"], tensor["width"]), numpy.float64)
            magnitude = numpy.zeros_like(dense)
            terms = numpy.zeros(tensor["rows"])
            for worker in range(workers):
                indices, values = given[worker, step, tensor["name"]]
                numpy.add.at(dense, indices, values.astype(numpy.float64))
                numpy.add.at(magnitude, indices, numpy.abs(values.astype(numpy.float64)))
                numpy.add.at(terms, indices, 1)
            for scheme in SCHEMES:
                files = [
                    (tmp_path / "R" / scheme / f"w{worker:04}.s{step:04}.safetensors") for worker in range(workers)
                ]
                assert len({file.read_bytes() for file in files}) == 1, "the same bits on all workers"
                result = read_safetensors(files[0])
                indices = result[tensor["name"] + ".indices"]
                assert (numpy.diff(indices) > 0).all()
                ended = numpy.zeros_like(dense)
                ended[indices] = result[tensor["name"] + ".values"]
                bound = (terms[:, None] + 2) * 2.0**-24 * magnitude
                assert (numpy.abs(ended - dense) <= bound).all(), scheme


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_every_dtype_from_file_to_file(run, tmp_path, dtype):
    """Small whole numbers have the same sums in every dtype; integers also wrap around."""
    random = numpy.random.default_rng(3)
    tensors = [{"name": "t", "rows": 60, "width": 3, "dtype": dtype}]
    kind = NUMPY_TYPES[dtype]
    expected = numpy.zeros((60, 3), kind)

    def part(worker, step, tensor):
        indices = random.integers(0, 60, 25)
        values = random.integers(-9, 10, (25, 3)).astype(kind)
        if numpy.issubdtype(kind, numpy.integer):
            values[:5] = numpy.iinfo(kind).max
        numpy.add.at(expected, indices, values)
        return indices, values

    trace = write_trace(tmp_path / "T", tensors, 3, 1, part)
    report, schemes = compare(run, trace, "--result", "R")
    assert report["tensors"] == tensors
    for name in SCHEMES:
        assert schemes[name]["correct"], name
        result = read_safetensors(tmp_path / "R" / name / "w0001.s0000.safetensors")
        ended = numpy.zeros_like(expected)
        ended[result["t.indices"]] = result["t.values"]
        assert result["t.values"].dtype == kind
        assert (ended == expected).all(), name


@pytest.mark.parametrize("dtype", [*NUMPY_TYPES, "bf16"])
def test_every_dtype_with_generated_values(run, tmp_path, dtype):
    arguments = "trace synthetic --rows 500 --width 3 --density 0.1 --zipf 1 --workers 4 --steps 1 --seed 2 --out T"
    assert run(*arguments.split(), "--dtype", dtype).returncode == 0
    report, schemes = compare(run, tmp_path / "T")
    assert report["tensors"][0]["dtype"] == dtype
    assert all(scheme["correct"] for scheme in schemes.values())


def test_generated_values_are_those_of_the_format(run, trace, tmp_path):
    """Values are integers from 1 to 4 for each distinct row of a worker. A sum is therefore between one and four times the number of
    workers that touched the row.
    """
    _, schemes = compare(run, trace, "--result", "R", schemes="balanced")
    assert schemes["balanced"]["correct"]
    touchers = numpy.zeros(2000)
    for worker in range(3):
        rows = read_safetensors_indices(trace / f"w{worker:04}.s0000.safetensors")
        touchers[rows] += 1
    result = read_safetensors(tmp_path / "R" / "balanced" / "w0002.s0000.safetensors")
    rows, values = result["embedding.indices"], result["embedding.values"]
    assert (rows == numpy.flatnonzero(touchers)).all()
    assert (values >= touchers[rows, None]).all() and (values <= 4 * touchers[rows, None]).all()
    assert (values == numpy.round(values)).all()


def read_safetensors_indices(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    (entry,) = json.loads(data[8 : 8 + length]).values()
    begin, end = entry["data_offsets"]
    kind = {"I32": "<i4", "I64": "<i8"}[entry["dtype"]]
    return numpy.frombuffer(data[8 + length + begin : 8 + length + end], kind)


# Byte counts


def test_26_tensors_are_sent_as_one(run, real_data):
    one_report, one = compare(run, real_trace(run, real_data, "criteo", 16, 8), schemes="balanced,all_gather")
    _, split = compare(run, real_trace(run, real_data, "criteo", 16, 8, "--split"), schemes="balanced,all_gather")
    assert len(one_report["tensors"]) == 1 and len(split["balanced"]["tensors"]) == 26
    for name in ("balanced", "all_gather"):
        assert split[name]["messages"] == one[name]["messages"]
        assert split[name]["bytes_busiest"] == pytest.approx(one[name]["bytes_busiest"], rel=0.02)
        assert split[name]["correct"]


def test_three_widths_are_sent_in_one_message_per_peer_and_phase(run, tmp_path):
    tensors = [{"name": f"t{width}", "rows": 500, "width": width, "dtype": "f32"} for width in (4, 32, 100)]
    trace = write_trace(
        tmp_path / "widths", tensors, 4, 1, lambda worker, step, tensor: ([worker, 7, 400 - worker], None)
    )
    _, schemes = compare(run, trace)
    assert schemes["balanced"]["messages"] == 4 * 3 * 2
    assert schemes["dense_ring"]["messages"] == 4 * 3 * 2
    assert schemes["all_gather"]["messages"] == 4 * 3
    assert all(scheme["correct"] for scheme in schemes.values())


@pytest.mark.parametrize("between", ["balanced", "all_gather", "block_ps"])
@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
def test_two_level_sends_the_bytes_of_rings_and_of_the_scheme_between_nodes(run, tmp_path, between, per_node):
    """All six workers touch one row. Dense tensors go around rings in the nodes, and that row goes between nodes."""
    rows, width, workers = 1200, 8, 6
    tensors = [{"name": "t", "rows": rows, "width": width, "dtype": "f32"}]
    trace = write_trace(tmp_path / "T", tensors, workers, 1, lambda worker, step, tensor: ([7], None))
    options = ("--workers-per-node", per_node, "--between-nodes", between, "--rate", "10gbit")
    _, schemes = compare(run, trace, *options, schemes="two_level," + between)
    two_level = schemes["two_level"]
    assert two_level["correct"] and two_level["seconds_predicted"] > 0
    if per_node == 1:
        assert two_level["bytes_total"] == schemes[between]["bytes_total"]
        return
    nodes = workers // per_node
    ring = 2 * (per_node - 1) * rows * width * 4 * nodes
    assert ring <= two_level["bytes_values"] <= ring + 2 * nodes * (nodes - 1) * 256 * 4
    steps = 1 if between == "all_gather" else 2
    assert two_level["messages"] == workers * (2 * (per_node - 1) + steps * (nodes - 1))


# Bad input

ONE_TENSOR = [{"name": "t", "rows": 50, "width": 4, "dtype": "f32"}]


def good_part(worker, step, tensor):
    return [1, 2, 3 + worker], None


def broken_trace(tmp_path, part=good_part, header=None):
    """Makes a trace of two workers and one step; `header` overrides fields of its header."""
    folder = write_trace(tmp_path / "B", ONE_TENSOR, 2, 1, part)
    text = json.loads((folder / "trace.json").read_text())
    text.update(header or {})
    (folder / "trace.json").write_text(json.dumps(text))
    return "B"


@pytest.mark.parametrize(
    "header, parts",
    [
        ({"workers": -1}, ["workers", "-1"]),
        ({"workers": 0}, ["workers"]),
        ({"workers": 3}, ["w0002.s0000.safetensors"]),
        ({"steps": 2}, ["s0001.safetensors"]),
        ({"steps": 0}, ["steps"]),
        ({"format": 2}, ["format"]),
        ({"tensors": []}, ["tensor"]),
        ({"tensors": [{**ONE_TENSOR[0], "width": 0}]}, ["width"]),
        ({"tensors": [{**ONE_TENSOR[0], "rows": -5}]}, ["rows"]),
        ({"tensors": [{**ONE_TENSOR[0], "rows": 2**62, "width": 2**20}]}, ["t"]),
        ({"tensors": [{**ONE_TENSOR[0], "dtype": "f33"}]}, ["f33", "bf16"]),
        ({"tensors": [{**ONE_TENSOR[0], "name": "other"}]}, ["other"]),
        ({"tensors": ONE_TENSOR * 2}, ["t"]),
    ],
)
def test_a_wrong_header(refused, tmp_path, header, parts):
    trace = broken_trace(tmp_path, header=header)
    refused("compare", trace, parts=parts)


@pytest.mark.parametrize("index, parts", [(50, ["50"]), (-1, ["-1"]), (2**40, [str(2**40)])])
def test_an_index_outside_its_tensor(refused, tmp_path, index, parts):
    trace = broken_trace(tmp_path, part=lambda worker, step, tensor: ([1, index] if worker else [0], None))
    refused("compare", trace, parts=["w0001.s0000.safetensors", "'t", *parts])


@pytest.mark.parametrize("keep", [0, 4, 8, 30, -1])
def test_a_truncated_file(refused, tmp_path, keep):
    trace = broken_trace(tmp_path)
    file = tmp_path / "B" / "w0001.s0000.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused("compare", trace, parts=["w0001.s0000.safetensors"])


def test_values_of_another_shape(refused, tmp_path):
    trace = broken_trace(
        tmp_path, part=lambda worker, step, tensor: ([1, 2], numpy.ones((2, 4 + worker), numpy.float32))
    )
    refused("compare", trace, parts=["w0001.s0000.safetensors"])


def test_no_trace_at_all(refused, tmp_path):
    refused("compare", "nowhere", parts=["nowhere"])
    (tmp_path / "empty").mkdir()
    refused("compare", "empty", parts=["trace.json"])
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "trace.json").write_text("not json")
    refused("compare", "text", parts=["trace.json"])


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--rate", "5parsecs"], ["--rate", "5parsecs", "mbit"]),
        (["--rate", "-1mbit"], ["--rate"]),
        (["--rate", "0"], ["--rate"]),
        (["--latency", "soon"], ["--latency", "soon"]),
        (["--schemes", "telepathy"], ["telepathy", *SCHEMES, *OVER_MPI_ALONE, AUTO]),
        (["--schemes", "balanced,,all_gather"], ["--schemes"]),
        (["--schemes", ""], ["--schemes"]),
        (["--transport", "carrier_pigeon"], ["carrier_pigeon", "local"]),
        (["--clock", "sundial"], ["sundial", "real", "virtual"]),
        (["--clock", "virtual", "--transport", "mpi"], ["--clock virtual", "--transport mpi", "--clock real"]),
        (["--repeat", "0"], ["--repeat"]),
        (["--repeat", "many"], ["--repeat", "many"]),
        (["--memory", "lots"], ["--memory", "lots"]),
        (["--deadline", "-1"], ["--deadline"]),
        (["--frobnicate"], ["--frobnicate", "--help"]),
        (["--json", "/nowhere/at/all.json"], ["/nowhere/at/all.json"]),
        (["another", "trace"], ["another"]),
        (["--block", "0"], ["--block"]),
        (["--workers-per-node", "0"], ["--workers-per-node"]),
        (["--workers-per-node", "2"], ["two_level", "2 workers per node", "3 workers"]),
        (["--between-nodes", "telepathy"], ["two_level", "telepathy", *SCHEMES[:-1]]),
        (["--between-nodes", "two_level", "--schemes", "two_level"], ["between nodes", *SCHEMES[:-1]]),
    ],
)
def test_wrong_use(refused, trace, options, parts):
    refused("compare", "T", *options, parts=parts)


def test_result_that_exists(refused, run, trace, tmp_path):
    (tmp_path / "R").mkdir()
    (tmp_path / "R" / "mine").write_text("dear")
    result = run("compare", "T", "--result", "R", "--repeat", 1)
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result
    result = run("compare", "T", "--result", "R", "--repeat", 1, "--force")
    assert result.returncode == 2, "only result folders are replaced"
    assert (tmp_path / "R" / "mine").read_text() == "dear"
    (tmp_path / "R" / "mine").unlink()
    for _ in range(2):  # an empty folder, then the previous result
        result = run("compare", "T", "--result", "R", "--repeat", 1, "--force")
        assert result.returncode == 0, result.stderr
    for name in ("notes.txt", "balanced/notes.txt"):
        (tmp_path / "R" / name).write_text("dear")
        result = run("compare", "T", "--result", "R", "--repeat", 1, "--force")
        assert result.returncode == 2 and f"has '{name}', which this command did not write" in result.stderr
        assert (tmp_path / "R" / name).read_text() == "dear"
        (tmp_path / "R" / name).unlink()


def test_a_full_disk(run, trace, tmp_path):
    """--result on a full file system: one line, status 1, and no files left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a file system of 16 KiB cannot be mounted here")
    try:
        result = run("compare", "T", "--result", "disk/R", "--repeat", 1)
        assert result.returncode == 1, result
        assert result.stderr.startswith("sparsesync: ") and result.stderr.count("\n") == 1, result.stderr
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_budget_skips_what_does_not_fit(run, trace):
    _, schemes = compare(run, trace, "--memory", "40KiB")
    assert set(schemes["dense_ring"]) == {"name", "skipped"}
    assert "--memory" in schemes["dense_ring"]["skipped"]


# Conventions


@pytest.mark.parametrize("command", [["compare"], ["info"]])
def test_help_has_an_example(run, command):
    result = run(*command, "--help")
    assert result.returncode == 0 and "Example" in result.stdout and f"sparsesync {command[0]}" in result.stdout


def test_info_reports_the_build(run):
    result = run("info", "--json", "-")
    assert result.returncode == 0
    info = json.loads(result.stdout)
    assert [scheme["name"] for scheme in info["schemes"]] == sorted(SCHEMES + OVER_MPI_ALONE)
    with_ucx = [] if info["ucx"].startswith("(") else ["ucx"]
    assert info["transports"] == ["local", "mpi"] + with_ucx + (["nccl"] if info["cuda"]["compiled_in"] else [])
    table = run("info", "--schemes").stdout
    for scheme in info["schemes"]:
        assert scheme["communication"] in table and scheme["summary"] in table


def test_a_progress_bar_only_on_a_terminal(program, trace, tmp_path):
    """Two seconds on a slow link: a terminal gets a progress bar, which is erased at the end; a pipe gets nothing."""
    command = [str(program), "compare", "T", "--repeat", "3", "--rate", "60kbit", "--schemes", "balanced"]
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert piped.stderr == b""
    terminal, end = pty.openpty()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    seen = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    assert process.wait(60) == 0
    os.close(terminal)
    assert b"balanced" in seen and b"\r" in seen
