"""Sessions of workers that are threads: every scheme against NumPy's dense sum; what goes wrong is typed, on all."""

import gc
import os
import pathlib
import shutil
import signal
import sys
import threading
import time

import numpy as np
import pytest
import sparsesync
from bindings_support import (
    DEADLINE_S,
    DTYPES,
    FOREVER_S,
    STORED,
    dense_sum,
    numbers_of,
    outcomes_of,
    python,
    rows_of,
    run_threads,
    stored,
    synchronize,
    together,
)
from sparsesync import InputError, LocalNetwork, Session, TensorSpec

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMES = [name for name, _ in sparsesync.schemes()]
OVER_MPI_ALONE = ["dense_native"]
LOCAL = [name for name in SCHEMES if name not in OVER_MPI_ALONE]
SHORT_S = 0.2  # of waits that a test expects to end at their deadline
WORKERS = [1, 2, 3, 5]


def tasks():
    """Threads of this process, C++'s among them."""
    return len(os.listdir("/proc/self/task"))


def expect_tasks(most):
    """A thread that was joined may be seen for an instant."""
    until = time.monotonic() + FOREVER_S
    while tasks() > most:
        assert time.monotonic() < until, "threads are left"
        time.sleep(0.01)


# Every scheme


def drawn_gradient(random, spec, forms=("none", "nothing", "dense", "rows", "repeats", "full")):
    """A worker's gradient of small integers, in one of the forms that there are."""
    form = forms[random.integers(len(forms))]
    if form == "none":
        return None
    if form == "dense":
        kept = random.random(spec.rows) < 0.3
        return stored(random.integers(-3, 4, (spec.rows, spec.width)) * kept[:, None], spec.dtype)
    if form == "full":
        return stored(random.integers(1, 4, (spec.rows, spec.width)), spec.dtype)
    count = {"nothing": 0, "rows": min(spec.rows, 7), "repeats": 12}[form]
    if form == "rows":
        indices = random.choice(min(spec.rows, 10**6), count, replace=False).astype(np.int64)
        indices[:2] = np.unique([0, spec.rows - 1])[: len(indices[:2])] if count > 1 else indices[:2]
    else:
        indices = random.integers(0, spec.rows, count)
    return indices, stored(random.integers(-3, 4, (count, spec.width)), spec.dtype)


def result_as_dense(session, bucket, tensor, spec):
    """The result as numbers [rows, width], read in each of the ways that there are; all of them the same."""
    out = np.full((spec.rows, spec.width), 77, STORED[spec.dtype])
    session.write_dense(bucket, tensor, out)
    rows = session.result_rows(bucket, tensor)
    result = session.result(bucket, tensor)
    if rows is None:
        assert result.tobytes() == out.tobytes() and result.shape == out.shape
    else:
        indices, values = result
        assert (np.diff(indices) > 0).all() and len(indices) == rows and values.shape == (rows, spec.width)
        whole = np.zeros_like(out)
        whole[indices] = values
        assert np.array_equal(numbers_of(whole, spec.dtype), numbers_of(out, spec.dtype))
        copied = np.empty(rows, np.int64), np.empty((rows, spec.width), out.dtype)
        session.copy_result(bucket, tensor, *copied)
        assert copied[0].tobytes() == indices.tobytes() and copied[1].tobytes() == values.tobytes()
    return numbers_of(out, spec.dtype), (result if isinstance(result, tuple) else (None, result))


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
    """Steps of gradients that are drawn, each against the dense sum, on all workers bit by bit the same."""
    forms = ("none", "nothing", "dense", "rows", "repeats", "full")
    drawn = [[[drawn_gradient(random, spec, forms) for spec in specs] for _ in range(workers)] for _ in range(steps)]
    drawn[-1] = [[None for _ in specs] for _ in range(workers)]  # a step in which nobody touches anything

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
    """Exact, or refused by the budget of all before anything moves."""
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
def test_what_local_has_not_is_unsupported_on_all_workers(scheme):
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
def test_what_is_no_number_travels(scheme, dtype):
    """And is counted, alike on all workers."""
    values = [[1, np.inf, 2, -0.0], [np.nan, -np.inf, 3, -0.0]]

    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 9, 4, dtype)], scheme)
        own = stored(np.array([values[session.rank]]), dtype)
        synchronize(session, bucket, [(np.array([5]), own)])
        out = np.empty((9, 4), STORED[dtype])
        session.write_dense(bucket, 0, out)
        return numbers_of(out, dtype)[5], session.non_finite(bucket), session.use(bucket)["non_finite"]

    for seen, *counted in together(2, work):
        np.testing.assert_array_equal(seen, np.array([np.nan, np.nan, 5, 0], seen.dtype))
        assert counted == [2, 2]


# The type on the wire


@pytest.mark.parametrize("scheme", LOCAL)
@pytest.mark.parametrize(
    ("dtype", "wire"), [("f32", "bf16"), ("f64", "bf16"), ("f32", "f16"), ("f64", "f32"), ("f16", "f16")]
)
def test_a_narrower_type_on_the_wire_is_exact_where_it_holds_the_numbers(random, scheme, dtype, wire):
    expect_exact(random, 3, SHAPES["one table"](dtype), scheme, wire=wire)


def test_a_narrower_type_halves_the_values_and_tells_what_it_cannot_hold():
    spec = TensorSpec("t", 1000, 16)
    values = np.ones((100, 16), np.float32)
    values[3, 5] = 60000  # two of them are beyond f16

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
        ("i64", "bf16", "leave the wire type out"),
        ("bf16", "f32", "not narrower"),
    ],
)
def test_types_that_cannot_cross_are_told_on_all_workers(dtype, wire, part):
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
        with pytest.raises(InputError if session.rank == 1 else sparsesync.RefusedError) as told:
            session.wait(reduced)
        with pytest.raises(sparsesync.RefusedError):
            session.wait(gathered)
        synchronize(session, bucket, [(np.array([9]), one)], [np.array([9])])
        return first, told.value, result_as_dense(session, bucket, 0, spec)[0]

    for rank, (first, error, last) in enumerate(together(2, work)):
        assert first[3].tolist() == [2, 2] and first.sum() == 4
        assert "table" in str(error) and "3" in str(error)
        assert rank == 1 or error.rank == 1
        assert last[9].tolist() == [2, 2] and last.sum() == 4


def test_only_a_bucket_that_announces_does():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 4, 2)], "owned")
        with pytest.raises(InputError, match="does not announce"):
            session.announce(bucket, [np.array([1])])
        synchronize(session, bucket, [None])

    together(2, work)


# Order


def three_buckets(session):
    return [session.register_bucket(f"b{i}", [TensorSpec("t", 20, 2)], "balanced") for i in range(3)]


def test_phases_run_in_one_order_whatever_the_order_of_the_calls(random):
    drawn = [[drawn_gradient(random, TensorSpec("t", 20, 2)) for _ in range(3)] for _ in range(3)]
    orders = [[random.permutation(3) for _ in range(2)] for _ in range(3)]  # of reduces and gathers, by worker

    def work(session):
        buckets = three_buckets(session)
        reduces, gathers = orders[session.rank]
        tickets = [session.reduce(buckets[i], [drawn[session.rank][i]]) for i in reduces]
        tickets += [session.gather(buckets[i]) for i in gathers]
        for ticket in tickets:
            session.wait(ticket)
        return [result_as_dense(session, bucket, 0, TensorSpec("t", 20, 2))[0] for bucket in buckets]

    for seen in together(3, work):
        for i, result in enumerate(seen):
            expected = dense_sum([drawn[worker][i] for worker in range(3)], TensorSpec("t", 20, 2))
            np.testing.assert_array_equal(result, expected)


def test_an_order_that_is_set(random):
    def work(session):
        buckets = three_buckets(session)
        order = [(bucket, phase) for phase in ("reduce", "gather") for bucket in reversed(buckets)]
        session.set_order(order, session.step)
        for step in range(2):
            # Whoever waits after each submission shows that nothing waits for what stands later in the order.
            for bucket, phase in order:
                ones = np.full((1, 2), step + 1, np.float32)
                ticket = (
                    session.reduce(bucket, [(np.array([bucket]), ones)])
                    if phase == "reduce"
                    else session.gather(bucket)
                )
                session.wait(ticket)
            for bucket in buckets:
                indices, values = session.result(bucket, 0)
                assert indices.tolist() == [bucket] and values.tolist() == [[2 * (step + 1)] * 2]
        return session.step

    assert together(2, work) == [2, 2]


def test_orders_that_cannot_be_set():
    def work(session):
        buckets = three_buckets(session)
        whole = [(bucket, phase) for bucket in buckets for phase in ("reduce", "gather")]
        with pytest.raises(InputError, match="no phase 'push'"):
            session.set_order([(0, "push")], 0)
        with pytest.raises(InputError, match="no bucket 3"):
            session.set_order([(3, "reduce")], 0)
        for order, step in ((whole[1:], 0), (whole + whole[:1], 0), (whole[::-1], 0), (whole, -1)):
            with pytest.raises(InputError):
                session.set_order(order, step)
        with pytest.raises(sparsesync.AgreementError, match="entry 0") as told:
            session.set_order(whole if session.rank == 0 else whole[2:] + whole[:2], 0)
        session.set_order(whole, 5)
        return str(told.value)

    texts = together(2, work)
    assert texts[0] == texts[1] and "'b0'" in texts[0] and "'b1'" in texts[0]


def test_a_phase_that_is_never_submitted_is_told():
    def work(session):
        buckets = three_buckets(session)
        late = session.reduce(buckets[1], [None])
        with pytest.raises(sparsesync.OrderError, match="reduce") as told:
            session.wait(late)
        with pytest.raises(sparsesync.OrderError):
            session.reduce(buckets[0], [None])
        return str(told.value)

    for outcome in outcomes_of(1, work, deadline_s=SHORT_S):
        assert outcome.error is None, outcome.error
        assert "b0" in outcome.value and "submit every entry" in outcome.value


# Between steps


@pytest.mark.parametrize("workers", WORKERS)
def test_broadcast_overwrites_what_is_there(random, workers):
    arrays = [
        random.integers(0, 256, 3 << 20, np.uint8),
        np.arange(6.0).reshape(2, 3),
        np.array(7),
        np.empty((0, 3)),
        np.array([True]),
    ]

    def work(session):
        for root in range(session.size):
            for array in arrays:
                own = array.copy() if session.rank == root else np.zeros_like(array)
                where = own.ctypes.data
                session.broadcast(own, root)
                assert own.tobytes() == array.tobytes() and own.ctypes.data == where
        session.broadcast(own)

    together(workers, work)


def test_broadcast_writes_to_no_copy():
    """An array that cannot be written in place is refused, and not a copy of it written to."""
    whole = np.zeros((4, 4))
    constant = np.zeros(4)
    constant.flags.writeable = False

    def work(session):
        for array in (whole[:, :2], whole[::2], whole.T[:2], constant, b"bytes", [0.0], None):
            with pytest.raises(InputError, match="^array: give an array that can be written to"):
                session.broadcast(array)
        for root in (1, -1):
            with pytest.raises(InputError, match=f"no worker {root} among 1"):
                session.broadcast(np.zeros(4), root)

    together(1, work)


def test_broadcasts_of_different_sizes_end_the_session_on_all():
    def work(session):
        try:
            session.broadcast(np.zeros(8 + session.rank))
            session.barrier()
        except sparsesync.Error as error:
            return error
        return None

    errors = together(3, work)
    assert any(isinstance(error, sparsesync.ProtocolError) for error in errors)
    for error in errors:
        assert isinstance(error, sparsesync.ProtocolError | sparsesync.AbortedError | sparsesync.PeerLostError), errors


@pytest.mark.parametrize("workers", WORKERS)
def test_all_gather_keeps_every_byte(random, workers):
    given = [random.bytes(int(random.integers(0, 50))) + b"\0\xff" * rank for rank in range(workers)]
    given[0] = b""
    assert together(workers, lambda session: session.all_gather(given[session.rank])) == [given] * workers


def test_agreement_names_what_differs_and_both_sides_on_all():
    def work(session):
        session.agree("the model", [("layers", "3"), ("name", "x\ny:\0")])
        session.agree("nothing", [])
        with pytest.raises(sparsesync.AgreementError) as told:
            session.agree("the model", [("layers", "3"), ("width", "64" if session.rank != 2 else "32")])
        session.barrier()
        return str(told.value)

    texts = together(3, work)
    assert len(set(texts)) == 1
    assert "the model: width is 64 on worker 0 and 32 on worker 2" in texts[0]


DIFFERENT = {
    "rows": ({"rows": 11}, "tensor 'table': rows is 10 on worker 0 and 11 on worker 1"),
    "width": ({"width": 3}, "tensor 'table': width is 2 on worker 0 and 3 on worker 1"),
    "dtype": ({"dtype": "f16"}, "tensor 'table': dtype is f32 on worker 0 and f16 on worker 1"),
    "tensor": ({"tensor": "desk"}, "'table' on worker 0 and 'desk' on worker 1"),
    "name": ({"name": "other"}, "name is 'b' on worker 0 and 'other' on worker 1"),
    "scheme": ({"scheme": "owned"}, "scheme is balanced on worker 0 and owned on worker 1"),
    "reduction": ({"reduction": "mean"}, "reduction is sum on worker 0 and mean on worker 1"),
    "wire": ({"wire": "bf16"}, "own on worker 0 and bf16 on worker 1"),
    "rounds": ({"rounds": 2}, "rounds is 1 on worker 0 and 2 on worker 1"),
    "more tensors": ({"more": True}, "tensors is 1 on worker 0 and 2 on worker 1"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_buckets_that_differ_are_told_on_all_workers(case):
    different, part = DIFFERENT[case]

    def register(session, name="b", more=False, **options):
        shape = {"tensor": "table", "rows": 10, "width": 2, "dtype": "f32"}
        shape = [options.pop(key, value) for key, value in shape.items()]
        tensors = [TensorSpec(*shape)] + [TensorSpec("more", 1, 1)] * more
        return session.register_bucket(name, tensors, **{"scheme": "balanced", **options})

    def work(session):
        with pytest.raises(sparsesync.AgreementError) as told:
            register(session, **(different if session.rank == 1 else {}))
        bucket = register(session)
        synchronize(session, bucket, [(np.array([1]), np.ones((1, 2), np.float32))])
        return str(told.value), bucket, session.result(bucket, 0)[1].tolist()

    for text, bucket, result in together(3, work):
        assert part in text and "\n" not in text and "give all workers the same" in text
        assert bucket == 0 and result == [[3, 3]], "and the session goes on"


def test_seeds_that_differ_are_told():
    def work(session):
        with pytest.raises(sparsesync.AgreementError, match="seed is 0 on worker 0 and 1 on worker 1"):
            session.register_bucket("b", [TensorSpec("t", 4, 2)], "balanced")

    together(2, work, seed=lambda rank: rank)


@pytest.mark.parametrize(
    ("tensors", "options", "part"),
    [
        ([], {}, "has no tensors"),
        ([("t", 0, 1)], {}, "must be at least 1"),
        ([("t", 1, 0)], {}, "must be at least 1"),
        ([("t", -1, 1)], {}, "must be at least 1"),
        ([("t", 2**62, 2**62)], {}, "more bytes than can be counted"),
        ([("t", 1, 1), ("t", 1, 1)], {}, "stands twice"),
        ([("", 1, 1)], {}, "is empty"),
        ([("t", 1, 1)], {"scheme": "fast"}, "unknown scheme 'fast'"),
        ([("t", 1, 1)], {"reduction": "max"}, "no reduction 'max'"),
        ([("t", 1, 1, "i32")], {"reduction": "mean"}, "a mean of i32"),
        ([("t", 1, 1)], {"wire": "f8"}, "unknown dtype 'f8'"),
        ([("t", 1, 1)], {"rounds": 0}, "0 rounds"),
        ([("t", 1, 1)], {"rounds": -3}, "-3 rounds"),
    ],
)
def test_buckets_that_cannot_be(tensors, options, part):
    def work(session):
        with pytest.raises(InputError) as told:
            session.register_bucket("b", [TensorSpec(*each) for each in tensors], **options)
        assert part in str(told.value) and "\n" not in str(told.value)
        bucket = session.register_bucket("b", [TensorSpec("t", 1, 1)], "owned")
        synchronize(session, bucket, [None])

    together(2, work)


# Gradients that cannot be taken


TWO = [TensorSpec("first", 10, 2), TensorSpec("second", 5, 3, "bf16")]


def wrong_gradients():
    rows, values = np.array([1, 2]), np.ones((2, 2), np.float32)
    dense = np.zeros((10, 2), np.float32)
    yield "a gradient too few", [None], "1 arrays for 2 tensors"
    yield "a gradient too many", [None, None, None], "3 arrays for 2 tensors"
    first = {
        "another dtype": ((rows, values.astype(np.float64)), "values of f64 where f32 was registered"),
        "another dtype, dense": (dense.astype(np.float16), "values of f16 where f32 was registered"),
        "no dtype of ours": (dense.astype(np.int8), "none of f32"),
        "too few rows": (dense[:9], "not of 10 rows of 2"),
        "transposed": (np.zeros((2, 10), np.float32), "not of 10 rows of 2"),
        "rows and values differ": ((rows, values[:1]), "not of 2 rows of 2"),
        "values of another width": ((rows, np.ones((2, 3), np.float32)), "not of 2 rows of 2"),
        "values transposed": ((np.arange(4), np.ones((2, 4), np.float32)), "not of 4 rows of 2"),
        "indices of int32": ((rows.astype(np.int32), values), "indices: give an array of int64"),
        "indices of two dimensions": ((rows.reshape(1, 2), values), "indices: give an array of int64"),
        "every second index": ((np.arange(4)[::2], values), "indices: give an array of int64"),
        "values not in order": ((rows, np.ones((2, 2), np.float32).T[::-1]), "values: give an array"),
        "dense, not in order": (np.zeros((2, 10), np.float32).T, "give an array"),
        "one of a pair": ((rows,), "is (indices, values)"),
        "three of a pair": ((rows, values, values), "is (indices, values)"),
        "a pair in a list": ([rows, values], "give an array"),
        "a number": (3, "give an array"),
        "text": ("rows", "give an array"),
        "a value missing": ((rows, None), "values: give an array"),
    }
    for name, (gradient, part) in first.items():
        yield name, [gradient, None], part
    yield "bf16 as f16", [None, np.zeros((5, 3), np.float16)], "values of f16 where bf16 was registered"


@pytest.mark.parametrize(("gradients", "part"), [pytest.param(g, p, id=name) for name, g, p in wrong_gradients()])
def test_gradients_of_another_form_are_told_at_once(gradients, part):
    def work(session):
        bucket = session.register_bucket("b", TWO, "owned")
        with pytest.raises(InputError) as told:
            session.reduce(bucket, gradients)
        assert part in str(told.value) and "\n" not in str(told.value)
        assert "first" in str(told.value) or "second" in str(told.value) or "bucket 'b'" in str(told.value)
        synchronize(session, bucket, [None, np.ones((5, 3), np.uint16)])  # as if nothing had been

    together(1, work)


@pytest.mark.parametrize("scheme", LOCAL)
@pytest.mark.parametrize("index", [10, -1, 2**40, -(2**63)])
def test_an_index_outside_is_refused_on_all_workers_and_the_next_step_works(scheme, index):
    def work(session):
        bucket = session.register_bucket("b", TWO, scheme)
        wrong = (np.array([0, index if session.rank == 1 else 1]), np.ones((2, 2), np.float32))
        reduced, gathered = session.reduce(bucket, [wrong, None]), session.gather(bucket)
        with pytest.raises(InputError if session.rank == 1 else sparsesync.RefusedError) as told:
            session.wait(reduced)
        with pytest.raises(sparsesync.RefusedError):
            session.wait(gathered)
        with pytest.raises(sparsesync.RefusedError):
            session.result(bucket, 0)
        synchronize(session, bucket, [(np.array([4]), np.ones((1, 2), np.float32)), None])
        return told.value, result_as_dense(session, bucket, 0, TWO[0])[0]

    for rank, (error, after) in enumerate(together(3, work)):
        assert f"tensor 'first': index {index} at place 1 is outside its 10 rows" in str(error)
        assert rank == 1 or (error.rank == 1 and isinstance(error, sparsesync.PeerError))
        assert after[4].tolist() == [3, 3] and after.sum() == 6


def test_what_goes_wrong_while_a_gradient_is_looked_at_is_told_and_harms_nothing():
    class Broken:
        def __dlpack__(self, **options):
            raise ZeroDivisionError

        def __dlpack_device__(self):
            raise ZeroDivisionError

    class Unreadable(list):
        def __getitem__(self, place):
            raise LookupError("not today")

    def work(session):
        bucket = session.register_bucket("b", TWO, "owned")
        with pytest.raises(InputError, match="tensor 'first': give an array"):
            session.reduce(bucket, [Broken(), None])
        with pytest.raises((LookupError, InputError)):
            session.reduce(bucket, Unreadable([None, None]))
        with pytest.raises(InputError):
            session.reduce(bucket, np.zeros((2, 3)))
        synchronize(session, bucket, [None, None])

    together(1, work)


def test_calls_about_what_is_not_there():
    def work(session):
        bucket = session.register_bucket("b", TWO, "owned")
        for call in (
            lambda: session.reduce(1, [None, None]),
            lambda: session.gather(1),
            lambda: session.announce(1, [None, None]),
            lambda: session.result(1, 0),
            lambda: session.result_rows(1, 0),
            lambda: session.use(1),
            lambda: session.choice(1),
            lambda: session.non_finite(1),
        ):
            with pytest.raises(InputError, match="there is no bucket 1"):
                call()
        with pytest.raises(InputError, match="there is no bucket -1"):
            session.gather(-1)
        for tensor in (2, 2**40, -1):
            with pytest.raises(InputError, match=f"there is no tensor {tensor} in bucket 'b'"):
                session.result(bucket, tensor)
        for wrong in (2**64, 1.0, None, "b"):
            with pytest.raises(TypeError):
                session.gather(wrong)
        with pytest.raises(TypeError):
            session.reduce(bucket, None)
        with pytest.raises(TypeError):
            session.wait(None)

    together(1, work)


# Results


def test_a_result_is_there_from_its_gather_until_the_next_step():
    spec = TensorSpec("t", 10, 2)

    def work(session):
        bucket = session.register_bucket("b", [spec], "owned")
        out = np.zeros((10, 2), np.float32)
        reads = [
            lambda: session.result(bucket, 0),
            lambda: session.result_rows(bucket, 0),
            lambda: session.write_dense(bucket, 0, out),
            lambda: session.copy_result(bucket, 0, np.empty(1, np.int64), np.empty((1, 2), np.float32)),
        ]

        def none_is_there():
            for read in reads:
                with pytest.raises(sparsesync.ContractError, match="bucket 'b' has no result"):
                    read()

        none_is_there()
        reduced = session.reduce(bucket, [(np.array([3]), np.ones((1, 2), np.float32))])
        none_is_there()
        session.wait(reduced)
        none_is_there()
        session.wait(session.gather(bucket))
        for read in reads:
            read()
        assert out[3].tolist() == [2, 2]
        reduced = session.reduce(bucket, [None])
        none_is_there()
        session.wait(reduced)
        session.wait(session.gather(bucket))
        assert session.result_rows(bucket, 0) == 0

    together(2, work)


def test_results_go_only_where_they_fit():
    spec = TensorSpec("table", 10, 2)

    def work(session):
        bucket = session.register_bucket("b", [spec], "owned")
        synchronize(session, bucket, [(np.array([3, 5]), np.ones((2, 2), np.float32))])
        rows, values = np.empty(2, np.int64), np.empty((2, 2), np.float32)
        fixed = np.empty((2, 2), np.float32)
        fixed.flags.writeable = False
        for wrong in (
            (rows[:1], values),
            (np.empty(3, np.int64), values),
            (np.empty(4, np.int32), values),
            (np.empty((2, 1), np.int64), values),
            (np.empty(2, np.float64), values),
            (np.empty(4, np.int64)[::2], values),
            (rows, values[:1]),
            (rows, values.astype(np.int32)),
            (rows, np.empty((2, 4), np.float32)[:, ::2]),
            (rows, fixed),
            (None, values),
            (rows, None),
        ):
            with pytest.raises(InputError):
                session.copy_result(bucket, 0, *wrong)
        for wrong in (
            values,
            np.empty((2, 10), np.float32),
            np.empty((10, 2)),
            np.empty((10, 2), np.float32)[::-1],
            None,
        ):
            with pytest.raises(InputError, match="tensor 'table'"):
                session.write_dense(bucket, 0, wrong)
        flat = np.empty(20, np.float32)
        session.write_dense(bucket, 0, flat)
        assert flat.reshape(10, 2)[[3, 5]].tolist() == [[1, 1], [1, 1]] and flat.sum() == 4
        session.copy_result(bucket, 0, rows, values)
        assert rows.tolist() == [3, 5] and values.tolist() == [[1, 1], [1, 1]]
        dense = session.register_bucket("dense", [spec], "dense_ring")
        synchronize(session, bucket, [None])
        synchronize(session, dense, [np.ones((10, 2), np.float32)])
        assert session.result_rows(dense, 0) is None
        with pytest.raises(InputError, match="use write_dense"):
            session.copy_result(dense, 0, rows, values)

    together(1, work)


def test_a_result_is_the_callers_own():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 10, 2)], "owned")
        for step in range(3):
            synchronize(session, bucket, [(np.array([step]), np.full((1, 2), step, np.float32))])
            rows, values = session.result(bucket, 0)
            assert rows.tolist() == [step] and values.tolist() == [[2 * step] * 2]
            rows[:], values[:] = -1, -1  # of nobody's concern
        return rows, values

    for rows, values in together(2, work):
        assert rows.tolist() == [-1] and values.tolist() == [[-1, -1]], "also when the session is closed"


# What is given is not copied, and given back


def test_gradients_are_read_where_they_lie():
    """What is written to them before their turn comes is what crosses: only where nothing was copied."""
    spec = TensorSpec("t", 10, 2)

    def work(session):
        first = session.register_bucket("first", [spec], "owned")
        sparse = session.register_bucket("sparse", [spec], "owned")
        dense = session.register_bucket("dense", [spec], "owned")
        rows, values, whole = np.array([1]), np.ones((1, 2), np.float32), np.zeros((10, 2), np.float32)
        # They wait for the first bucket's.
        waiting = [session.reduce(sparse, [(rows, values)]), session.reduce(dense, [whole])]
        rows[0], values[:], whole[6] = 4, 5, 7
        session.reduce(first, [None])
        for ticket in [*waiting, *(session.gather(bucket) for bucket in (first, sparse, dense))]:
            session.wait(ticket)
        return [session.result(bucket, 0) for bucket in (sparse, dense)]

    for sparse, dense in together(2, work):
        assert sparse[0].tolist() == [4] and sparse[1].tolist() == [[10, 10]]
        assert dense[0].tolist() == [6] and dense[1].tolist() == [[14, 14]]


def test_arrays_are_held_while_a_phase_reads_them_and_not_longer():
    spec = TensorSpec("t", 10, 2)

    def work(session):
        first = session.register_bucket("first", [spec], "owned")
        bucket = session.register_bucket("b", [spec], "owned", announce=True)
        arrays = [np.array([1]), np.array([1]), np.ones((1, 2), np.float32)]
        free = [sys.getrefcount(each) for each in arrays]
        told = session.announce(bucket, [arrays[0]])
        reduced = session.reduce(bucket, [(arrays[1], arrays[2])])
        held = [sys.getrefcount(each) for each in arrays]
        synchronize(session, first, [None])
        session.wait(told)
        session.wait(reduced)
        after = [sys.getrefcount(each) for each in arrays]
        session.wait(session.gather(bucket))
        assert session.result(bucket, 0)[1].tolist() == [[1, 1]]
        # What nobody waits for is held until the session is closed.
        session.reduce(bucket, [(arrays[1], arrays[2])])
        return arrays, free, held, after

    ((arrays, free, held, after),) = together(1, work)
    assert all(one < other for one, other in zip(free, held, strict=True))
    assert after == free
    gc.collect()
    assert [sys.getrefcount(each) for each in arrays] == free, "closed"


def test_a_temporary_gradient_lives_as_long_as_it_is_read(random):
    spec = TensorSpec("t", 5000, 4)

    def work(session):
        buckets = [session.register_bucket(f"b{i}", [spec], "owned") for i in range(4)]
        tickets = []
        for bucket in reversed(buckets):  # the last one is read first
            tickets.append(
                session.reduce(bucket, [(np.arange(bucket, 5000, 4), np.full((1250, 4), bucket + 1, np.float32))])
            )
            gc.collect()
            np.full((1250, 4), 99, np.float32)  # takes memory that was given back
        tickets += [session.gather(bucket) for bucket in buckets]
        for ticket in tickets:
            session.wait(ticket)
        return [session.result(bucket, 0) for bucket in buckets]

    for seen in together(2, work):
        for i, (rows, values) in enumerate(seen):
            assert np.array_equal(rows, np.arange(i, 5000, 4)) and (values == 2 * (i + 1)).all()


GROWTH = """
import sys
import numpy as np, sparsesync
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
rows = (50 << 20) // 16
with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
    bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", rows, 16)], "owned")
    dense = np.full((rows, 16), 1, np.float32)
    dense.fill(0)
    dense[5] = 3
    before = peak()
    session.wait(session.reduce(bucket, [dense]))
    session.wait(session.gather(bucket))
    found, values = session.result(bucket, 0)
    assert found.tolist() == [5] and (values == 3).all()
    reduced = peak() - before
    session.write_dense(bucket, 0, dense)
    session.broadcast(dense)
    written = peak() - before
print(reduced, written, dense.nbytes)
"""


def test_large_gradients_are_not_copied():
    done = python(GROWTH)
    assert done.returncode == 0, done.stderr
    reduced, written, size = map(int, done.stdout.split())
    assert size == 200 << 20 and reduced < size // 2 and written < size // 2, (reduced, written)


# What it takes


def test_counters_are_those_of_the_algorithm():
    """A ring: each worker sends n - 1 parts of the tensor twice; every message has a header."""
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
            assert set(once) == {*before, "seconds", "index_bytes_sent", "non_finite"}


@pytest.mark.parametrize("scheme", LOCAL)
def test_what_is_sent_is_received(random, scheme):
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


def test_what_is_told_while_a_step_is_under_way_is_of_before_it():
    spec = TensorSpec("t", 10, 2)

    def work(session):
        first = session.register_bucket("first", [spec], "owned")
        bucket = session.register_bucket("b", [spec], "all_gather")
        for each in (first, bucket):
            synchronize(session, each, [(np.array([1]), np.ones((1, 2), np.float32))])
        before = session.use(bucket), session.choice(bucket)
        ticket = session.reduce(bucket, [(np.array([1]), np.full((1, 2), np.nan, np.float32))])  # waits for the first
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


def test_a_budget_is_kept_and_told_on_all_workers():
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


# Networks and transports


def test_an_end_of_a_network_is_given_once():
    network = LocalNetwork(2)
    end = network.join(1)
    assert (end.rank, end.size) == (1, 2)
    with pytest.raises(InputError, match="worker 1 has joined this network already"):
        network.join(1)
    for rank in (2, -1, 2**31 - 1):
        with pytest.raises(InputError, match=f"no worker {rank} in a network of 2"):
            network.join(rank)
    other = network.join(0)
    del network
    gc.collect()
    assert (other.rank, other.size) == (0, 2), "it keeps its network"
    del end, other
    gc.collect()


def test_a_transport_is_of_one_session():
    end = LocalNetwork(1).join(0)
    with Session(end) as session:
        assert (session.rank, session.size) == (0, 1)
        for call in (lambda: Session(end), lambda: end.rank, lambda: end.size):
            with pytest.raises(InputError, match="a session has this transport"):
                call()
    with pytest.raises(InputError, match="a session has this transport"):
        Session(end)


@pytest.mark.parametrize("workers", [0, -1, 1025, 2**31 - 1])
def test_networks_of_no_workers_or_too_many(workers):
    with pytest.raises(InputError, match="1 to 1024 are possible"):
        LocalNetwork(workers)


@pytest.mark.parametrize("rate", [0, -1, 0.5, float("nan"), float("inf"), -float("inf")])
def test_rates_that_are_none(rate):
    with pytest.raises(InputError, match="a rate of"):
        LocalNetwork(2, rate_bps=rate)


@pytest.mark.parametrize("latency", [-1e-9, float("nan"), float("inf"), 1e9])
def test_latencies_that_are_none(latency):
    with pytest.raises(InputError, match="a latency of"):
        LocalNetwork(2, latency_s=latency)


@pytest.mark.parametrize(
    "options",
    [
        *({"deadline_s": each} for each in (0, -1, float("nan"), float("inf"), -float("inf"), 1e300)),
        *({"threads": each} for each in (0, -1)),
        {"trials": -1},
        {"memory_bytes": -1},
    ],
)
def test_options_of_a_session_that_cannot_be(options):
    end = LocalNetwork(1).join(0)
    with pytest.raises(InputError) as told:
        Session(end, **options)
    assert "\n" not in str(told.value)
    with Session(end) as session:
        assert session.size == 1, "the transport is still there"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_bits_do_not_depend_on_threads(random, threads):
    rows = random.integers(0, 3000, (3, 4000))
    values = random.standard_normal((3, 4000, 8)).astype(np.float32)

    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 3000, 8)], "balanced")
        synchronize(session, bucket, [(rows[session.rank], values[session.rank])])
        return session.result(bucket, 0)[1].tobytes()

    assert together(3, work, threads=threads) == together(3, work)


def test_a_link_with_a_rate_and_a_latency_moves_the_same(random):
    expected = [np.full(1000, 3.0)]

    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 1000, 1)], "dense_ring")
        synchronize(session, bucket, [np.ones(1000, np.float32)])
        return [session.result(bucket, 0).ravel()]

    for seen in together(3, work, network=LocalNetwork(3, rate_bps=1e9, latency_s=1e-5)):
        np.testing.assert_array_equal(seen, expected)


# What goes wrong


CALLS = {
    "rank": lambda s: s.rank,
    "size": lambda s: s.size,
    "step": lambda s: s.step,
    "register_bucket": lambda s: s.register_bucket("b", [TensorSpec("t", 1, 1)]),
    "reduce": lambda s: s.reduce(0, [None]),
    "gather": lambda s: s.gather(0),
    "announce": lambda s: s.announce(0, [None]),
    "result": lambda s: s.result(0, 0),
    "result_rows": lambda s: s.result_rows(0, 0),
    "copy_result": lambda s: s.copy_result(0, 0, np.empty(0, np.int64), np.empty((0, 1), np.float32)),
    "write_dense": lambda s: s.write_dense(0, 0, np.empty(1, np.float32)),
    "barrier": lambda s: s.barrier(),
    "agree": lambda s: s.agree("x", []),
    "all_gather": lambda s: s.all_gather(b""),
    "broadcast": lambda s: s.broadcast(np.zeros(1)),
    "set_order": lambda s: s.set_order([], 0),
    "counters": lambda s: s.counters(),
    "use": lambda s: s.use(0),
    "choice": lambda s: s.choice(0),
    "non_finite": lambda s: s.non_finite(0),
}


def test_every_call_of_a_closed_session_is_told():
    with Session(LocalNetwork(1).join(0)) as session:
        bucket = session.register_bucket("b", [TensorSpec("t", 1, 1)], "owned")
        ticket = session.reduce(bucket, [None])
        session.wait(ticket)
        assert not session.closed
    assert session.closed
    session.close()  # again
    for name, call in {**CALLS, "wait": lambda s: s.wait(ticket)}.items():
        with pytest.raises(sparsesync.ClosedError, match="the Session is closed"):
            call(session)
            pytest.fail(name)
    public = {each for each in dir(Session) if not each.startswith("_")}
    assert public == {*CALLS, "wait", "close", "closed", "memory_in_use", "allocations"}, "all are tried"


def test_a_with_block_closes_and_lets_what_was_raised_through():
    def work(session):
        if session.rank == 1:
            raise ZeroDivisionError("mine")
        return session.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")

    outcomes = outcomes_of(3, work)
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    for rank in (0, 2):
        error = outcomes[rank].error
        assert isinstance(error, sparsesync.PeerLostError | sparsesync.AbortedError), error
        assert isinstance(error, sparsesync.PeerError) and error.rank in (0, 1, 2) and error.rank != rank
    assert any(isinstance(outcome.error, ConnectionError) and outcome.error.rank == 1 for outcome in outcomes)


@pytest.mark.parametrize("scheme", LOCAL)
def test_a_worker_that_leaves_within_a_step_is_told_to_the_others(scheme):
    spec = TensorSpec("t", 50, 4)

    def work(session):
        bucket = session.register_bucket("b", [spec], scheme)
        synchronize(session, bucket, [np.ones((50, 4), np.float32)])
        if session.rank == 2:
            session.barrier()
            return "left"
        with pytest.raises(sparsesync.Error) as told:
            session.barrier()  # one may be told here, by the other who is a step ahead
            synchronize(session, bucket, [np.ones((50, 4), np.float32)])
        with pytest.raises(type(told.value)):
            session.barrier()  # and from there on every call tells it
        return told.value

    *others, last = together(3, work)
    assert last == "left"
    assert all(isinstance(error, sparsesync.PeerLostError | sparsesync.AbortedError) for error in others), others
    assert any(isinstance(error, sparsesync.PeerLostError) and error.rank == 2 for error in others)
    assert all("worker 2" in str(error) for error in others)


def test_a_deadline_names_who_was_waited_for():
    gone = threading.Event()

    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 4, 1)], "all_gather")
        if session.rank == 1:
            gone.wait()  # until the others have given up
            with pytest.raises(sparsesync.AbortedError) as told:
                session.barrier()
            return told.value
        try:
            session.wait(session.reduce(bucket, [None]))
        except sparsesync.Error as error:
            return error
        finally:
            gone.set()
        return None

    errors = together(2, work, deadline_s=SHORT_S)
    assert isinstance(errors[0], sparsesync.DeadlineError) and isinstance(errors[0], TimeoutError)
    assert "worker 1" in str(errors[0])
    assert errors[1].rank == 0 and "worker 1" in str(errors[1]), "who ended it, and why"


def test_who_waits_for_a_session_that_another_thread_closes_is_told():
    session = Session(LocalNetwork(1).join(0))
    session.register_bucket("first", [TensorSpec("t", 4, 1)], "owned")
    bucket = session.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
    ticket = session.reduce(bucket, [np.ones(4, np.float32)])  # its turn never comes
    waits = threading.Barrier(4)

    def wait():
        waits.wait()
        with pytest.raises(sparsesync.ClosedError):
            session.wait(ticket)

    def close():
        waits.wait()
        session.close()
        return session.closed

    outcomes = run_threads([wait, wait, close, close])
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert [outcome.value for outcome in outcomes] == [None, None, True, True]


def test_what_another_thread_reads_is_there_until_it_has():
    spec = TensorSpec("t", 50_000, 8)
    session = Session(LocalNetwork(1).join(0))
    bucket = session.register_bucket("b", [spec], "owned")
    synchronize(session, bucket, [np.ones((50_000, 8), np.float32)])
    reads = threading.Barrier(4)

    def read(how):
        out = np.empty((50_000, 8), np.float32)
        rows = np.empty(50_000, np.int64)
        seen = 0
        while True:
            try:
                if how == "result":
                    out = session.result(bucket, 0)[1]
                elif how == "write_dense":
                    session.write_dense(bucket, 0, out)
                else:
                    session.copy_result(bucket, 0, rows, out)
            except sparsesync.ClosedError:
                return seen
            assert (out == 1).all()
            seen += 1
            if seen == 1:
                reads.wait()

    def close():
        reads.wait()
        session.close()

    outcomes = run_threads([lambda how=how: read(how) for how in ("result", "write_dense", "copy_result")] + [close])
    assert all(outcome.error is None for outcome in outcomes), [outcome.error for outcome in outcomes]
    assert all(outcome.value >= 1 for outcome in outcomes[:3])


def test_several_threads_wait_for_one_phase():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
        ticket = session.reduce(bucket, [np.ones(4, np.float32)])
        gathered = session.gather(bucket)
        outcomes = run_threads([lambda each=each: session.wait(each) for each in (ticket, gathered) * 3])
        assert all(outcome.error is None for outcome in outcomes)
        session.wait(ticket)  # what is over is over at once
        return session.result(bucket, 0)[1].ravel().tolist()

    assert together(2, work) == [[2, 2, 2, 2]] * 2


def test_a_ticket_is_of_its_session():
    with Session(LocalNetwork(1).join(0)) as one, Session(LocalNetwork(1).join(0)) as other:
        bucket = one.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
        ticket = one.reduce(bucket, [None])
        with pytest.raises(InputError, match="a ticket of another session"):
            other.wait(ticket)
        one.wait(ticket)


def test_control_c_ends_a_wait():
    with Session(LocalNetwork(1).join(0)) as session:
        session.register_bucket("first", [TensorSpec("t", 4, 1)], "owned")
        bucket = session.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
        ticket = session.reduce(bucket, [None])  # its turn does not come
        main = threading.main_thread().ident
        sender = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            sender.start()
            session.wait(ticket)
        sender.join()
        synchronize(session, 0, [None])
        session.wait(ticket)  # and nothing was lost


def test_waiting_lets_others_run():
    """A worker that kept the GIL would keep the others from coming, and wait until its deadline."""

    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 100, 4)], "balanced")
        for _ in range(20):
            session.barrier()
            synchronize(session, bucket, [np.ones((100, 4), np.float32)])
            session.all_gather(b"x")
            session.broadcast(np.zeros(10), session.step % session.size)
            session.agree("x", [("a", "b")])

    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e6)  # nobody is made to give it up
        together(3, work)
    finally:
        sys.setswitchinterval(interval)


def test_many_sessions_one_after_another():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 30, 4)], "balanced")
        synchronize(session, bucket, [np.ones((30, 4), np.float32)])
        return session.step

    before = tasks()
    for _ in range(20):
        assert together(3, work) == [1, 1, 1]
    expect_tasks(before)


def test_sessions_that_are_dropped_are_closed():
    before = tasks()
    for _ in range(5):
        session = Session(LocalNetwork(1).join(0))
        session.register_bucket("b", [TensorSpec("t", 30, 4)], "owned")
        cycle = [session]
        cycle.append(cycle)
    assert tasks() > before
    del session, cycle
    gc.collect()
    expect_tasks(before)


def test_random_steps_of_random_buckets(random):
    """Several buckets, submitted in any order, each worker in its own; some steps refused."""
    workers = 3
    shapes = [random.integers(1, (80, 20), (tensors, 2)).tolist() for tensors in (1, 2, 3)]
    specs = [[TensorSpec(f"t{i}", *shape) for i, shape in enumerate(tensors)] for tensors in shapes]
    schemes = [LOCAL[i] for i in random.integers(0, len(LOCAL), 3)]
    steps = 12
    drawn = [
        [[[drawn_gradient(random, spec) for spec in tensors] for tensors in specs] for _ in range(workers)]
        for _ in range(steps)
    ]  # by step, worker, bucket, tensor
    refused = {(int(s), int(b)): int(random.integers(workers)) for s, b in random.integers(0, (steps, 3), (5, 2))}
    orders = random.permuted(np.tile(np.arange(3), (steps, workers, 2, 1)), axis=-1)
    print(schemes, specs)

    def work(session):
        buckets = [session.register_bucket(f"b{i}", tensors, schemes[i]) for i, tensors in enumerate(specs)]
        for step in range(steps):
            reduces, gathers = orders[step, session.rank]
            tickets = {}
            for i in reduces:
                own = list(drawn[step][session.rank][i])
                if refused.get((step, i)) == session.rank:
                    own[0] = (np.array([specs[i][0].rows]), np.ones((1, specs[i][0].width), np.float32))
                tickets[i] = [session.reduce(buckets[i], own)]
            for i in gathers:
                tickets[i].append(session.gather(buckets[i]))
            for i, (reduced, gathered) in tickets.items():
                if (step, i) not in refused:
                    session.wait(reduced)
                    session.wait(gathered)
                    continue
                with pytest.raises(InputError if refused[step, i] == session.rank else sparsesync.RefusedError):
                    session.wait(reduced)
                with pytest.raises(sparsesync.RefusedError):
                    session.wait(gathered)
            for i, tensors in enumerate(specs):
                for place, spec in enumerate(tensors):
                    if (step, i) in refused:
                        continue
                    expected = dense_sum([drawn[step][worker][i][place] for worker in range(workers)], spec)
                    seen = result_as_dense(session, buckets[i], place, spec)[0]
                    np.testing.assert_array_equal(seen, expected)
        return session.step

    assert together(workers, work) == [steps] * workers


# Other processes, and the end of this one


FORKED = """
import gc, os, sys, threading
import numpy as np, sparsesync
network = sparsesync.LocalNetwork(3)
left = network.join(2)
sessions = [sparsesync.Session(network.join(rank), deadline_s=60) for rank in range(2)]
alone = sparsesync.Session(sparsesync.LocalNetwork(1).join(0))
bucket = alone.register_bucket("b", [sparsesync.TensorSpec("t", 4, 1)], "owned")
alone.wait(alone.reduce(bucket, [None]))
waits = threading.Thread(target=sessions[0].barrier, daemon=True)  # its thread is at work when the fork comes
waits.start()
child = os.fork()
if child == 0:
    told = []
    for call in (
        lambda: alone.rank,
        lambda: alone.gather(bucket),
        lambda: alone.barrier(),
        lambda: sessions[0].barrier(),
        lambda: sessions[1].all_gather(b""),
        lambda: left.rank,
        lambda: sparsesync.Session(left),
        lambda: network.join(2),
    ):
        try:
            call()
        except sparsesync.ClosedError as error:
            told.append(str(error))
    assert len(told) == 8, told
    assert all(f"forked from {os.getppid()}" in text and "make another one here" in text for text in told), told
    # One of its own works.
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as own:
        b = own.register_bucket("b", [sparsesync.TensorSpec("t", 4, 1)], "owned")
        own.wait(own.reduce(b, [np.ones(4, np.float32)]))
        own.wait(own.gather(b))
        assert own.result(b, 0)[1].ravel().tolist() == [1, 1, 1, 1]
    if sys.argv[1] == "closes":
        for session in (*sessions, alone):
            session.close()
    if sys.argv[1] != "leaves":
        del session, left, network, sessions, alone, call
        gc.collect()
    sys.exit(5)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
# The parent goes on.
alone.wait(alone.gather(bucket))
assert alone.result_rows(bucket, 0) == 0
left = sparsesync.Session(left)
more = [threading.Thread(target=each.barrier) for each in (sessions[1], left)]
for each in more: each.start()
for each in (waits, *more): each.join()
print("done")
"""


@pytest.mark.parametrize("child", ["closes", "drops", "leaves"])
def test_a_forked_process_is_told_and_ends(child):
    script = FORKED.replace("del session, left", "del left") if child == "drops" else FORKED
    done = python(script, child)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


ENDS = {
    "open sessions": "sessions = make(2)",
    "open sessions with a bucket": """
sessions = make(1)
sessions[0].register_bucket("b", [sparsesync.TensorSpec("t", 4, 1)])
""",
    "a phase that never runs": """
session = make(1)[0]
for name in "ab":
    session.register_bucket(name, [sparsesync.TensorSpec("t", 4, 1)], "owned")
ticket = session.reduce(1, [np.ones(4, np.float32)])
""",
    "a session in a cycle": "cycle = [*make(1)]; cycle.append(cycle); del cycle",
    "a session that a module holds": "sys.modules['sparsesync'].kept = make(1)",
    "a transport": "end = sparsesync.LocalNetwork(2).join(1)",
    "a daemon thread that waits": """
session = make(1)[0]
for name in "ab":
    session.register_bucket(name, [sparsesync.TensorSpec("t", 4, 1)], "owned")
ticket = session.reduce(1, [None])
def wait():
    ready.release()
    try:
        session.wait(ticket)
    except sparsesync.ClosedError:
        pass
ready = threading.Semaphore(0)
threading.Thread(target=wait, daemon=True).start()
ready.acquire()
""",
    "an exception": "sessions = make(2); raise SystemExit(0)",
    "a trace that is not committed": """
tensors = [sparsesync.TensorSpec("t", 4, 1)]
writer = sparsesync.TraceWriter(sys.argv[1] + "/T", tensors, 1, 1)
""",
}


@pytest.mark.parametrize("case", ENDS)
def test_a_process_ends_with_all_that_is_open(case, tmp_path):
    script = """
import sys, threading
import numpy as np, sparsesync
def make(workers):
    network = sparsesync.LocalNetwork(workers)
    return [sparsesync.Session(network.join(rank)) for rank in range(workers)]
"""
    done = python(script + ENDS[case], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_process_ends_in_time_when_its_workers_wait_for_each_other():
    """They are closed one after another: who is closed is lost to the others."""
    script = f"""
import threading, sparsesync
network = sparsesync.LocalNetwork(2)
sessions = [sparsesync.Session(network.join(rank), deadline_s={DEADLINE_S}) for rank in range(2)]
def work(session):
    bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", 4, 1)], "all_gather")
    if session.rank == 0:
        session.reduce(bucket, [None])
threads = [threading.Thread(target=work, args=[each]) for each in sessions]
for each in threads: each.start()
for each in threads: each.join()
sessions.reverse()  # the one that nobody waits for goes first
while sessions: sessions.pop(0).close()
print("done")
"""
    done = python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# The same over MPI: whatever is left open, in whatever order it goes

OVER_MPI = """
import gc, os, sys
import numpy as np, sparsesync
world = sparsesync.MpiWorld(deadline_s=60)
session = sparsesync.Session(world.join(), deadline_s=60)
assert (session.rank, session.size) == (world.rank, world.size) and world.size == 2
spec = sparsesync.TensorSpec("t", 10, 2)
buckets = [session.register_bucket(scheme, [spec], scheme) for scheme in ("owned", "dense_native")]
gradients = [(np.array([3]), np.ones((1, 2), np.float32)), np.ones((10, 2), np.float32)]
tickets = [session.reduce(bucket, [gradient]) for bucket, gradient in zip(buckets, gradients)]
for ticket in tickets + [session.gather(bucket) for bucket in buckets]:
    session.wait(ticket)
assert session.result(buckets[0], 0)[1].tolist() == [[2, 2]] and (session.result(buckets[1], 0) == 2).all()
"""
OVER_MPI_ENDS = {
    "all is open": "",
    "the world first": """
world.close()
try:
    world.rank
    raise SystemExit("not closed")
except sparsesync.ClosedError as error:
    assert str(error) == "the MpiWorld is closed"
session.barrier()
session.close()
""",
    "the world is dropped first": "del world; gc.collect(); session.barrier(); del session; gc.collect()",
    "a with block": """
session.close()
with world:
    pass
""",
    "a second network": "other = sparsesync.Session(world.join(), deadline_s=60); other.barrier()",
    "a transport that no session took": "end = world.join(); del end; gc.collect()",
    "a forked child": """
child = os.fork()
if child == 0:
    for call in (lambda: world.rank, lambda: session.barrier(), lambda: world.join()):
        try:
            call()
            os._exit(3)
        except sparsesync.ClosedError as error:
            assert "forked from" in str(error)
    world.close()
    session.close()
    del world, session
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
session.barrier()
""",
}


@pytest.mark.parametrize("case", OVER_MPI_ENDS)
def test_over_mpi_a_process_ends_with_all_that_is_open(case):
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    script = OVER_MPI + OVER_MPI_ENDS[case] + "\nprint('done ', end='')\n"
    done = python(script, launcher=[str(ROOT / "cmake" / "mpirun.sh"), "-np", "2"])
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["done"] * 2, "")
