"""The order of a session's phases, collective calls between steps, and invalid gradients."""
# ctest: LABELS quick EMULATED


import numpy as np
import pytest
import sparsesync
from bindings_support import LOCAL, SHORT_S, WORKERS, dense_sum, drawn_gradient, outcomes_of, result_as_dense, synchronize, together
from sparsesync import InputError, TensorSpec

# Order


def three_buckets(session):
    return [session.register_bucket(f"b{i}", [TensorSpec("t", 20, 2)], "balanced") for i in range(3)]


def test_phases_run_in_one_order_whatever_the_order_of_the_calls(random):
    drawn = [[drawn_gradient(random, TensorSpec("t", 20, 2)) for _ in range(3)] for _ in range(3)]
    orders = [[random.permutation(3) for _ in range(2)] for _ in range(3)]  # order of reduces and gathers for each worker

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
            # Waiting after each submission shows that no phase waits for a later one.
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


def test_invalid_orders():
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


def test_a_phase_that_is_never_submitted_is_reported():
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
    """An array that cannot be written in place is rejected; the broadcast does not write to a copy of it."""
    whole = np.zeros((4, 4))
    constant = np.zeros(4)
    constant.flags.writeable = False

    def work(session):
        for array in (whole[:, :2], whole[::2], whole.T[:2], constant, b"bytes", [0.0], None):
            with pytest.raises(InputError, match="^array: give a writable array"):
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


def test_agreement_names_the_difference_on_all_workers():
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
    "wire": ({"wire": "bf16"}, "unset on worker 0 and bf16 on worker 1"),
    "rounds": ({"rounds": 2}, "rounds is automatic on worker 0 and 2 on worker 1"),
    "more tensors": ({"more": True}, "tensors is 1 on worker 0 and 2 on worker 1"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_buckets_are_reported_on_all_workers(case):
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
        assert part in text and "\n" not in text and "use the same on all workers" in text
        assert bucket == 0 and result == [[3, 3]], "the session continues"


def test_different_seeds_are_reported():
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
        ([("t", 2**62, 2**62)], {}, "too large for a bucket"),
        ([("t", 1, 1), ("t", 1, 1)], {}, "empty or repeated"),
        ([("", 1, 1)], {}, "is empty"),
        ([("t", 1, 1)], {"scheme": "fast"}, "unknown scheme 'fast'"),
        ([("t", 1, 1)], {"reduction": "max"}, "no reduction 'max'"),
        ([("t", 1, 1, "i32")], {"reduction": "mean"}, "the mean of i32"),
        ([("t", 1, 1)], {"wire": "f8"}, "unknown dtype 'f8'"),
        ([("t", 1, 1)], {"rounds": 0}, "0 rounds"),
        ([("t", 1, 1)], {"rounds": -3}, "-3 rounds"),
    ],
)
def test_invalid_buckets(tensors, options, part):
    def work(session):
        with pytest.raises(InputError) as told:
            session.register_bucket("b", [TensorSpec(*each) for each in tensors], **options)
        assert part in str(told.value) and "\n" not in str(told.value)
        bucket = session.register_bucket("b", [TensorSpec("t", 1, 1)], "owned")
        synchronize(session, bucket, [None])

    together(2, work)


# Invalid gradients


TWO = [TensorSpec("first", 10, 2), TensorSpec("second", 5, 3, "bf16")]


def wrong_gradients():
    rows, values = np.array([1, 2]), np.ones((2, 2), np.float32)
    dense = np.zeros((10, 2), np.float32)
    yield "a gradient too few", [None], "1 arrays for 2 tensors"
    yield "a gradient too many", [None, None, None], "3 arrays for 2 tensors"
    first = {
        "another dtype": ((rows, values.astype(np.float64)), "values of f64, but f32 was registered"),
        "another dtype, dense": (dense.astype(np.float16), "values of f16, but f32 was registered"),
        "no dtype of ours": (dense.astype(np.int8), "not one of f32"),
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
    yield "bf16 as f16", [None, np.zeros((5, 3), np.float16)], "values of f16, but bf16 was registered"


@pytest.mark.parametrize(("gradients", "part"), [pytest.param(g, p, id=name) for name, g, p in wrong_gradients()])
def test_gradients_of_another_form_are_rejected_immediately(gradients, part):
    def work(session):
        bucket = session.register_bucket("b", TWO, "owned")
        with pytest.raises(InputError) as told:
            session.reduce(bucket, gradients)
        assert part in str(told.value) and "\n" not in str(told.value)
        assert "first" in str(told.value) or "second" in str(told.value) or "bucket 'b'" in str(told.value)
        synchronize(session, bucket, [None, np.ones((5, 3), np.uint16)])  # works as if nothing had happened

    together(1, work)


@pytest.mark.parametrize("scheme", LOCAL)
@pytest.mark.parametrize("index", [10, -1, 2**40, -(2**63)])
def test_an_index_outside_is_refused_on_all_workers_and_the_next_step_works(scheme, index):
    def work(session):
        bucket = session.register_bucket("b", TWO, scheme)
        wrong = (np.array([0, index if session.rank == 1 else 1]), np.ones((2, 2), np.float32))
        reduced, gathered = session.reduce(bucket, [wrong, None]), session.gather(bucket)
        own_error = InputError if session.rank == 1 else sparsesync.RefusedError
        with pytest.raises(own_error) as told:
            session.wait(reduced)
        with pytest.raises(own_error):
            session.wait(gathered)
        with pytest.raises(own_error):
            session.result(bucket, 0)
        synchronize(session, bucket, [(np.array([4]), np.ones((1, 2), np.float32)), None])
        return told.value, result_as_dense(session, bucket, 0, TWO[0])[0]

    for rank, (error, after) in enumerate(together(3, work)):
        assert f"tensor 'first': index {index} at position 1 is outside its 10 rows" in str(error)
        assert rank == 1 or (error.rank == 1 and isinstance(error, sparsesync.PeerError))
        assert after[4].tolist() == [3, 3] and after.sum() == 6


def test_failures_while_a_gradient_is_inspected_are_reported_and_harmless():
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


def test_calls_with_unknown_buckets_and_tickets():
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
