"""Shared by the tests of the bindings: sessions in threads, values of every type, and their exact sums in NumPy."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import sparsesync
from sparsesync import _native

ROOT = pathlib.Path(__file__).resolve().parents[2]

DEADLINE_S = 60.0  # for waits that a test expects to end; not waiting for a deadline
FOREVER_S = 300.0  # a test that is not over by then hangs
SHORT_S = 0.2  # for waits that a test expects to end at their deadline

# NumPy has no bf16, so bf16 values are stored as their bits.
STORED = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "i64": np.int64}
DTYPES = list(STORED)

# With SPARSESYNC_TEST_DEVICE=emulated sessions run on the emulated GPU, whose memory is NumPy's.
DEVICE = "cuda:0" if os.environ.get("SPARSESYNC_TEST_DEVICE") == "emulated" else "cpu"

SCHEMES = [name for name, _ in sparsesync.schemes()]
OVER_MPI_ALONE = ["dense_native"]
LOCAL = [name for name in SCHEMES if name not in OVER_MPI_ALONE]
WORKERS = [1, 2, 3, 5]


def stored(numbers, dtype):
    """Returns numbers as an array of the type `dtype`, rounded to nearest, ties to even."""
    numbers = np.asarray(numbers)
    if dtype != "bf16":
        return numbers.astype(STORED[dtype])
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), rounded).astype(np.uint16)


def numbers_of(array, dtype):
    """Returns the numbers of an array of type `dtype`: as f32 for f16 and bf16, unchanged for other types."""
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "f16" else array


def rows_of(gradient, spec):
    """Returns a gradient as indices and numbers [nnz, width]. A gradient is None, a dense array or a pair."""
    if gradient is None:
        return np.empty(0, np.int64), np.empty((0, spec.width), STORED[spec.dtype])
    if isinstance(gradient, tuple):
        return gradient[0], numbers_of(gradient[1], spec.dtype).reshape(-1, spec.width)
    return np.arange(spec.rows), numbers_of(gradient, spec.dtype).reshape(spec.rows, spec.width)


def dense_sum(gradients, spec):
    """Returns the dense sum of all workers' gradients. It is exact for small integers."""
    total = np.zeros((spec.rows, spec.width), np.int64 if spec.dtype in ("i32", "i64") else np.float64)
    for gradient in gradients:
        indices, values = rows_of(gradient, spec)
        np.add.at(total, indices, values.astype(total.dtype))
    return total


def tasks():
    """Returns the number of threads of this process, including those of C++."""
    return len(os.listdir("/proc/self/task"))


def expect_tasks(most):
    """Waits until the process has `most` threads, because a joined thread may stay visible for an instant."""
    until = time.monotonic() + FOREVER_S
    while tasks() > most:
        assert time.monotonic() < until, "threads are left"
        time.sleep(0.01)


class Outcome:
    """The result or exception of a worker's thread."""

    def __init__(self):
        self.value = None
        self.error = None


def run_threads(works):
    """Runs each function in a separate thread. Returns their outcomes in order."""
    outcomes = [Outcome() for _ in works]

    def run(outcome, work):
        try:
            outcome.value = work()
        except BaseException as error:  # passed on to the test
            outcome.error = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(outcomes, works, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FOREVER_S)
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    return outcomes


def outcomes_of(workers, work, *, network=None, **options):
    """Runs work(session) on each worker, in a thread. An option that is a function is called with each rank."""
    network = network or sparsesync.LocalNetwork(workers)

    def run(rank):
        own = {key: value(rank) if callable(value) else value for key, value in options.items()}
        with sparsesync.Session(network.join(rank), **{"deadline_s": DEADLINE_S, "device": DEVICE, **own}) as session:
            return work(session)

    return run_threads([lambda rank=rank: run(rank) for rank in range(workers)])


def together(workers, work, **options):
    """Does the same. Returns the results of all workers, or raises the most informative error."""
    outcomes = outcomes_of(workers, work, **options)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    # Errors that another worker caused say less, so they come last.
    errors.sort(key=lambda error: isinstance(error, sparsesync.PeerError))
    if errors:
        raise errors[0]
    return [outcome.value for outcome in outcomes]


def synchronize(session, bucket, gradients, rows=None):
    """Runs one whole step of one bucket. `rows`, if given, are announced first."""
    if rows is not None:
        session.announce(bucket, rows)
    reduced = session.reduce(bucket, gradients)
    gathered = session.gather(bucket)
    # In this order a step that exceeds a budget can start again.
    try:
        session.wait(gathered)
    finally:
        session.wait(reduced)


def package_folder():
    """Returns the folder of the package with its compiled module."""
    return pathlib.Path(_native.__file__).parent


def python_path():
    """Returns the PYTHONPATH of a test's program: the package, and the helpers of this folder."""
    return os.pathsep.join([str(package_folder().parent), str(pathlib.Path(__file__).resolve().parent)])


def python(script, *arguments, launcher=()):
    """Runs a script in another interpreter that finds the same package. `launcher` may start several of them."""
    environment = {**os.environ, "PYTHONPATH": str(package_folder().parent), "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(
        [*launcher, sys.executable, "-c", script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=FOREVER_S,
        check=False,
    )


def drawn_gradient(random, spec, forms=("none", "nothing", "dense", "rows", "repeats", "full")):
    """Returns a worker's gradient of small integers, in one of the given forms."""
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


def expect_written():
    """Waits for the stream that results are written in: the default stream, if none is given."""
    if DEVICE != "cpu":
        _native.emulated.synchronize(0)


def result_as_dense(session, bucket, tensor, spec):
    """Returns the result as numbers [rows, width]. Reads it in every possible form and checks that all are equal."""
    out = np.full((spec.rows, spec.width), 77, STORED[spec.dtype])
    session.write_dense(bucket, tensor, out)
    expect_written()
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
        expect_written()
        assert copied[0].tobytes() == indices.tobytes() and copied[1].tobytes() == values.tobytes()
    return numbers_of(out, spec.dtype), (result if isinstance(result, tuple) else (None, result))


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def one_line(error):
    assert isinstance(error, ValueError) and "\n" not in str(error) and len(str(error)) < 300, str(error)
    return str(error)
