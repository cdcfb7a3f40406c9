"""Sessions with threads as workers: every scheme against NumPy's dense sum, types on the wire, announced rows, and resource use."""
# ctest: EMULATED SLOW auto


import numpy as np
import pytest
import sparsesync
from bindings_support import (
    DTYPES,
    LOCAL,
    OVER_MPI_ALONE,
    STORED,
    WORKERS,
    dense_sum,
    drawn_gradient,
    expect_written,
    numbers_of,
    outcomes_of,
    result_as_dense,
    rows_of,
    stored,
    synchronize,
    together,
)
from sparsesync import InputError, TensorSpec

# Every scheme


def bits(results):
    return [tuple(None if each is None else each.tobytes() for each in result) for result in results]


SHAPES = {
    "one table": lambda dtype: [TensorSpec("t", 40, 8, dtype)],
    "one element": lambda dtype: [TensorSpec("t", 1, 1, dtype)],
    "wide rows": lambda dtype: [TensorSpec("t", 3, 300, dtype)],
    "odd numbers": lambda dtype: [TensorSpec("t", 997, 3, dtype)],
    "several tensors": lambda dtype: [
        TensorSpec("a", 40, 8, dtype),
        TensorSpec("b", 1, 8, dtype),
        TensorSpec("c", 25, 1, "f32"),
        TensorSpec("d", 60, 8, dtype),
    ],
}


def expect_exact(random, workers, specs, scheme, steps=3, **options):
    """Runs steps with random gradients. Each result equals the dense sum, with the same bits on all workers."""
    forms = ("none", "nothing", "dense", "rows", "repeats", "full")
    drawn = [[[drawn_gradient(random, spec, forms) for spec in specs] for _ in range(workers)] for _ in range(steps)]
    drawn[-1] = [[None for _ in specs] for _ in range(workers)]  # a step in which no worker touches a row

    def work(session):
        bucket = session.register_bucket("bucket", specs, scheme, **options)
        seen = []
        for step in drawn:
            own = step[session.rank]
            rows = [rows_of(each, spec)[0] for each, spec in zip(own, specs, strict=True)]
            synchronize(session, bucket, own, rows if options.get("announce") else None)
            seen.append([result_as_dense(session, bucket, i, spec) for i, spec in enumerate(specs)])
        assert session.step == steps and session.choice(bucket)["scheme"] == scheme
        return seen

    of_workers = together(workers, work)
    for step in range(steps):
        for i, spec in enumerate(specs):
            expected = dense_sum([drawn[step][worker][i] for worker in range(workers)], spec)
            for seen in of_workers:
                np.testing.assert_array_equal(seen[step][i][0], expected, f"{spec.name} at step {step}")
        assert len({str(bits([result for _, result in seen[step]])) for seen in of_workers}) == 1, "the same bits"


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("scheme", LOCAL)
def test_every_scheme_makes_the_dense_sum(random, scheme, workers):
    for shape in SHAPES.values():
        expect_exact(random, workers, shape("f32"), scheme)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", LOCAL)
def test_every_scheme_sums_every_dtype(random, scheme, dtype):
    for name in ("several tensors", "odd numbers"):
        expect_exact(random, 3, SHAPES[name](dtype), scheme)


@pytest.mark.parametrize("scheme", LOCAL)
def test_every_scheme_in_rounds(random, scheme):
    expect_exact(random, 3, SHAPES["several tensors"]("f32"), scheme, rounds=3)


@pytest.mark.parametrize("scheme", [*LOCAL, "auto"])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_mean_is_the_sum_by_the_number_of_workers(scheme, workers):
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 10, 2)], scheme, reduction="mean")
        own = np.full((2, 2), 3.0 * (session.rank + 1), np.float32)
        synchronize(session, bucket, [(np.array([session.rank, 7]), own)])
        return result_as_dense(session, bucket, 0, TensorSpec("t", 10, 2))[0]

    expected = np.zeros((10, 2))
    expected[7] = 3 * (workers + 1) / 2
    expected[:workers] = (3 * np.arange(1, workers + 1) / workers)[:, None]
    seen = together(workers, work, trials=0)
    for each in seen:
        np.testing.assert_allclose(each, expected, rtol=1e-6)
        assert each.tobytes() == seen[0].tobytes()


HUGE = 2**33
ROW_SPARSE = ["all_gather", "balanced", "owned", "recursive_doubling", "sparse_ps", "split_all_gather"]


@pytest.mark.parametrize("scheme", LOCAL)
@pytest.mark.parametrize("rows", [2**24 + 3, 2**31 + 5, HUGE])
def test_rows_beyond_what_floats_and_narrow_integers_count(random, scheme, rows):
    """The result is exact, or all workers reject the bucket by the budget before anything is sent."""
    spec = TensorSpec("t", rows, 2)
    edges = np.array([0, 2**24 - 1, 2**24, 2**24 + 1, rows - 1, rows // 2])
    own = [(np.concatenate([random.permutation(edges), random.integers(0, rows, 5)]), None) for _ in range(3)]
    own = [(indices, stored(random.integers(1, 4, (11, 2)), "f32")) for indices, _ in own]

    def work(session):
        bucket = session.register_bucket("b", [spec], scheme)
        synchronize(session, bucket, [own[session.rank]])
        return session.result(bucket, 0)

    outcomes = outcomes_of(3, work, memory_bytes=64 << 20)
    if scheme not in ROW_SPARSE:
        errors = [outcome.error for outcome in outcomes]
        if any(errors):
            assert all(isinstance(error, sparsesync.BudgetError | sparsesync.RefusedError) for error in errors), errors
            return
    distinct, places = np.unique(np.concatenate([indices for indices, _ in own]), return_inverse=True)
    sums = np.zeros((len(distinct), 2), np.float32)
    np.add.at(sums, places, np.concatenate([values for _, values in own]))
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert np.array_equal(outcome.value[0], distinct) and np.array_equal(outcome.value[1], sums)


@pytest.mark.parametrize("scheme", OVER_MPI_ALONE)
def test_schemes_that_local_lacks_are_unsupported_on_all_workers(scheme):
    def work(session):
        with pytest.raises(sparsesync.UnsupportedError, match="over mpi"):
            session.register_bucket("b", [TensorSpec("t", 4, 2)], scheme)
        return session.register_bucket("b", [TensorSpec("t", 4, 2)], "owned")

    assert together(2, work) == [0, 0]


def test_auto_chooses_one_on_all_workers(random):
    specs = SHAPES["odd numbers"]("f32")
    drawn = [[drawn_gradient(random, specs[0]) for _ in range(2)] for _ in range(8)]

    def work(session):
        bucket = session.register_bucket("b", specs)
        before = session.choice(bucket)
        seen = []
        for step in drawn:
            synchronize(session, bucket, [step[session.rank]])
            seen.append(result_as_dense(session, bucket, 0, specs[0])[0])
        return before, session.choice(bucket), seen

    outcomes = together(2, work, trials=2)
    assert outcomes[0][0] == outcomes[1][0] and outcomes[0][0]["expected"] == []
    chosen = outcomes[0][1]
    assert chosen["scheme"] in LOCAL and outcomes[1][1]["scheme"] == chosen["scheme"]
    assert {each["scheme"] for each in chosen["expected"]} >= {"owned", "balanced", "dense_ring"}
    for each in chosen["expected"]:
        assert set(each) == {"scheme", "seconds", "bytes_busiest", "memory_bytes"}
    for _, _, seen in outcomes:
        for step, result in zip(drawn, seen, strict=True):
            np.testing.assert_array_equal(result, dense_sum(step, specs[0]))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("scheme", LOCAL)
def test_nan_and_infinity_are_sent(scheme, dtype):
    """All workers count them equally."""
    values = [[1, np.inf, 2, -0.0], [np.nan, -np.inf, 3, -0.0]]

    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 9, 4, dtype)], scheme)
        own = stored(np.array([values[session.rank]]), dtype)
        synchronize(session, bucket, [(np.array([5]), own)])
        out = np.empty((9, 4), STORED[dtype])
        session.write_dense(bucket, 0, out)
        expect_written()
        return numbers_of(out, dtype)[5], session.non_finite(bucket), session.use(bucket)["non_finite"]

    for seen, *counted in together(2, work):
        np.testing.assert_array_equal(seen, np.array([np.nan, np.nan, 5, 0], seen.dtype))
        assert counted == [2, 2]


# The type on the wire


@pytest.mark.parametrize("scheme", LOCAL)
@pytest.mark.parametrize(
    ("dtype", "wire"), [("f32", "bf16"), ("f64", "bf16"), ("f32", "f16"), ("f64", "f32"), ("f16", "f16")]
)
def test_a_narrower_type_on_the_wire_is_exact_for_numbers_that_it_can_represent(random, scheme, dtype, wire):
    expect_exact(random, 3, SHAPES["one table"](dtype), scheme, wire=wire)


def test_a_narrower_type_halves_the_values_and_reports_overflows():
    spec = TensorSpec("t", 1000, 16)
    values = np.ones((100, 16), np.float32)
    values[3, 5] = 60000  # two of them exceed f16

    def work(session):
        took = {}
        for wire in (None, "bf16", "f16"):
            bucket = session.register_bucket(str(wire), [spec], "all_gather", wire=wire)
            took[wire] = bucket
        for bucket in took.values():
            synchronize(session, bucket, [(np.arange(100), values)])
        for wire, bucket in took.items():
            took[wire] = session.use(bucket)
            took[wire]["result"] = session.result(bucket, 0)[1]
        return took

    for took in together(2, work):
        whole, half = (took[wire]["bytes_sent"] - took[wire]["index_bytes_sent"] for wire in (None, "bf16"))
        assert whole - half == 100 * 16 * 2
        assert {wire: each["non_finite"] for wire, each in took.items()} == {None: 0, "bf16": 0, "f16": 1}
        assert took[None]["result"][3, 5] == 120000
        assert took["bf16"]["result"][3, 5] == numbers_of(stored([120000.0], "bf16"), "bf16")[0]
        assert took["f16"]["result"][3, 5] == np.inf and took["f16"]["result"].dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "wire", "part"),
    [
        ("f32", "i32", "use f32, f16 or bf16"),
        ("i64", "bf16", "omit the wire type"),
        ("bf16", "f32", "not narrower"),
    ],
)
def test_invalid_wire_types_are_reported_on_all_workers(dtype, wire, part):
    def work(session):
        with pytest.raises(InputError, match=part):
            session.register_bucket("b", [TensorSpec("t", 4, 2, dtype)], wire=wire)
        return session.register_bucket("b", [TensorSpec("t", 4, 2, dtype)], "owned")

    assert together(2, work) == [0, 0]


# Announced rows


def announcing_schemes():
    def work(session):
        with pytest.raises(InputError, match="does not use announced rows") as told:
            session.register_bucket("b", [TensorSpec("t", 4, 2)], "dense_ring", announce=True)
        return str(told.value)

    (text,) = together(1, work)
    return [name for name in LOCAL if name in text.split("or use ")[1]]


@pytest.mark.parametrize("workers", WORKERS)
def test_announced_rows(random, workers):
    schemes = announcing_schemes()
    assert "owned" in schemes
    for scheme in schemes:
        expect_exact(random, workers, SHAPES["several tensors"]("f32"), scheme, announce=True)


def test_announced_rows_that_are_not_touched_are_zero_and_others_are_refused():
    spec = TensorSpec("table", 10, 2)

    def work(session):
        bucket = session.register_bucket("b", [spec], "owned", announce=True)
        one = np.ones((1, 2), np.float32)
        synchronize(session, bucket, [(np.array([3]), one)], [np.array([7, 3, 3])])
        first = result_as_dense(session, bucket, 0, spec)[0]
        # Worker 1 touches a row that it did not announce.
        session.announce(bucket, [np.array([2])])
        reduced = session.reduce(bucket, [(np.array([2 + session.rank]), one)])
        gathered = session.gather(bucket)
        own_error = InputError if session.rank == 1 else sparsesync.RefusedError
        with pytest.raises(own_error) as told:
            session.wait(reduced)
        with pytest.raises(own_error):
            session.wait(gathered)
        synchronize(session, bucket, [(np.array([9]), one)], [np.array([9])])
        return first, told.value, result_as_dense(session, bucket, 0, spec)[0]

    for rank, (first, error, last) in enumerate(together(2, work)):
        assert first[3].tolist() == [2, 2] and first.sum() == 4
        assert "table" in str(error) and "3" in str(error)
        assert rank == 1 or error.rank == 1
        assert last[9].tolist() == [2, 2] and last.sum() == 4


def test_only_an_announcing_bucket_announces():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 4, 2)], "owned")
        with pytest.raises(InputError, match="does not announce"):
            session.announce(bucket, [np.array([1])])
        synchronize(session, bucket, [None])

    together(2, work)


# Resource use


def test_counters_are_those_of_the_algorithm():
    """In a ring, each worker sends n - 1 parts of the tensor twice; every message has a header."""
    spec, header = TensorSpec("t", 60, 4), 32

    def work(session):
        bucket = session.register_bucket("b", [spec], "dense_ring")
        before = session.counters()
        synchronize(session, bucket, [np.ones((60, 4), np.float32)])
        once = session.use(bucket)
        synchronize(session, bucket, [None])
        return before, once, session.use(bucket), session.counters()

    for workers in WORKERS:
        for before, once, twice, after in together(workers, work):
            messages = 2 * (workers - 1)
            moved = messages * (60 * 4 * 4 // workers + header)
            for way in ("sent", "received"):
                assert once[f"messages_{way}"] == messages and once[f"bytes_{way}"] == moved
                assert twice[f"bytes_{way}"] == 2 * moved
                assert after[f"bytes_{way}"] - before[f"bytes_{way}"] == 2 * moved
            assert once["index_bytes_sent"] == 0 and twice["seconds"] >= once["seconds"] > 0
            assert set(once) == {*before, "seconds", "index_bytes_sent", "non_finite", "last"}


@pytest.mark.parametrize("scheme", LOCAL)
def test_sent_bytes_are_received(random, scheme):
    spec = TensorSpec("t", 300, 4)
    own = [drawn_gradient(random, spec) for _ in range(3)]

    def work(session):
        bucket = session.register_bucket("b", [spec], scheme)
        synchronize(session, bucket, [own[session.rank]])
        return session.use(bucket)

    used = together(3, work)
    for what in ("bytes", "messages"):
        assert sum(each[f"{what}_sent"] for each in used) == sum(each[f"{what}_received"] for each in used) > 0
    assert all(0 <= each["index_bytes_sent"] <= each["bytes_sent"] for each in used)


def test_statistics_during_a_step_are_those_before_it():
    spec = TensorSpec("t", 10, 2)

    def work(session):
        first = session.register_bucket("first", [spec], "owned")
        bucket = session.register_bucket("b", [spec], "all_gather")
        for each in (first, bucket):
            synchronize(session, each, [(np.array([1]), np.ones((1, 2), np.float32))])
        before = session.use(bucket), session.choice(bucket)
        ticket = session.reduce(bucket, [(np.array([1]), np.full((1, 2), np.nan, np.float32))])  # waits for the first bucket
        during = session.use(bucket), session.choice(bucket)
        synchronize(session, first, [None])
        session.wait(ticket)
        session.wait(session.gather(bucket))
        after = session.use(bucket)
        assert during == before and before[0]["non_finite"] == 0
        assert after["non_finite"] == 2 and after["messages_sent"] == 2 * before[0]["messages_sent"] > 0
        return session.choice(bucket)

    for told in together(2, work):
        assert told == {"scheme": "all_gather", "settled": True, "expected": []}


def test_steady_state_allocates_nothing(random):
    spec = TensorSpec("t", 1000, 8)

    def work(session):
        bucket = session.register_bucket("b", [spec], "balanced")
        own = np.arange(session.rank, 1000, 10), np.ones((100, 8), np.float32)
        for _ in range(3):
            synchronize(session, bucket, [own])
        before = session.allocations, session.memory_in_use
        for _ in range(5):
            synchronize(session, bucket, [own])
        assert before == (session.allocations, session.memory_in_use) and min(before) > 0

    together(3, work)


def test_a_budget_is_kept_and_reported_on_all_workers():
    def work(session):
        with pytest.raises(sparsesync.BudgetError if session.rank == 1 else sparsesync.RefusedError) as told:
            session.register_bucket("large", [TensorSpec("t", 10**6, 64)], "dense_ring")
        bucket = session.register_bucket("small", [TensorSpec("t", 10**6, 4)], "all_gather")
        many = np.arange(0, 10**6, 10) if session.rank == 1 else np.arange(3)
        reduced, gathered = (
            session.reduce(bucket, [(many, np.ones((len(many), 4), np.float32))]),
            session.gather(bucket),
        )
        errors = []
        for ticket in (reduced, gathered):
            try:
                session.wait(ticket)
            except sparsesync.Error as error:
                errors.append(error)
        assert session.rank != 1 or session.memory_in_use <= 1 << 20
        return told.value, errors

    outcomes = outcomes_of(3, work, memory_bytes=lambda rank: 1 << 20 if rank == 1 else None)
    for rank, outcome in enumerate(outcomes):
        told, errors = outcome.value
        assert isinstance(told, MemoryError if rank == 1 else sparsesync.RefusedError)
        assert rank == 1 or told.rank == 1
        assert errors and all(isinstance(error, sparsesync.Error) for error in errors)
