"""Tests `sparsesync compare --transport mpi`: processes give the results of `local`, and wrong starts are reported."""
# ctest: NEEDS MPI SLOW ALL

import json

import pytest
from conftest import LEAKS_OF_MPI, expect_calibration_of_one_node, said


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_reports_what_local_reports(run, mpirun, make_trace, tmp_path, workers):
    made = make_trace(workers)
    result = mpirun((workers, ["compare", made, "--transport", "mpi", "--json", "mpi.json",
                               "--result", "mpi", "--repeat", 2]))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("workers over mpi") == 1, "only rank 0 prints"
    local = run("compare", made, "--json", "local.json", "--result", "local", "--repeat", 2)
    assert local.returncode == 0, local.stderr
    over_mpi = json.loads((tmp_path / "mpi.json").read_text())
    in_threads = json.loads((tmp_path / "local.json").read_text())
    assert over_mpi["transport"] == "mpi" and over_mpi["workers"] == workers
    assert over_mpi["network"]["rate_bps"] is None
    assert [s["name"] for s in over_mpi["schemes"]] == [s["name"] for s in in_threads["schemes"]]
    for one, other in zip(over_mpi["schemes"], in_threads["schemes"], strict=True):
        assert one["correct"], one
        if one["name"] == "dense_native":  # only available over MPI
            assert set(other) == {"name", "skipped"}
            continue
        if one["chosen"] != other["chosen"]:  # auto may choose differently, by what it measured on each network
            assert one["name"] == "auto" and other["correct"]
            continue
        for key in ("bytes_sent_max", "bytes_received_max", "bytes_total", "bytes_index", "messages",
                    "push_imbalance", "pull_imbalance", "tensors"):
            assert one[key] == other[key], (one["name"], key)
    # All workers have the same bits as over local, in every file.
    files = sorted(path.relative_to(tmp_path / "local") for path in (tmp_path / "local").rglob("*.safetensors"))
    assert len(files) == 2 * workers * (len(over_mpi["schemes"]) - 1)
    for file in files:
        bits = (tmp_path / "local" / file).read_bytes()
        assert (tmp_path / "mpi" / file).read_bytes() == bits, file
        if file.parts[0] == "dense_ring":  # whole numbers are exact in any order
            assert (tmp_path / "mpi" / "dense_native" / file.name).read_bytes() == bits, file


def test_chunk_and_window_change_no_bit(mpirun, make_trace, tmp_path):
    made = make_trace(3, rows=3000)
    reports = []
    for place, options in enumerate([[], ["--chunk", "300", "--window", "1"], ["--chunk", "1MiB"]]):
        result = mpirun((3, ["compare", made, "--transport", "mpi", "--repeat", 1, "--json", f"{place}.json",
                             *options]))
        assert result.returncode == 0, result.stderr
        reports.append(json.loads((tmp_path / f"{place}.json").read_text()))
    for report in reports[1:]:
        for one, other in zip(reports[0]["schemes"], report["schemes"], strict=True):
            assert other["correct"]
            if one["name"] != "auto":  # its choice depends on measurements
                assert one["bytes_total"] == other["bytes_total"]


def test_auto_and_explain_go_by_the_network_that_is_given(run, mpirun, make_trace, tmp_path):
    made = make_trace(3)
    link = {"latency_s": 1e-6, "rate_bps": 1e7, "ci": [[1e-6, 1e-6], [1e7, 1e7]]}
    network = {"links": {"inter": link, "intra": link},
               "host": {"encode_s_per_byte": 0, "aggregate_s_per_byte": 0}, "provenance": {}}
    (tmp_path / "N.json").write_text(json.dumps(network))
    options = ("--schemes", "auto", "--network", "N.json", "--explain", "--repeat", 1)
    result = mpirun((3, ["compare", made, "--transport", "mpi", "--json", "mpi.json", *options]))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("expected ") == 1, "only rank 0 prints"
    assert run("compare", made, "--json", "local.json", *options).returncode == 0
    ((over_mpi,), (in_threads,)) = (json.loads((tmp_path / f"{name}.json").read_text())["schemes"]
                                    for name in ("mpi", "local"))
    assert over_mpi["correct"] and over_mpi["chosen"] == in_threads["chosen"] == "owned"
    assert over_mpi["bytes_total"] == in_threads["bytes_total"]


def test_explain_on_an_unknown_network(mpirun, make_trace):
    result = mpirun((3, ["compare", make_trace(3), "--transport", "mpi", "--explain"]))
    assert result.returncode != 0 and not result.stdout
    assert said(result) and all("--network" in line for line in said(result)), result.stderr


def test_a_calibration_of_one_node(mpirun, tmp_path):
    expect_calibration_of_one_node("mpi", mpirun, tmp_path)


def test_predictions_from_a_network(mpirun, make_trace, tmp_path):
    link = {"latency_s": 1e-3, "rate_bps": 1e8, "ci": [[1e-3, 1e-3], [1e8, 1e8]]}
    slow = {**link, "rate_bps": 1e6}
    host = {"encode_s_per_byte": 0, "aggregate_s_per_byte": 0}
    (tmp_path / "N.json").write_text(json.dumps({"links": {"inter": slow, "intra": link}, "host": host}))
    made = make_trace(3)
    options = ["--transport", "mpi", "--repeat", 1, "--schemes", "dense_ring", "--json", "mpi.json"]
    result = mpirun((3, ["compare", made, *options, "--network", "N.json"]))
    assert result.returncode == 0, result.stderr
    (ring,) = json.loads((tmp_path / "mpi.json").read_text())["schemes"]
    # All workers are on one node, so the link is the one within a node.
    assert ring["seconds_predicted"] == pytest.approx(4e-3 + ring["bytes_busiest"] * 8 / 1e8, rel=1e-3)
    # All workers must get the same file.
    result = mpirun((2, ["compare", made, *options, "--network", "N.json"]), (1, ["compare", made, *options]),
                    options=["--enable-recovery"])
    assert len(said(result)) == 3 and all("--network is" in line for line in said(result)), result.stderr


def test_a_calibration_needs_two_workers(mpirun, tmp_path):
    result = mpirun((1, ["calibrate", "--transport", "mpi", "--out", "N.json"]))
    assert result.returncode == 2 and "2 or more" in result.stderr
    assert not (tmp_path / "N.json").exists()


def test_without_mpirun_it_says_how_to_start(refused, make_trace):
    made = make_trace(4)
    refused("compare", made, "--transport", "mpi", parts=["mpirun -np 4", "4 workers"],
            environment=LEAKS_OF_MPI)


def test_a_trace_for_another_number_of_workers(mpirun, make_trace):
    result = mpirun((3, ["compare", make_trace(2), "--transport", "mpi"]))
    assert result.returncode == 2
    assert all("the trace has 2 workers, but this run has 3" in line for line in said(result)) and said(result)


@pytest.mark.parametrize("other,parts", [
    (["compare", "other", "--transport", "mpi"], ["seed is 1 on worker 0 and 2 on worker 2"]),
    (["compare", "trace", "--transport", "mpi", "--repeat", "3"], ["--repeat is 5 on worker 0 and 3 on worker 2"]),
    (["compare", "trace", "--transport", "mpi", "--schemes", "balanced"], ["--schemes is", "balanced on worker 2"]),
    (["compare", "trace", "--transport", "mpi", "--chunk", "8KiB"], ["--chunk is 0 on worker 0 and 8192 on worker 2"]),
    (["compare", "absent", "--transport", "mpi"], ["'absent' is not a trace"]),
])
def test_different_arguments_are_reported_by_all_workers(mpirun, make_trace, other, parts):
    make_trace(3)
    make_trace(3, seed=2, name="other")
    result = mpirun((2, ["compare", "trace", "--transport", "mpi"]), (1, other), options=["--enable-recovery"])
    assert len(said(result)) == 3, result.stderr
    for line in said(result):
        for part in parts:
            assert part in line


def test_a_rank_that_never_comes(mpirun, make_trace):
    result = mpirun((2, ["compare", make_trace(3), "--transport", "mpi", "--deadline", 2]), (1, "sleep 6"),
                    options=["--enable-recovery"])
    assert len(said(result)) == 2, result.stderr
    for line in said(result):
        assert "did not end within 2 s: a process is missing" in line


def test_links_of_mpi_are_not_shaped(refused, make_trace):
    made = make_trace(2)
    refused("compare", made, "--transport", "mpi", "--rate", "1gbit", parts=["--rate", "remove them"])
    refused("compare", made, "--chunk", "1KiB", parts=["--chunk", "only to --transport mpi or ucx"])
