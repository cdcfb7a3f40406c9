"""Tests `sparsesync calibrate`, and how compare uses its file: for predictions, and for links of the virtual clock."""
# ctest: SLOW every_key what_calibrate_wrote replaced_with_force

import json

import pytest

# Simulated links, on which large messages take longer even if the machine is busy.
QUICK = ("--transport", "local", "--workers", 3, "--repeat", 2, "--rate", "100mbit", "--latency", "1ms")


@pytest.fixture
def network(tmp_path):
    """A NETWORK.json with round numbers."""

    def write(name="N.json", **changes):
        link = {"latency_s": 1e-3, "rate_bps": 1e8, "ci": [[9e-4, 1.1e-3], [9e7, 1.1e8]]}
        slow = {"latency_s": 1e-2, "rate_bps": 1e7, "ci": [[9e-3, 1.1e-2], [9e6, 1.1e7]]}
        content = {
            "links": {"inter": link, "intra": slow},
            "host": {"encode_s_per_byte": 1e-6, "aggregate_s_per_byte": 2e-6, "add_s_per_byte": 2e-6},
            "provenance": {},
            **changes,
        }
        (tmp_path / name).write_text(json.dumps(content))
        return name

    return write


@pytest.fixture
def trace(run):
    made = run(*"trace synthetic --rows 3000 --width 8 --density 0.05 --zipf 1 --workers 3 --out T".split())
    assert made.returncode == 0, made
    return "T"


def compared(run, trace, *options, schemes="balanced,dense_ring"):
    result = run("compare", trace, "--repeat", 1, "--schemes", schemes, "--json", "-", *options)
    assert result.returncode == 0, result
    report = json.loads(result.stdout)
    return report, {scheme["name"]: scheme for scheme in report["schemes"]}


def test_the_file_has_every_key_of_the_contract(run, tmp_path):
    result = run("calibrate", *QUICK, "--out", "N.json", "--json", "-")
    assert result.returncode == 0, result
    written = json.loads((tmp_path / "N.json").read_text())
    assert json.loads(result.stdout) == written
    assert "between nodes" in result.stderr and "inside a node" not in result.stderr
    assert "all to all" in result.stderr
    assert set(written) == {"links", "host", "provenance"}
    assert {"commit", "cpu", "date"} <= set(written["provenance"])
    assert written["links"]["intra"] is None
    link = written["links"]["inter"]
    assert set(link) == {"latency_s", "rate_bps", "ci", "loaded"}
    assert set(link["loaded"]) == {"latency_s", "rate_bps", "ci"}
    for fitted in (link, link["loaded"]):
        (latency_low, latency_high), (rate_low, rate_high) = fitted["ci"]
        assert 0 <= latency_low <= fitted["latency_s"] <= latency_high
        assert 0 < rate_low <= fitted["rate_bps"] <= rate_high
    host = written["host"]
    assert set(host) == {"encode_s_per_row", "encode_s_per_byte", "aggregate_s_per_row", "aggregate_s_per_byte",
                         "sort_s_per_row", "own_s_per_row", "add_s_per_byte", "message_s", "step_s"}
    # Any one of them may be measured as zero.
    assert all(0 <= cost < 1e-2 for cost in host.values())
    assert sum(host[f"{work}_s_per_{unit}"] for work in ("encode", "aggregate") for unit in ("row", "byte")) > 0


def test_two_workers_have_no_separate_load(run, tmp_path):
    two = ("--transport", "local", "--workers", 2, "--repeat", 1, "--rate", "100mbit", "--latency", "1ms")
    result = run("calibrate", *two, "--out", "N.json")
    assert result.returncode == 0, result
    assert json.loads((tmp_path / "N.json").read_text())["links"]["inter"]["loaded"] is None
    assert "all to all" not in result.stdout


def test_compare_reads_what_calibrate_wrote(run, trace):
    assert run("calibrate", *QUICK, "--out", "N.json").returncode == 0
    report, schemes = compared(run, trace, "--network", "N.json")
    assert report["network"] == {"rate_bps": None, "latency_s": 0}, "the link stays unshaped"
    assert all(scheme["seconds_predicted"] > 0 for scheme in schemes.values())


def test_predictions_count_links_and_processors(run, trace, network):
    _, schemes = compared(run, trace, "--network", network())
    ring = schemes["dense_ring"]
    dense = 3000 * 8 * 4
    # 150 rows are copied into a cleared array; two thirds of the array are added up.
    work = 150 * 8 * 4 * 1e-6 + dense * 5 / 3 * 2e-6
    expected = 4 * 1e-3 + ring["bytes_busiest"] * 8 / 1e8 + work
    assert ring["seconds_predicted"] == pytest.approx(expected, rel=1e-3)
    # A rate on the command line overrides that of the file; CPU costs are still those of the file.
    _, schemes = compared(run, trace, "--network", network(), "--rate", "1gbit")
    expected = schemes["dense_ring"]["bytes_busiest"] * 8 / 1e9 + work
    assert schemes["dense_ring"]["seconds_predicted"] == pytest.approx(expected, rel=1e-3)


def test_the_virtual_clock_takes_the_files_link(run, trace, network):
    report, schemes = compared(run, trace, "--network", network(), "--clock", "virtual")
    assert report["network"] == {"rate_bps": 1e8, "latency_s": 1e-3}
    for scheme in schemes.values():
        assert scheme["seconds_min"] >= scheme["bytes_busiest"] * 8 / 1e8
    report, _ = compared(run, trace, "--network", network(), "--clock", "virtual", "--rate", "2gbit")
    assert report["network"] == {"rate_bps": 2e9, "latency_s": 0}
    report, _ = compared(run, trace, "--network", network(), "--clock", "virtual", "--latency", "3ms")
    assert report["network"] == {"rate_bps": 1e8, "latency_s": 3e-3}
    # If only one link is known, compare uses it.
    one = network(links={"inter": None, "intra": {"latency_s": 0, "rate_bps": 5e7, "ci": [[0, 0], [5e7, 5e7]]}})
    report, _ = compared(run, trace, "--network", one, "--clock", "virtual")
    assert report["network"] == {"rate_bps": 5e7, "latency_s": 0}


# Bad input


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"links": {}}, ["links.inter", "missing"]),
        ({"links": []}, ["links", "not an object"]),
        ({"links": {"inter": None, "intra": None}}, ["no link"]),
        ({"links": {"inter": {"latency_s": -1}, "intra": None}}, ["links.inter"]),
        ({"host": {"encode_s_per_byte": -1, "aggregate_s_per_byte": 0}}, ["host.encode_s_per_byte", "-1"]),
        ({"host": {"encode_s_per_byte": float("nan"), "aggregate_s_per_byte": 0}}, ["JSON"]),
        ({"host": {"encode_s_per_byte": "fast", "aggregate_s_per_byte": 0}}, ["host.encode_s_per_byte", "fast"]),
    ],
)
def test_an_invalid_network(refused, trace, network, changes, parts):
    name = network(**changes)
    refused("compare", trace, "--network", name, parts=[name, *parts])


def test_a_missing_network(refused, trace):
    refused("compare", trace, "--network", "nowhere.json", parts=["nowhere.json"])


@pytest.mark.parametrize(
    "options, parts",
    [
        ([], ["--transport"]),
        (["--transport", "local"], ["--out"]),
        (["--transport", "carrier_pigeon", "--out", "N.json"], ["carrier_pigeon", "local", "mpi"]),
        (["--transport", "mpi", "--rate", "1gbit", "--out", "N.json"], ["--rate", "local"]),
        (["--transport", "mpi", "--workers", "2", "--out", "N.json"], ["--workers", "mpirun -np"]),
        (["--transport", "local", "--workers", "1", "--out", "N.json"], ["--workers"]),
        (["--transport", "local", "--repeat", "0", "--out", "N.json"], ["--repeat"]),
        (["--transport", "local", "--rate", "5parsecs", "--out", "N.json"], ["--rate", "5parsecs"]),
        ([*QUICK, "--out", "/nowhere/at/all.json"], ["/nowhere/at/all.json"]),
        ([*QUICK, "--out", "N.json", "--json", "/nowhere/at/all.json"], ["/nowhere/at/all.json"]),
        ([*QUICK, "--out", "N.json", "more"], ["more"]),
    ],
)
def test_wrong_use(refused, options, parts):
    refused("calibrate", *options, parts=parts)


def test_a_file_that_exists_is_replaced_with_force_alone(run, refused, tmp_path):
    (tmp_path / "N.json").write_text("dear")
    refused("calibrate", *QUICK, "--out", "N.json", parts=["N.json", "--force"])
    assert (tmp_path / "N.json").read_text() == "dear"
    assert run("calibrate", *QUICK, "--out", "N.json", "--force").returncode == 0
    assert "links" in json.loads((tmp_path / "N.json").read_text())


def test_help_has_an_example(run):
    result = run("calibrate", "--help")
    assert result.returncode == 0 and "Example" in result.stdout and "sparsesync calibrate" in result.stdout
