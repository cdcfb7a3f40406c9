"""Tests `sparsesync plan`: growth against a simple NumPy version and real data, the theorem, crossovers, and unusual traces."""

import itertools
import json
import math

import pytest

numpy = pytest.importorskip("numpy")

from compare_support import SCHEMES, compare, write_trace  # noqa: E402 - it imports numpy

FAST = ("--rate", "25gbit", "--latency", "10us")
ROWS, WIDTH = 2000, 8
TENSOR = {"name": "embedding", "rows": ROWS, "width": WIDTH, "dtype": "f32"}


def plan(run, trace, *options):
    result = run("plan", trace, "--json", "-", *options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def by_workers(planned):
    return {each["n"]: each for each in planned["workers"]}


def drawn_sets(workers, steps, seed=1):
    """Returns sets[step][worker] of rows, drawn approximately by Zipf's law."""
    random = numpy.random.default_rng(seed)
    return [[sorted({*(random.zipf(1.3, 150) % ROWS).tolist()}) for _ in range(workers)] for _ in range(steps)]


def trace_of(tmp_path, sets, name="T", tensor=TENSOR):
    write_trace(tmp_path / name, [tensor], len(sets[0]), len(sets), lambda w, s, t: (sets[s][w], None))
    return name


def mean_rows(sets):
    return numpy.mean([len(rows) for step in sets for rows in step])


def rarefied(sets, k):
    """Returns the rows that k of all workers' steps touch together: the mean over all choices of k, in the simplest form."""
    touches = numpy.zeros(ROWS, int)
    for step in sets:
        for rows in step:
            touches[rows] += 1
    samples = len(sets) * len(sets[0])
    return sum(1 - math.comb(samples - int(c), k) / math.comb(samples, k) for c in touches if c)


def aligned(sets, k):
    """Returns the rows that aligned groups of k workers touch: the mean over groups and steps."""
    groups = [step[i : i + k] for step in sets for i in range(0, len(step) - k + 1, k)]
    return numpy.mean([len(set().union(*group)) for group in groups])


def grown(sets, k):
    """Extrapolates beyond a step's workers in proportion to the union over steps."""
    workers = len(sets[0])
    return aligned(sets, workers) * rarefied(sets, k) / rarefied(sets, workers)


@pytest.fixture
def sets():
    return drawn_sets(workers=8, steps=3)


@pytest.fixture
def trace(tmp_path, sets):
    return trace_of(tmp_path, sets)


def test_every_key_of_the_contract(run, trace):
    planned = plan(run, trace, *FAST)
    assert set(planned) == {"network", "workers", "crossovers", "provenance"}
    assert planned["network"] == {"latency_s": 1e-5, "rate_bps": 25e9}
    assert [each["n"] for each in planned["workers"]] == [2**i for i in range(1, 11)]
    for each in planned["workers"]:
        assert set(each) == {
            *("n", "best", "densification", "extrapolated", "densification_from_an_eighth", "theorem", "schemes"),
        }
        assert set(each["theorem"]) == {"balanced_s", "hierarchy_s"}
        seconds = [scheme["seconds"] for scheme in each["schemes"]]
        assert seconds == sorted(seconds) and seconds[0] > 0
        assert each["best"] == each["schemes"][0]["name"]
        assert {scheme["name"] for scheme in each["schemes"]} <= set(SCHEMES)
        assert {"balanced", "owned", "all_gather", "dense_ring"} <= {scheme["name"] for scheme in each["schemes"]}
        for scheme in each["schemes"]:
            assert set(scheme) == {"name", "pattern", "seconds", "bytes_busiest", "memory_bytes"}
            assert scheme["bytes_busiest"] > 0 and scheme["memory_bytes"] > 0
        assert each["extrapolated"] == (each["n"] > 8)
    assert planned["provenance"]["trace"] == trace


def test_the_union_matches_groups_and_grows_like_that_of_steps(run, trace, sets):
    planned = by_workers(plan(run, trace, *FAST, "--workers", "2,3,4,5,8,9,16,24"))
    for n, each in planned.items():  # 8 workers with 3 steps predict up to 24 workers without a fit
        expected = aligned(sets, n) if n <= 8 else grown(sets, n)
        assert each["densification"] == pytest.approx(expected / mean_rows(sets), rel=1e-9), n
    one_of_eight = [[step[0]] for step in sets]
    for n in (2, 3):  # from the three steps of one worker
        told = planned[n]["densification_from_an_eighth"]
        assert told == pytest.approx(grown(one_of_eight, n) / mean_rows(one_of_eight), rel=1e-9)


def test_up_to_the_traces_workers_densification_is_that_of_profile(run, trace):
    result = run("profile", trace, "--json", "-")
    (tensor,) = json.loads(result.stdout)["tensors"]
    planned = by_workers(plan(run, trace, *FAST, "--workers", "2..8"))
    for n in (2, 4, 8):
        assert planned[n]["densification"] == pytest.approx(tensor["densification"][str(n)], rel=1e-9)


def test_within_a_step_only_a_step_counts(run, tmp_path):
    # All workers touch the same rows in one step, and other rows in the next step.
    (planned,) = plan(run, trace_of(tmp_path, [[[0, 1]] * 4, [[2, 3]] * 4]), *FAST, "--workers", "4")["workers"]
    assert planned["densification"] == pytest.approx(1)


def test_beyond_the_trace_densification_grows_and_is_bounded(run, trace, sets):
    planned = by_workers(plan(run, trace, *FAST, "--workers", "2..65536"))
    told = [planned[2**i]["densification"] for i in range(1, 17)]
    assert told == sorted(told)
    most = ROWS / mean_rows(sets) * (1 + 1e-9)
    assert all(1 <= ratio <= min(2**i, most) for i, ratio in enumerate(told, 1))


def test_growth_of_real_data_is_predicted_from_an_eighth_of_its_workers(run, real_data):
    made = run(
        *("trace", "from-tokens", real_data / "lm1b_tokens.npy", "--rows", 793471, "--width", 32),
        *("--workers", 64, "--batch", 2494, "--out", "T"),
    )
    assert made.returncode == 0, made
    (at_64,) = plan(run, "T", *FAST, "--workers", "64")["workers"]
    assert not at_64["extrapolated"]
    tokens = numpy.load(real_data / "lm1b_tokens.npy").ravel()[: 64 * 2494].reshape(64, 2494)
    truth = len(numpy.unique(tokens)) / numpy.mean([len(numpy.unique(row)) for row in tokens])
    assert at_64["densification"] == pytest.approx(truth, rel=1e-9)
    assert at_64["densification_from_an_eighth"] == pytest.approx(truth, rel=0.1)


def test_the_theorem_is_its_formula(run, trace, sets):
    planned = by_workers(plan(run, trace, *FAST))
    seconds = mean_rows(sets) * (WIDTH * 4 + 4) * 8 / 25e9
    for n, each in planned.items():
        gamma = {k: planned[k]["densification"] for k in planned if k < n} | {1: 1}
        balanced = (n - 1) / n * (1 + each["densification"]) * seconds
        hierarchy = sum(gamma[2**i] for i in range(int(math.log2(n)))) * seconds
        assert each["theorem"]["balanced_s"] == pytest.approx(balanced, rel=1e-9)
        assert each["theorem"]["hierarchy_s"] == pytest.approx(hierarchy, rel=1e-9)


def test_bytes_are_those_that_compare_counts(run, tmp_path):
    trace = trace_of(tmp_path, drawn_sets(workers=8, steps=1))
    (at_8,) = plan(run, trace, *FAST, "--workers", "8")["workers"]
    told = {scheme["name"]: scheme for scheme in at_8["schemes"] if scheme["name"] in SCHEMES}
    _, counted = compare(run, trace)
    for name in ("dense_ring", "sparse_ps", "balanced", "balanced_hash", "block_ps", "owned"):
        # Costs are computed from sparsity statistics, not from the messages.
        assert told[name]["bytes_busiest"] == pytest.approx(counted[name]["bytes_busiest"], rel=0.15), name


def test_a_crossover_is_where_the_best_changes(run, trace):
    # With few bytes and a high start-up time the best scheme depends on the number of messages.
    link = ("--rate", "10gbit", "--latency", "20us")
    planned = plan(run, trace, *link, "--workers", "2..512")
    assert planned["crossovers"]
    for each in planned["crossovers"]:
        assert each["from"] != each["to"]
        around = by_workers(plan(run, trace, *link, "--workers", f"{each['n'] - 1},{each['n']}"))
        assert around[each["n"] - 1]["best"] == each["from"]
        assert around[each["n"]]["best"] == each["to"]
    changes = sum(a["best"] != b["best"] for a, b in itertools.pairwise(planned["workers"]))
    assert len(planned["crossovers"]) == changes


def test_a_rate_overrides_that_of_the_network(run, trace, tmp_path):
    fitted = {"latency_s": 1e-4, "rate_bps": 1e9, "ci": [[9e-5, 2e-4], [9e8, 2e9]]}
    loaded = {**fitted, "rate_bps": 9.5e8}
    network = {
        "links": {"inter": {**fitted, "loaded": loaded}, "intra": None},
        "host": {"encode_s_per_byte": 1e-6, "aggregate_s_per_byte": 0},
        "provenance": {},
    }
    (tmp_path / "N.json").write_text(json.dumps(network))
    planned = plan(run, trace, "--network", "N.json", "--workers", "8")
    assert planned["network"] == {"latency_s": 1e-4, "rate_bps": 9.5e8}, "plan uses the rate under load"
    assert planned["provenance"]["network"] == "N.json"
    with_rate = plan(run, trace, "--network", "N.json", "--rate", "1gbit", "--workers", "8")
    assert with_rate["network"] == {"latency_s": 0, "rate_bps": 1e9}
    # CPU costs are those of the file. Without the file every scheme is faster on the same link.
    without = plan(run, trace, "--rate", "1gbit", "--workers", "8")
    for a, b in zip(
        sorted(with_rate["workers"][0]["schemes"], key=lambda scheme: scheme["name"]),
        sorted(without["workers"][0]["schemes"], key=lambda scheme: scheme["name"]),
        strict=True,
    ):
        assert a["name"] == b["name"] and a["seconds"] > b["seconds"]


def test_memory_leaves_schemes_out(run, trace):
    (free,) = plan(run, trace, *FAST, "--workers", "8")["workers"]
    bound = sorted(scheme["memory_bytes"] for scheme in free["schemes"])[len(free["schemes"]) // 2]
    (bounded,) = plan(run, trace, *FAST, "--workers", "8", "--memory", int(bound))["workers"]
    assert {scheme["name"] for scheme in bounded["schemes"]} == {
        scheme["name"] for scheme in free["schemes"] if scheme["memory_bytes"] <= int(bound)
    }


def test_tables_have_a_column_for_each_number_of_workers(run, trace):
    result = run("plan", trace, *FAST, "--workers", "2..16")
    assert result.returncode == 0, result
    link, *tables, verdict = result.stdout.split("\n\n")
    assert "25.0 Gbit/s" in link and "extrapolated" in verdict
    for title, table in zip(("busiest worker", "workspace", "seconds"), tables, strict=True):
        header, rule, *rows = table.splitlines()
        assert header.startswith(title) and header.split()[-4:] == ["2", "4", "8", "16"] and set(rule) == {"-"}
        assert len({len(row.rstrip("*")) for row in rows}) == 1, "columns line up"
        bests = sum(cell.endswith("*") for row in rows for cell in row.split())
        assert bests == (4 if title == "seconds" else 0), "one best for each number of workers"
        assert {"balanced", "owned", "dense_ring"} <= {row.split()[0] for row in rows}
    assert rows[-3].startswith("theorem's optimum")
    assert "extrapolated" in result.stdout
    assert "extrapolated" not in run("plan", trace, *FAST, "--workers", "2..8").stdout


# Unusual traces: plan accepts each of them.


def finite(value):
    if isinstance(value, dict):
        return all(finite(each) for each in value.values())
    if isinstance(value, list):
        return all(finite(each) for each in value)
    return not isinstance(value, float) or (math.isfinite(value) and value >= 0)


@pytest.mark.parametrize(
    "sets",
    [
        [[[]]],
        [[[]] * 4] * 2,
        [[[0]]],
        [[[5, 7]] * 3],
        [[[1, 2, 3], [], [], []]],
        [[list(range(ROWS))] * 2],
    ],
    ids=["one_worker_no_row", "no_row", "one_row", "all_the_same", "one_of_four", "every_row"],
)
def test_odd_traces(run, tmp_path, sets):
    trace = trace_of(tmp_path, sets)
    planned = plan(run, trace, *FAST, "--workers", "2..256")
    assert finite(planned), planned
    assert all(each["schemes"] and each["densification"] >= 1 for each in planned["workers"])
    if sets == [[[5, 7]] * 3]:
        assert all(each["densification"] == pytest.approx(1) for each in planned["workers"])


def test_rows_beyond_two_to_the_31(run, tmp_path):
    far = {"name": "far", "rows": 2**33 + 5, "width": 4, "dtype": "f32"}
    trace = trace_of(tmp_path, [[[1, 2**33 + 4], [2**31, 2**32]]], tensor=far)
    planned = plan(run, trace, *FAST, "--workers", "2..64")
    assert finite(planned) and planned["workers"][0]["densification"] == pytest.approx(2)


# Bad input


@pytest.mark.parametrize(
    "words, parts",
    [
        ("plan T", ["--rate", "--network"]),
        ("plan nowhere --rate 1gbit", ["nowhere"]),
        ("plan T --rate 1gbit --workers 1..8", ["--workers", "2"]),
        ("plan T --rate 1gbit --workers 8..2", ["--workers 8..2", "2..1024"]),
        ("plan T --rate 1gbit --workers 2..99999", ["--workers", "65536"]),
        ("plan T --rate 1gbit --workers 2..", ["--workers"]),
        ("plan T --rate 1gbit --workers ,", ["--workers"]),
        ("plan T --rate 1gbit --workers many", ["--workers", "many"]),
        ("plan T --rate 0gbit", ["--rate"]),
        ("plan T --rate 5parsecs", ["--rate", "5parsecs"]),
        ("plan T --rate 1gbit --latency -3us", ["--latency"]),
        ("plan T --network nowhere.json", ["nowhere.json"]),
        ("plan T --rate 1gbit --json /nowhere/at/all.json", ["/nowhere/at/all.json"]),
        ("plan T --rate 1gbit more", ["more"]),
        ("plan --rate 1gbit", ["trace"]),
    ],
)
def test_bad_input_is_refused(refused, trace, words, parts):
    refused(*words.split(), parts=parts)


def test_help_has_an_example(run):
    result = run("plan", "--help")
    assert result.returncode == 0 and "Example" in result.stdout and "sparsesync plan" in result.stdout
