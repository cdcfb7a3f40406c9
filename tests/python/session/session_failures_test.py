"""Networks, transports, and failures of a session: typed errors on all workers."""
# ctest: EMULATED

import gc
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import sparsesync
from bindings_support import (
    LOCAL,
    dense_sum,
    drawn_gradient,
    expect_tasks,
    outcomes_of,
    result_as_dense,
    run_threads,
    synchronize,
    tasks,
    together,
)
from sparsesync import InputError, LocalNetwork, Session, TensorSpec

# Networks and transports


def test_an_end_of_a_network_is_given_once():
    network = LocalNetwork(2)
    end = network.join(1)
    assert (end.rank, end.size, end.nodes) == (1, 2, [0, 0])
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
        for call in (lambda: Session(end), lambda: end.rank, lambda: end.size, lambda: end.nodes):
            with pytest.raises(InputError, match="a session owns this transport"):
                call()
    with pytest.raises(InputError, match="a session owns this transport"):
        Session(end)


@pytest.mark.parametrize("workers", [0, -1, 1025, 2**31 - 1])
def test_networks_of_no_workers_or_too_many(workers):
    with pytest.raises(InputError, match="give 1 to 1024"):
        LocalNetwork(workers)


@pytest.mark.parametrize("rate", [0, -1, 0.5, float("nan"), float("inf"), -float("inf")])
def test_invalid_rates(rate):
    with pytest.raises(InputError, match="a rate of"):
        LocalNetwork(2, rate_bps=rate)


@pytest.mark.parametrize("latency", [-1e-9, float("nan"), float("inf"), 1e9])
def test_invalid_latencies(latency):
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
def test_invalid_options_of_a_session(options):
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


# Failures


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
    "release_bucket": lambda s: s.release_bucket(0),
    "observed": lambda s: s.observed(0),
    "keep_squares": lambda s: s.keep_squares(0, 1, np.zeros(1)),
    "has_squares": lambda s: s.has_squares(0),
}


def test_every_call_of_a_closed_session_is_an_error():
    with Session(LocalNetwork(1).join(0)) as session:
        bucket = session.register_bucket("b", [TensorSpec("t", 1, 1)], "owned")
        ticket = session.reduce(bucket, [None])
        session.wait(ticket)
        assert not session.closed
    assert session.closed
    session.close()  # a second time
    for name, call in {**CALLS, "wait": lambda s: s.wait(ticket)}.items():
        with pytest.raises(sparsesync.ClosedError, match="the Session is closed"):
            call(session)
            pytest.fail(name)
    public = {each for each in dir(Session) if not each.startswith("_")}
    told = {"closed", "device", "allocations", "memory_in_use", "memory_high_water", "pinned_in_use", "pinned_high_water"}
    assert public == {*CALLS, "wait", "close", *told}, "all are tried"


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
def test_a_worker_that_leaves_within_a_step_is_reported_to_the_others(scheme):
    spec = TensorSpec("t", 50, 4)

    def work(session):
        bucket = session.register_bucket("b", [spec], scheme)
        synchronize(session, bucket, [np.ones((50, 4), np.float32)])
        if session.rank == 2:
            session.barrier()
            return "left"
        with pytest.raises(sparsesync.Error) as told:
            session.barrier()  # a worker that is a step ahead may report the error here
            synchronize(session, bucket, [np.ones((50, 4), np.float32)])
        with pytest.raises(type(told.value)):
            session.barrier()  # from here on every call reports it
        return told.value

    *others, last = together(3, work)
    assert last == "left"
    assert all(isinstance(error, sparsesync.PeerLostError | sparsesync.AbortedError) for error in others), others
    assert any(isinstance(error, sparsesync.PeerLostError) and error.rank == 2 for error in others)
    assert all("worker 2" in str(error) for error in others)


def test_a_deadline_names_the_missing_worker():
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

    errors = together(2, work, deadline_s=2)  # also the deadline of registration
    assert isinstance(errors[0], sparsesync.DeadlineError) and isinstance(errors[0], TimeoutError)
    assert "worker 1" in str(errors[0])
    assert errors[1].rank == 0 and "worker 1" in str(errors[1]), "the error names the worker and the reason"


def test_waiting_for_a_session_that_another_thread_closes_is_an_error():
    session = Session(LocalNetwork(1).join(0))
    session.register_bucket("first", [TensorSpec("t", 4, 1)], "owned")
    bucket = session.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
    ticket = session.reduce(bucket, [np.ones(4, np.float32)])  # never runs
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


def test_a_result_stays_while_another_thread_reads_it():
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
        session.wait(ticket)  # the result of a finished phase is returned immediately
        return session.result(bucket, 0)[1].ravel().tolist()

    assert together(2, work) == [[2, 2, 2, 2]] * 2


def test_a_ticket_is_of_its_session():
    with Session(LocalNetwork(1).join(0)) as one, Session(LocalNetwork(1).join(0)) as other:
        bucket = one.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
        ticket = one.reduce(bucket, [None])
        with pytest.raises(InputError, match="the ticket belongs to another session"):
            other.wait(ticket)
        one.wait(ticket)


def test_control_c_ends_a_wait():
    with Session(LocalNetwork(1).join(0)) as session:
        session.register_bucket("first", [TensorSpec("t", 4, 1)], "owned")
        bucket = session.register_bucket("b", [TensorSpec("t", 4, 1)], "owned")
        ticket = session.reduce(bucket, [None])  # does not run yet
        main = threading.main_thread().ident
        sender = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            sender.start()
            session.wait(ticket)
        sender.join()
        synchronize(session, 0, [None])
        session.wait(ticket)  # nothing was lost


def test_waiting_lets_others_run():
    """A worker that kept the GIL would block the others and wait until its deadline."""

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
        sys.setswitchinterval(1e6)  # no thread is forced to release it
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


def test_a_session_that_is_dropped_with_a_step_of_a_sparsifier_is_closed():
    before = tasks()
    session = Session(LocalNetwork(1).join(0))
    sparsifier = sparsesync.Sparsifier(session, [TensorSpec("t", 30, 4)])
    bucket = session.register_bucket("b", sparsifier.crossing, "owned")
    sparsifier.reduce(bucket, [np.ones(120, np.float32)])
    del session, sparsifier
    gc.collect()
    expect_tasks(before)


def test_objects_that_a_closing_session_releases_may_close_it():
    session = Session(LocalNetwork(1).join(0))
    bucket = session.register_bucket("b", [TensorSpec("t", 30, 4)], "owned")
    gradient = np.ones((30, 4), np.float32)
    weakref.finalize(gradient, session.close)
    session.reduce(bucket, [gradient])
    del gradient
    session.close()
    assert session.closed


def test_a_planner_outlives_its_session():
    def work(session):
        planner = sparsesync.SchedulePlanner(session, [sparsesync.Layer("t", rows=30, width=4)], "lazy")
        session.barrier()
        session.close()
        planner.observe(0, 5, 10)
        assert not planner.add_step([0.1], [0.1])

    together(2, work)


def test_a_step_by_a_schedule_refuses_what_is_not_in_it():
    def work(session):
        tables = [sparsesync.Layer(f"t{i}", rows=30, width=4, touched=1 + i, group=1) for i in (0, 1)]
        planner = sparsesync.SchedulePlanner(session, [sparsesync.Layer("dense", bytes=400), *tables], "lazy")
        step = planner.step()
        assert planner.buckets == [(1, 2), (0, 0)]
        assert step.order([7, 8], [3]) == [
            (7, "reduce"), (7, "gather"), (8, "reduce"), (3, "reduce"), (3, "gather"), (8, "gather")
        ]  # fmt: skip
        assert (step.gathers(), step.waits_after_backward(False), step.announces(0)) == ([0, 1], [0, 1], False)
        assert planner.share(0, [(6, 12)]) == [(2, 4.0, 8.0), (1, 2.0, 4.0)]
        for call, problem in (
            (lambda: step.order([7]), "numbers of 1 buckets"),
            (lambda: step.announces(2), "no bucket 2"),
            (lambda: step.expect_announcements([3]), "no layer 3"),
            (lambda: planner.share(2, []), "no bucket 2"),
            (lambda: planner.share(1, []), "bucket 1 is dense"),
        ):
            with pytest.raises(sparsesync.InputError, match=problem):
                call()

    together(2, work)


def test_a_session_reports_when_each_phase_ran():
    def work(session):
        bucket = session.register_bucket("b", [TensorSpec("t", 30, 4)], "balanced")
        assert session.use(bucket)["last"] == {}
        began = time.monotonic()
        reduced = session.reduce(bucket, [np.ones((30, 4), np.float32)])
        gathered = session.gather(bucket)
        session.wait(reduced)
        session.wait(gathered)
        last = session.use(bucket)["last"]
        assert set(last) == {"reduce", "gather"}
        assert began <= last["reduce"][0] <= last["reduce"][1] <= last["gather"][0] <= last["gather"][1] <= time.monotonic()

    together(2, work)


def test_random_steps_of_random_buckets(random):
    """Several buckets are submitted in random order, different on each worker; some steps are rejected."""
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
                own_error = InputError if refused[step, i] == session.rank else sparsesync.RefusedError
                for ticket in (reduced, gathered):
                    with pytest.raises(own_error):
                        session.wait(ticket)
            for i, tensors in enumerate(specs):
                for place, spec in enumerate(tensors):
                    if (step, i) in refused:
                        continue
                    expected = dense_sum([drawn[step][worker][i][place] for worker in range(workers)], spec)
                    seen = result_as_dense(session, buckets[i], place, spec)[0]
                    np.testing.assert_array_equal(seen, expected)
        return session.step

    assert together(workers, work) == [steps] * workers
