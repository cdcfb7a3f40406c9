"""Tests `--transport ucx` of `sparsesync compare` and `calibrate`: processes give the results of `local`, and a missing UCX is reported."""
# ctest: NEEDS UCX MPI SLOW ALL

import json

import pytest
from conftest import LEAKS_OF_MPI, expect_calibration_of_one_node, said

TRAFFIC = ("bytes_sent_max", "bytes_received_max", "bytes_total", "bytes_index", "messages", "push_imbalance", "pull_imbalance",
           "tensors")


def expect_traffic_of_local(over_ucx, in_threads):
    """Compares the JSON of a run over UCX with that of `local`: the same bytes and messages, and correct sums."""
    assert over_ucx["transport"] == "ucx" and over_ucx["workers"] == in_threads["workers"]
    assert over_ucx["network"]["rate_bps"] is None
    assert [s["name"] for s in over_ucx["schemes"]] == [s["name"] for s in in_threads["schemes"]]
    for one, other in zip(over_ucx["schemes"], in_threads["schemes"], strict=True):
        if one["name"] == "dense_native":  # only available over MPI
            assert one == other and "no all-reduce" in one["skipped"]
            continue
        assert one["correct"] and other["correct"], one
        if one["chosen"] != other["chosen"]:  # auto may choose differently, by what it measured on each network
            assert one["name"] == "auto"
            continue
        for key in TRAFFIC:
            assert one[key] == other[key], (one["name"], key)


@pytest.mark.parametrize(("workers", "transports"), [(1, ""), (2, "tcp,self"), (3, "sysv,self"), (4, ""), (7, "tcp,self")])
def test_reports_what_local_reports(run, mpirun, make_trace, tmp_path, workers, transports):
    made = make_trace(workers)
    result = mpirun((workers, ["compare", made, "--transport", "ucx", "--json", "ucx.json", "--result", "ucx", "--repeat", 2]),
                    options=["-x", f"UCX_TLS={transports}"] if transports else [])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("workers over ucx (real links") == 1, "only rank 0 prints"
    local = run("compare", made, "--json", "local.json", "--result", "local", "--repeat", 2)
    assert local.returncode == 0, local.stderr
    expect_traffic_of_local(*(json.loads((tmp_path / f"{name}.json").read_text()) for name in ("ucx", "local")))
    # All workers have the same bits as over local, in every file.
    files = sorted(path.relative_to(tmp_path / "local") for path in (tmp_path / "local").rglob("*.safetensors"))
    assert len(files) == len(list((tmp_path / "ucx").rglob("*.safetensors"))) > 0
    for file in files:
        assert (tmp_path / "ucx" / file).read_bytes() == (tmp_path / "local" / file).read_bytes(), file


def test_chunk_and_window_change_no_bit(mpirun, make_trace, tmp_path):
    made = make_trace(3, rows=3000)
    reports = []
    for place, options in enumerate([[], ["--chunk", "300", "--window", "1"], ["--chunk", "1MiB"]]):
        result = mpirun((3, ["compare", made, "--transport", "ucx", "--repeat", 1, "--json", f"{place}.json", *options]))
        assert result.returncode == 0, result.stderr
        reports.append(json.loads((tmp_path / f"{place}.json").read_text()))
    for report in reports[1:]:
        for one, other in zip(reports[0]["schemes"], report["schemes"], strict=True):
            assert one.get("skipped") == other.get("skipped")
            if "skipped" not in one and one["name"] != "auto":  # its choice depends on measurements
                assert other["correct"] and one["bytes_total"] == other["bytes_total"]


def test_different_chunks_are_reported_by_all_workers(mpirun, make_trace):
    command = ["compare", make_trace(3), "--transport", "ucx"]
    result = mpirun((2, command), (1, [*command, "--chunk", "8KiB"]), options=["--enable-recovery"])
    assert len(said(result)) == 3, result.stderr
    assert all("--chunk is 0 on worker 0 and 8192 on worker 2" in line for line in said(result))


def test_a_calibration_of_one_node(mpirun, tmp_path):
    expect_calibration_of_one_node("ucx", mpirun, tmp_path)


def test_a_missing_library_is_reported_by_all_workers(program, mpirun, make_trace):
    made = make_trace(3)
    without = f"env SPARSESYNC_UCX_LIBRARY=/absent {program} compare {made} --transport ucx"
    reason = "cannot load UCX from SPARSESYNC_UCX_LIBRARY '/absent'"
    result = mpirun((2, ["compare", made, "--transport", "ucx"]), (1, without), options=["--enable-recovery"])
    assert len(said(result)) == 3 and not result.stdout, result.stderr
    assert sum(f"worker 2: {reason}" in line for line in said(result)) == 2
    result = mpirun((3, without), options=["--enable-recovery"])
    assert len(said(result)) == 3 and all(line.startswith(f"sparsesync: {reason}") for line in said(result)), result.stderr


def test_a_missing_interface_is_reported_by_all_workers(mpirun, make_trace):
    command = ["compare", make_trace(2), "--transport", "ucx"]
    result = mpirun((2, command), options=["--enable-recovery", "-x", "UCX_NET_DEVICES=absent0"])
    assert len(said(result)) == 2, result.stderr
    assert all("UCX_NET_DEVICES: this machine has no network interface 'absent0': choose from" in line for line in said(result))


def test_without_mpirun_it_says_how_to_start(refused, make_trace):
    refused("compare", make_trace(4), "--transport", "ucx", parts=["mpirun -np 4", "4 workers"], environment=LEAKS_OF_MPI)


def test_links_of_ucx_are_not_shaped(refused, make_trace):
    made = make_trace(2)
    refused("compare", made, "--transport", "ucx", "--rate", "1gbit", parts=["--rate", "remove them"])
    refused("compare", made, "--transport", "ucx", "--clock", "virtual", parts=["--clock virtual", "remove --transport ucx"])
    refused("compare", made, "--transport", "pigeon", parts=["--transport 'pigeon': use local, mpi, ucx or nccl"])


def test_info_names_the_version_or_the_reason(run):
    found = json.loads(run("info", "--json", "-").stdout)
    assert "ucx" in found["transports"] and found["ucx"].count(".") == 2
    missing = run("info", "--json", "-", environment={"SPARSESYNC_UCX_LIBRARY": "/absent/libucp.so.0"})
    found = json.loads(missing.stdout)
    assert "ucx" not in found["transports"] and "SPARSESYNC_UCX_LIBRARY '/absent/libucp.so.0'" in found["ucx"]
