"""Tests `sparsesync profile`: every measure against a simple NumPy version, known figures of real data, and unusual traces."""

import fractions
import itertools
import json
import math
import subprocess

import pytest

numpy = pytest.importorskip("numpy")

from compare_support import NUMPY_TYPES, write_trace  # noqa: E402 - it imports numpy

BINS = 20
BLOCKS = [16, 64, 256, 1024, 4096]


def profile(run, trace, *options):
    result = run("profile", trace, "--json", "-", *options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def overlap(a, b):
    smaller = min(len(a), len(b))
    return fractions.Fraction(len(a & b), smaller) if smaller else fractions.Fraction(0)


def naive(tensor, sets, partitions, dense):
    """Computes all measures in the simplest form, from sets[step][worker] of rows and dense[step][worker], arrays of shape [rows,
    width].
    """
    rows, workers, steps = tensor["rows"], len(sets[0]), len(sets)
    flat = [rows_of for step in sets for rows_of in step]
    density = [len(rows_of) / rows for rows_of in flat]
    pairs = [overlap(a, b) for step in sets for a, b in itertools.combinations(step, 2)]
    bins = [min(int(ratio * BINS), BINS - 1) for ratio in pairs]
    powers = [2**i for i in range(20) if 2**i <= workers]

    def union_density(k):
        groups = [step[i : i + k] for step in sets for i in range(0, workers - k + 1, k)]
        return numpy.mean([len(set().union(*group)) / rows for group in groups])

    def skew(p):
        found = []
        for rows_of in flat:
            if rows_of:
                counts = numpy.bincount([row * p // rows for row in rows_of], minlength=p)
                found.append(counts.max() * p / len(rows_of))
        return numpy.mean(found) if found else 1.0

    def non_zero_blocks(block):
        block = min(block, rows * tensor["width"])
        found = []
        for step, worker in itertools.product(range(steps), range(workers)):
            element = numpy.zeros((rows, tensor["width"]), bool)
            element[sorted(sets[step][worker])] = True
            element = element.ravel()
            found.append(numpy.mean([element[i : i + block].any() for i in range(0, element.size, block)]))
        return numpy.mean(found)

    touches = numpy.zeros(rows, int)
    for rows_of in flat:
        touches[sorted(rows_of)] += 1
    order = sorted(range(rows), key=lambda row: (-touches[row], row))
    unions = [set().union(*step) for step in sets]
    histogram = {"0": int((touches == 0).sum())}
    for i in range(int(touches.max()).bit_length()):
        histogram[str(2**i)] = int(((touches >= 2**i) & (touches < 2 ** (i + 1))).sum())
    return {
        "row_density": {
            "mean": numpy.mean(density),
            "min": min(density),
            "max": max(density),
            "by_step": [numpy.mean([len(rows_of) / rows for rows_of in step]) for step in sets],
        },
        "density": numpy.mean([(numpy.nan_to_num(array, nan=1.0) != 0).mean() for step in dense for array in step]),
        "overlap": {
            "mean": float(sum(pairs) / len(pairs)) if pairs else 0,
            "stdev": numpy.std([float(ratio) for ratio in pairs]) if pairs else 0,
            "histogram": numpy.bincount(bins, minlength=BINS).tolist(),
            "pairs": len(pairs),
        },
        "densification": {
            str(k): union_density(k) / numpy.mean(density) if numpy.mean(density) > 0 else 1.0
            for k in sorted({*powers, workers})
        },
        "skewness": {str(p): skew(p) for p in partitions},
        "blocks": {str(block): non_zero_blocks(block) for block in BLOCKS},
        "hot_rows": [{"row": row, "share": touches[row] / touches.sum()} for row in order[:20] if touches[row] > 0],
        "drift": [
            0.0 if not union and not unions[0] else float(1 - overlap(union, unions[0]))
            for union in unions
        ],
        "touch_histogram": histogram,
    }


def assert_close(seen, wanted, where):
    if isinstance(wanted, dict):
        assert list(seen) == list(wanted), where
        for key, each in wanted.items():
            assert_close(seen[key], each, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(seen) == len(wanted), where
        for i, each in enumerate(wanted):
            assert_close(seen[i], each, f"{where}[{i}]")
    else:
        assert seen == pytest.approx(wanted, rel=1e-9, abs=1e-12), where


def assert_is_naive(run, folder, tensors, workers, steps, part, partitions=(8, 16, 64, 128)):
    """Compares profile with naive(). `part`(worker, step, tensor) returns indices and values (or None), and is called once for each."""
    parts = {
        (worker, step, tensor["name"]): part(worker, step, tensor)
        for tensor in tensors
        for step in range(steps)
        for worker in range(workers)
    }
    write_trace(folder, tensors, workers, steps, lambda w, s, tensor: parts[w, s, tensor["name"]])
    report = profile(run, folder, "--partitions", ",".join(map(str, partitions)))
    for tensor, seen in zip(tensors, report["tensors"], strict=True):
        assert (seen["name"], seen["workers"], seen["steps"]) == (tensor["name"], workers, steps)
        sets, dense = [], []
        for step in range(steps):
            sets.append([])
            dense.append([])
            for worker in range(workers):
                indices, values = parts[worker, step, tensor["name"]]
                sets[-1].append({int(row) for row in indices})
                array = numpy.zeros((tensor["rows"], tensor["width"]), NUMPY_TYPES[tensor["dtype"]])
                if values is None:
                    array[sorted(sets[-1][-1])] = 1
                else:
                    numpy.add.at(array, indices, values)
                dense[-1].append(array)
        for measure, wanted in naive(tensor, sets, partitions, dense).items():
            assert_close(seen[measure], wanted, f"{tensor['name']}.{measure}")
    return report


def tensor(name="t", rows=500, width=4, dtype="f32"):
    return {"name": name, "rows": rows, "width": width, "dtype": dtype}


@pytest.mark.parametrize("workers, steps", [(1, 1), (2, 3), (5, 2), (8, 4), (13, 2)])
@pytest.mark.parametrize("recorded", [False, True])
def test_every_measure_is_that_of_numpy(run, tmp_path, workers, steps, recorded):
    seed = numpy.random.SeedSequence().entropy
    print("seed", seed)
    random = numpy.random.default_rng(seed)
    tensors = [tensor("a"), tensor("b", rows=77, width=1, dtype="f64"), tensor("c", 1, 3), tensor("d", 300, 33)]

    def part(_worker, _step, of):
        count = int(random.integers(0, of["rows"] + 1)) if random.random() < 0.8 else 0
        rows = (random.zipf(1.3, count) * 7) % of["rows"] if random.random() < 0.7 else random.permutation(of["rows"])[:count]
        # Small whole numbers and many zeros: repeated rows may add up to zero.
        values = random.integers(-1, 2, (len(rows), of["width"])) if recorded else None
        return rows, values

    assert_is_naive(run, tmp_path / "T", tensors, workers, steps, part, partitions=(1, 2, 7, 64, 1000))


def test_a_nan_counts_and_a_negative_zero_does_not(run, tmp_path):
    def part(worker, _step, _tensor):
        values = numpy.zeros((3, 4), numpy.float32)
        values[0, 0] = numpy.nan
        values[1] = -0.0
        values[2, 3] = numpy.inf if worker else 1
        return [9, 4, 2], values

    report = assert_is_naive(run, tmp_path / "T", [tensor(rows=10)], 2, 1, part)
    assert report["tensors"][0]["density"] == 2 / 40


def test_gradients_without_a_row(run, tmp_path):
    report = assert_is_naive(run, tmp_path / "T", [tensor()], 3, 2, lambda *_: ([], None))
    (seen,) = report["tensors"]
    assert seen["zipf"] is None
    assert seen["hot_rows"] == []
    assert seen["overlap"]["mean"] == 0 and seen["overlap"]["pairs"] == 6
    assert set(seen["densification"].values()) == set(seen["skewness"].values()) == {1}
    text = run("profile", "T")
    assert text.returncode == 0 and "no row is touched" in text.stdout


def test_one_worker_and_one_step(run, tmp_path):
    report = assert_is_naive(run, tmp_path / "T", [tensor()], 1, 1, lambda *_: ([3, 1, 3], None))
    assert report["tensors"][0]["overlap"]["pairs"] == 0
    assert report["tensors"][0]["densification"] == {"1": 1}


def test_rows_of_any_width(run, tmp_path):
    wide = {"name": "wide", "rows": 1, "width": 2**58, "dtype": "f32"}
    write_trace(tmp_path / "T", [wide], 16, 1, lambda worker, step, tensor: ([0], None))
    (tensor,) = profile(run, "T")["tensors"]
    assert tensor["density"] == 1 and tensor["row_density"]["mean"] == 1


def test_rows_beyond_two_to_the_31(run, tmp_path):
    many = 2**40
    write_trace(tmp_path / "T", [tensor(rows=many, width=1)], 2, 2, lambda w, *_: ([0, 2**33 + w, many - 1], None))
    (seen,) = profile(run, "T", "--partitions", "2,1048576")["tensors"]
    assert seen["overlap"]["mean"] == pytest.approx(2 / 3)
    assert seen["densification"]["2"] == pytest.approx(4 / 3)
    assert seen["touch_histogram"] == {"0": many - 4, "1": 0, "2": 2, "4": 2}
    assert seen["skewness"]["2"] == pytest.approx(4 / 3)
    assert [each["row"] for each in seen["hot_rows"]] == [0, many - 1, 2**33, 2**33 + 1]


@pytest.mark.parametrize("s", [0.7, 1.1, 1.6])
def test_the_exponent_of_a_drawn_trace_is_found(run, tmp_path, s):
    drawn = ("--rows", 50_000, "--width", 1, "--density", 0.01, "--zipf", s, "--workers", 8, "--steps", 6)
    assert run("trace", "synthetic", *drawn, "--seed", 3, "--out", "T").returncode == 0
    zipf = profile(run, "T")["tensors"][0]["zipf"]
    low, high = zipf["ci"]
    assert low < zipf["s"] < high
    # Twice the half width of the interval: one trace in 10,000 would fail, and this trace is always the same.
    assert zipf["s"] - 2 * (zipf["s"] - low) < s < zipf["s"] + 2 * (high - zipf["s"])
    assert high - low < 0.1


def test_the_exponent_is_the_most_likely_one(run, tmp_path):
    """Maximizes the likelihood of docs/tools/profile.md over all ranks and a fine grid of exponents."""
    rows, workers, steps = 400, 4, 5
    drawn = ("--rows", rows, "--width", 1, "--density", 0.1, "--zipf", 1.0, "--workers", workers, "--steps", steps)
    assert run("trace", "synthetic", *drawn, "--seed", 1, "--out", "T").returncode == 0
    (seen,) = profile(run, "T")["tensors"]
    from compare_support import read_safetensors

    touches = numpy.zeros(rows, int)
    for path in (tmp_path / "T").glob("*.safetensors"):
        (indices,) = read_safetensors(path).values()
        touches[indices] += 1
    samples, ranks = workers * steps, numpy.arange(1, rows + 1)
    likelihoods, grid = [], numpy.arange(0.5, 1.6, 0.002)
    for s in grid:
        low, high = -30.0, 30.0
        for _ in range(60):
            scale = math.exp((low + high) / 2)
            expected = -numpy.expm1(-scale * ranks**-s).sum()
            low, high = ((low + high) / 2, high) if expected < touches.sum() / samples else (low, (low + high) / 2)
        p = -numpy.expm1(-scale * ranks**-s)
        of_count = [numpy.mean(p**c * (1 - p) ** (samples - c)) for c in range(samples + 1)]
        likelihoods.append(sum(math.log(of_count[c]) for c in touches))
    best = int(numpy.argmax(likelihoods))
    assert seen["zipf"]["s"] == pytest.approx(grid[best], abs=0.01)
    inside = grid[numpy.array(likelihoods) >= likelihoods[best] - 3.841 / 2]
    assert seen["zipf"]["ci"] == pytest.approx([inside[0], inside[-1]], abs=0.01)


# The figures in the README of the data, to its digits: row density, overlap, densification at 2, 4, 8, 16, skewness at 8, 16, 64, 128, and
# the union.
README = {
    "lm1b": ("0.1495%", 0.264, [1.737, 2.946, 4.819, 7.636], [7.8, 15.2, 53.6, 94.2], 9058),
    "criteo": ("3.05%", 0.312, [1.691, 2.815, 4.611, 7.435], [1.92, 2.52, 4.98, 7.72], 46541),
}


@pytest.mark.parametrize("kind", ["lm1b", "criteo"])
def test_real_data_has_what_its_readme_says(run, real_data, kind):
    words = {
        "lm1b": ("from-tokens", real_data / "lm1b_tokens.npy", "--rows", 793471, "--batch", 2560),
        "criteo": ("from-fields", real_data / "criteo_fields.npy", "--batch", 1024),
    }
    assert run("trace", *words[kind], "--width", 16, "--workers", 16, "--out", "T").returncode == 0
    (seen,) = profile(run, "T")["tensors"]
    density, overlap_mean, densification, skewness, union = README[kind]
    digits = len(density.split(".")[1]) - 1
    assert f"{100 * seen['row_density']['mean']:.{digits}f}%" == density
    assert f"{seen['overlap']['mean']:.3f}" == f"{overlap_mean:.3f}"
    for k, wanted in zip(("2", "4", "8", "16"), densification, strict=True):
        assert f"{seen['densification'][k]:.3f}" == f"{wanted:.3f}"
    for p, wanted in zip(("8", "16", "64", "128"), skewness, strict=True):
        digits = len(str(wanted).split(".")[1])
        assert f"{seen['skewness'][p]:.{digits}f}" == str(wanted)
    assert seen["rows"] - seen["touch_histogram"]["0"] == union


@pytest.mark.parametrize(
    "words, parts",
    [
        (("NOWHERE",), ["NOWHERE"]),
        (("T", "--partitions", "8,x"), ["--partitions", " x:"]),
        (("T", "--partitions", "0"), ["--partitions"]),
        (("T", "--json", "no/such/file"), ["no/such/file"]),
    ],
)
def test_bad_input_is_refused(run, refused, words, parts):
    assert run("trace", "synthetic", "--rows", 9, "--width", 1, "--density", 0.5, "--zipf", 1, "--workers", 2, "--out", "T").returncode == 0
    refused("profile", *words, parts=parts)


def test_a_file_that_is_cut_short_is_named(run, refused, tmp_path):
    write_trace(tmp_path / "T", [tensor()], 2, 2, lambda *_: ([1, 2], None))
    path = tmp_path / "T" / "w0001.s0001.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    refused("profile", "T", parts=["w0001.s0001.safetensors"])


def test_tables_name_each_tensor_on_one_line(run, tmp_path):
    write_trace(tmp_path / "T", [tensor("<script>\n"), tensor("b")], 2, 1, lambda *_: ([1, 2], None))
    result = run("profile", "T")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "2 workers, 1 step"
    assert any(line.startswith(r"<script>\x0a: 500 rows") for line in lines)
    assert any(line.startswith("b: 500 rows") for line in lines)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_standard_stream_that_is_closed_gets_nothing_from_files(run, program, tmp_path, closed):
    made = run(
        *("trace", "synthetic", "--rows", 100, "--width", 2, "--density", 0.1, "--zipf", 1, "--workers", 2, "--out", "T")
    )
    assert made.returncode == 0, made.stderr
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', program, "profile", "T", "--json", "x.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "x.json").read_text())["tensors"][0]["rows"] == 100
    assert bool(done.stdout) == ("1" not in closed)
    assert not done.stderr
