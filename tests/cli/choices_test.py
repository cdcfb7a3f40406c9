"""Tests the choices of `sparsesync compare`: auto, --explain, --wire, --announce, --pattern, --block, nodes; and extreme sizes."""
# ctest: SLOW all_schemes_with auto_moves announced_rows beyond_the_wire

import pytest

numpy = pytest.importorskip("numpy")

from compare_support import AUTO, OVER_MPI_ALONE, SCHEMES, compare, write_trace  # noqa: E402 - it imports numpy

LINK = ("--rate", "1gbit", "--latency", "50us")
WITH_VALUES_OF_ROWS = ["all_gather", "balanced", "block_ps", "dense_direct", "dense_ring", "owned", "recursive_doubling"]


@pytest.fixture
def trace(run, tmp_path):
    """Makes a small trace."""

    def make(rows=2000, width=8, density=0.05, workers=4, dtype="f32", zipf=1):
        made = run(
            *f"trace synthetic --rows {rows} --width {width} --density {density} --zipf {zipf}".split(),
            *f"--workers {workers} --steps 1 --dtype {dtype} --out T --force".split(),
        )
        assert made.returncode == 0, made
        return tmp_path / "T"

    return make


# auto and --explain


def test_all_means_the_schemes_of_the_build_and_auto(run, trace):
    report, schemes = compare(run, trace(), *LINK)
    assert sorted(scheme["name"] for scheme in report["schemes"]) == sorted([*SCHEMES, *OVER_MPI_ALONE, AUTO])
    assert all(scheme["correct"] for scheme in schemes.values())
    assert all((scheme["chosen"] is None) == (name != AUTO) for name, scheme in schemes.items())


@pytest.mark.parametrize(
    "shape, link, chosen",
    [
        # Wide rows on a slow link: the scheme that sends the fewest bytes.
        ({"width": 128}, ("--rate", "10mbit", "--latency", "1us"), "owned"),
        # Every worker touches every row.
        ({"rows": 5000, "width": 4, "density": 1}, ("--rate", "10mbit", "--latency", "1us"), "dense_direct"),
        # Few bytes and a high latency: no message waits for another one, which is a pattern of all_gather.
        ({"density": 0.005}, ("--rate", "10gbit", "--latency", "5ms"), "all_gather (point_to_point)"),
    ],
)
def test_auto_moves_the_bytes_of_the_chosen_scheme(run, trace, shape, link, chosen):
    path = trace(**shape)
    name, _, pattern = chosen.rstrip(")").partition(" (")
    link = (*link, "--clock", "virtual")  # no real waiting
    _, schemes = compare(run, path, *link, *(["--pattern", pattern] if pattern else []))
    assert schemes[AUTO]["chosen"] == chosen and schemes[AUTO]["correct"]
    for key in ("bytes_busiest", "bytes_total", "bytes_index", "bytes_values", "messages", "tensors"):
        assert schemes[AUTO][key] == schemes[name][key], key
    # Alone, auto makes the same choice. Without a known network it measures, and the result is correct.
    _, alone = compare(run, path, *link, schemes=AUTO)
    assert list(alone) == [AUTO]
    assert (alone[AUTO]["chosen"], alone[AUTO]["bytes_total"]) == (chosen, schemes[AUTO]["bytes_total"])
    _, measured = compare(run, path, schemes=AUTO)
    assert measured[AUTO]["correct"] and measured[AUTO]["chosen"].split(" ")[0] in SCHEMES


def seconds_in(text):
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]


def explained(output):
    """Returns [(scheme or "scheme (pattern)", seconds, why it is ruled out)], as printed."""
    lines = output.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("expected "))
    end = lines.index("", begin)
    at_seconds = lines[begin].index("seconds") + len("seconds")
    at_end = len(lines[begin + 1])
    rows = []
    for line in lines[begin + 2 : end]:
        name = line[: at_seconds - 8].rsplit("  ", 1)[0].strip()
        rows.append((name, seconds_in(" ".join(line[:at_seconds].split()[-2:])), line[at_end:], line))
    return rows


def test_explain_has_a_line_for_each_scheme_best_first(run, trace):
    result = run("compare", trace(), "--explain", "--schemes", "auto", "--repeat", 1, *LINK)
    assert result.returncode == 0, result
    rows = explained(result.stdout)
    assert {name.split(" ")[0] for name, *_ in rows} == {*SCHEMES, *OVER_MPI_ALONE}
    *of_use, native = rows
    assert native[0] == "dense_native" and native[3].endswith("this transport has no all-reduce of its own")
    seconds = [row[1] for row in of_use]
    assert seconds == sorted(seconds) and len(set(seconds)) > 3
    assert f"auto: {rows[0][0]} " in result.stdout, "auto chose the best one"


def test_explain_over_a_network_file_or_a_virtual_clock(run, trace, tmp_path):
    trace()
    made = run(*"calibrate --transport local --workers 2 --repeat 3 --rate 1mbit --latency 1ms --out N.json".split())
    assert made.returncode == 0, made
    for options in (["--network", "N.json"], ["--clock", "virtual"]):
        result = run("compare", "T", "--explain", "--schemes", "balanced", "--repeat", 1, *options)
        assert result.returncode == 0 and explained(result.stdout), result


def test_explain_on_an_unknown_link(refused, trace):
    trace()
    refused("compare", "T", "--explain", parts=["--explain", "--rate", "--network"])
    refused("compare", "T", "--explain", "--latency", "1ms", parts=["--explain", "--rate", "--network"])


# --wire


def test_half_of_the_bytes(run, trace):
    path = trace(rows=20000, width=128, density=0.01)
    names = ",".join(WITH_VALUES_OF_ROWS)
    whole_report, whole = compare(run, path, schemes=names)
    assert (whole_report["wire"], whole_report["announce"]) == (None, False)
    for wire in ("bf16", "f16"):
        report, half = compare(run, path, "--wire", wire, schemes=names)
        assert (report["wire"], report["announce"]) == (wire, False)
        assert list(half) == WITH_VALUES_OF_ROWS
        for name, scheme in half.items():
            assert scheme["correct"] and scheme["non_finite_values"] == 0, name
            for key in ("bytes_busiest", "bytes_total"):
                assert scheme[key] <= 0.52 * whole[name][key], (name, key)
            assert scheme["bytes_values"] == whole[name]["bytes_values"] / 2, name


def test_their_own_type_on_the_wire_changes_nothing(run, trace):
    path = trace()
    _, whole = compare(run, path, schemes="balanced")
    report, same = compare(run, path, "--wire", "f32", schemes="balanced")
    assert report["wire"] == "f32" and same["balanced"]["bytes_total"] == whole["balanced"]["bytes_total"]


def test_all_schemes_with_a_type_on_the_wire(run, trace):
    for dtype, wire in (("f32", "bf16"), ("f32", "f16"), ("f64", "f32"), ("f64", "bf16")):
        _, schemes = compare(run, trace(dtype=dtype, workers=5), "--wire", wire)
        for name in [*SCHEMES, AUTO]:
            assert schemes[name]["correct"], (name, dtype, wire)


def test_sums_beyond_the_wire_are_reported(run, tmp_path):
    """f16 can represent 60000, but not twice that."""
    tensors = [{"name": "t", "rows": 50, "width": 3, "dtype": "f32"}]

    def part(worker, step, tensor):
        return [7, 10 + worker], numpy.array([[60000, 1, 2]] * 2, numpy.float32)

    path = write_trace(tmp_path / "T", tensors, 2, 1, part)
    _, schemes = compare(run, path)
    assert all(scheme["correct"] and scheme["non_finite_values"] == 0 for scheme in schemes.values())
    _, schemes = compare(run, path, "--wire", "f16")
    for name in [*SCHEMES, AUTO]:
        assert schemes[name]["correct"] and schemes[name]["non_finite_values"] > 0, name
    output = run("compare", path, "--wire", "f16", "--repeat", 1, "--schemes", "balanced,owned")
    assert output.returncode == 0, output
    lines = [line for line in output.stdout.splitlines() if "not finite" in line]
    assert sorted(line.split(":")[0] for line in lines) == ["balanced", "owned"]
    assert all("--wire" in line for line in lines)


# --announce


def test_announced_rows(run, trace):
    path = trace(rows=20000, width=32, density=0.01)
    _, without = compare(run, path)
    report, announced = compare(run, path, "--announce")
    assert report["announce"] is True
    assert all(scheme["correct"] for scheme in announced.values())
    for name in ("balanced", "owned"):
        assert announced[name]["bytes_index"] <= without[name]["bytes_index"]
    assert announced["balanced"]["bytes_index"] < without["balanced"]["bytes_index"]
    assert announced["balanced"]["tensors"][0]["index_code"] == "sets_ahead"
    for name in SCHEMES:
        if name not in ("balanced", "owned"):
            assert announced[name]["bytes_total"] == without[name]["bytes_total"], "the scheme does not use them"


# Options that affect only some schemes


def test_two_level_uses_the_options_of_the_scheme_between_nodes(run, trace):
    path = trace(workers=8)

    def two_level(between, *options):
        nodes = ("--workers-per-node", 2, "--between-nodes", between)
        _, schemes = compare(run, path, *nodes, *options, schemes="two_level")
        assert schemes["two_level"]["correct"]
        return schemes["two_level"]

    assert two_level("block_ps", "--block", 8)["bytes_values"] < two_level("block_ps")["bytes_values"]
    # In both phases: one message around the ring of two, then between four nodes three (ring) or log2 4 (hierarchy).
    assert two_level("all_gather", "--pattern", "ring")["messages"] == 8 * (2 + 3)
    assert two_level("all_gather", "--pattern", "hierarchy")["messages"] == 8 * (2 + 2)


@pytest.mark.parametrize("schemes", ["all", AUTO])
def test_all_and_auto_use_the_options_of_some_scheme(run, trace, schemes):
    options = ("--block", 16, "--workers-per-node", 2, "--between-nodes", "owned", "--announce")
    _, ran = compare(run, trace(), *options, *LINK, schemes=schemes)
    assert ran[AUTO]["correct"]


UNHEEDED = [
    (["--announce"], "sparse_ps"),
    (["--announce"], "two_level --between-nodes owned"),
    (["--pattern", "ring"], "balanced"),
    (["--pattern", "ring"], "two_level --between-nodes owned"),
    (["--pattern", "ring"], AUTO),  # auto chooses the pattern itself
    (["--block", "16"], "balanced,sparse_ps"),
    (["--block", "256"], "two_level"),  # an explicit value is rejected even if it equals the default
    (["--workers-per-node", "2"], "balanced,dense_ring"),
    (["--workers-per-node", "3"], "balanced"),
    (["--between-nodes", "owned"], "owned,block_ps"),
    (["--between-nodes", "nonsense"], "balanced"),
]


@pytest.mark.parametrize("options, schemes", UNHEEDED)
def test_options_that_no_scheme_uses(refused, trace, options, schemes):
    trace()
    parts = [f"{options[0]}: none of these schemes uses it: remove it"]
    refused("compare", "T", *options, "--schemes", *schemes.split(" "), parts=parts)


# Bad input


@pytest.mark.parametrize(
    "dtype, options, parts",
    [
        ("f32", ["--wire", "f64"], ["f64 on the wire", "f32, f16 or bf16"]),
        ("f32", ["--wire", "f33"], ["f33"]),
        ("f32", ["--wire", "i32"], ["i32 on the wire"]),
        ("bf16", ["--wire", "f32"], ["not narrower", "bf16"]),
        ("bf16", ["--wire", "f16"], ["not narrower", "bf16"]),
        ("i32", ["--wire", "f16"], ["f16 on the wire", "i32"]),
        ("f32", ["--pattern", "nonsense"], ["nonsense", "ring", "hierarchy", "point_to_point"]),
        ("f32", ["--block", "0"], ["--block"]),
        ("f32", ["--block", "many"], ["--block", "many"]),
        ("f32", ["--workers-per-node", "3", "--schemes", "two_level"], ["two_level", "3 workers per node", "8 workers"]),
        ("f32", ["--between-nodes", "nonsense"], ["two_level", "nonsense", "balanced"]),
        ("f32", ["--between-nodes", AUTO], ["two_level", AUTO, "balanced"]),
        ("f32", ["--workers-per-node", "3", "--schemes", AUTO], ["two_level", "3 workers per node", "8 workers"]),
        ("f32", ["--between-nodes", "nonsense", "--schemes", AUTO], ["two_level", "nonsense", "balanced"]),
        ("f32", ["--schemes", "nonsense"], ["nonsense", *SCHEMES, *OVER_MPI_ALONE, AUTO]),
        ("f32", ["--network", "nowhere.json"], ["nowhere.json"]),
    ],
)
def test_wrong_choices(refused, trace, dtype, options, parts):
    trace(workers=8, dtype=dtype)
    refused("compare", "T", *options, parts=parts)


# Gradients of single elements


def test_one_in_two_million_elements_of_three_billion(run, trace):
    """Tests row indices beyond 2^31, and dense tensors that exceed a budget of 1 GiB."""
    report, schemes = compare(run, trace(3_000_000_000, 1, 0.0000005, 3), "--memory", "1GiB", *LINK)
    assert report["tensors"][0]["rows"] == 3_000_000_000
    too_large = ["balanced_hash", "dense_direct", "dense_ring", "two_level"]
    for name in [*SCHEMES, AUTO]:
        if name in too_large:
            assert set(schemes[name]) == {"name", "skipped"} and "--memory" in schemes[name]["skipped"], name
        else:
            assert schemes[name]["correct"], name
    assert schemes["owned"]["bytes_busiest"] < schemes["balanced"]["bytes_busiest"] < 6 * 3 * 1500 * 2
    # A uniform distribution also touches the highest rows.
    _, schemes = compare(run, trace(3_000_000_000, 1, 0.0000005, 3, zipf=0), "--memory", "1GiB", *LINK)
    assert all(schemes[name]["correct"] for name in [*SCHEMES, AUTO] if name not in too_large)


@pytest.mark.parametrize("density", [0, 0.5, 1])
@pytest.mark.parametrize("rows, workers", [(100, 3), (64, 8)])
def test_none_half_and_all_of_the_elements(run, trace, density, rows, workers):
    _, schemes = compare(run, trace(rows, 1, density, workers), "--block", 16, *LINK)
    assert list(schemes) == [*SCHEMES, AUTO]
    for name, scheme in schemes.items():
        assert scheme["correct"], name
        if density == 0 and not {name, scheme["chosen"]} & {"dense_direct", "dense_ring", "two_level"}:
            assert scheme["bytes_values"] == 0, name
