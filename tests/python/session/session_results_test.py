"""Results of a session, and arrays that it reads in place."""
# ctest: LABELS quick EMULATED

import gc
import sys

import numpy as np
import pytest
import sparsesync
from bindings_support import (
    expect_written,
    python,
    synchronize,
    together,
)
from sparsesync import InputError, TensorSpec

# PendingResults


def test_a_result_is_valid_from_its_gather_to_the_next_step():
    spec = TensorSpec("t", 10, 2)

    def work(session):
        bucket = session.register_bucket("b", [spec], "owned")
        out = np.zeros((10, 2), np.float32)
        row, values = np.empty(1, np.int64), np.empty((1, 2), np.float32)
        reads = [
            lambda: session.result(bucket, 0),
            lambda: session.result_rows(bucket, 0),
            lambda: session.write_dense(bucket, 0, out),
            lambda: session.copy_result(bucket, 0, row, values),
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
        expect_written()
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
        expect_written()
        assert flat.reshape(10, 2)[[3, 5]].tolist() == [[1, 1], [1, 1]] and flat.sum() == 4
        session.copy_result(bucket, 0, rows, values)
        expect_written()
        assert rows.tolist() == [3, 5] and values.tolist() == [[1, 1], [1, 1]]
        dense = session.register_bucket("dense", [spec], "dense_ring")
        synchronize(session, bucket, [None])
        synchronize(session, dense, [np.ones((10, 2), np.float32)])
        assert session.result_rows(dense, 0) is None
        with pytest.raises(InputError, match="use write_dense"):
            session.copy_result(dense, 0, rows, values)

    together(1, work)


def test_squares_of_a_result_are_available_before_it_is_gathered():
    def work(session):
        values = np.arange(1, 21, dtype=np.float32).reshape(10, 2)
        tensors = [TensorSpec("t", 10, 2), TensorSpec("flag", 1, 3)]
        bucket = session.register_bucket("b", tensors, "dense_ring", "mean")
        own = np.full(1, -1.0)
        session.keep_squares(bucket, 1, own)
        with pytest.raises(sparsesync.ContractError, match="bucket 'b' has no squares"):
            session.has_squares(bucket)
        session.wait(session.reduce(bucket, [values, np.ones((1, 3), np.float32)]))
        assert session.has_squares(bucket)
        expect_written()
        before = own.copy()
        session.wait(session.gather(bucket))
        told = [np.frombuffer(each)[0] for each in session.all_gather(before.tobytes())]
        assert sum(told) == (values.astype(np.float64) ** 2).sum()
        assert all(told)

    together(3, work)


def test_unavailable_squares_are_refused():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 10, 2), TensorSpec("u", 5, 2), TensorSpec("i", 1, 1, "i32")], "balanced")
        one = np.zeros(1)
        for tensors, place, why in [
            (1, one, "'u' has the dtype and the width"),
            (3, one, "'i' has an integer dtype"),
            (4, one, "has 3 tensors, not 4"),
            (2, np.zeros(2), "give a sum of one float64"),
            (2, np.zeros(1, np.float32), "give a sum of one float64"),
        ]:
            with pytest.raises(InputError, match=why):
                session.keep_squares(bucket, tensors, place)
        session.keep_squares(bucket, 2, one)

    together(1, work)


def test_a_result_belongs_to_the_caller():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 10, 2)], "owned")
        for step in range(3):
            synchronize(session, bucket, [(np.array([step]), np.full((1, 2), step, np.float32))])
            rows, values = session.result(bucket, 0)
            assert rows.tolist() == [step] and values.tolist() == [[2 * step] * 2]
            rows[:], values[:] = -1, -1  # does not affect the session
        return rows, values

    for rows, values in together(2, work):
        assert rows.tolist() == [-1] and values.tolist() == [[-1, -1]], "also when the session is closed"


# Arguments are not copied, and are released


def test_gradients_are_read_in_place():
    """Values written to the arrays before their phase runs are sent. This shows that nothing was copied."""
    spec = TensorSpec("t", 10, 2)

    def work(session):
        first = session.register_bucket("first", [spec], "owned")
        sparse = session.register_bucket("sparse", [spec], "owned")
        dense = session.register_bucket("dense", [spec], "owned")
        rows, values, whole = np.array([1]), np.ones((1, 2), np.float32), np.zeros((10, 2), np.float32)
        # They wait for the first bucket.
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
        # A phase without a wait holds its arrays until the session is closed.
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
            np.full((1250, 4), 99, np.float32)  # takes memory that was freed
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
