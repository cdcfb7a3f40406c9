"""Sessions over Gloo's point-to-point calls, with threads as workers: failing calls, corrupted headers, and unexpected payloads."""

from __future__ import annotations

import datetime
import struct
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
from bindings_support import DEADLINE_S, python, run_threads  # noqa: E402 (needs torch)
from sparsesync import Session, TensorSpec, _native  # noqa: E402 (needs torch)
from sparsesync.torch.process_group import _Calls  # noqa: E402 (needs torch)
from torch import distributed as dist  # noqa: E402 (needs torch)

HEADER = struct.Struct("<IIQQQ")  # channel, flags, sequence, signature, bytes
HEADERS, PAYLOADS, REASONS = range(3)  # tags
PIECE_BYTES = 4 << 20


class Watched(_Calls):
    """Makes the send number `failing` fail as if memory ran out, and changes headers before they are sent."""

    def __init__(self, group):
        super().__init__(group)
        self.sends = 0
        self.failing = None
        self.change_header = None
        self.largest_payload = 0

    def send(self, rank, lane, data):
        self.sends += 1
        if self.sends == self.failing:
            raise MemoryError("this send fails")
        if lane == HEADERS and self.change_header is not None:
            header = self.change_header(*HEADER.unpack_from(data.numpy()))
            data = data.clone()
            HEADER.pack_into(data.numpy(), 0, *header)
        return super().send(rank, lane, data)

    def receive(self, rank, lane, data):
        if lane == PAYLOADS:
            self.largest_payload = max(self.largest_payload, data.numel())
        return super().receive(rank, lane, data)


def outcomes_over_gloo(workers, work, calls_of=Watched, **options):
    """Runs work(session, calls) on each worker. Returns the outcomes."""
    store = dist.HashStore()

    def run(rank):
        group = dist.ProcessGroupGloo(store, rank, workers, datetime.timedelta(seconds=DEADLINE_S))
        calls = calls_of(group)
        del group  # the transport closes it
        own = {name: option(rank) if callable(option) else option for name, option in options.items()}
        transport = _native.transport_over(calls, rank, [0] * workers)
        with Session(transport, deadline_s=DEADLINE_S, **own) as session:
            return work(session, calls)

    return run_threads([lambda rank=rank: run(rank) for rank in range(workers)])


@pytest.mark.parametrize("scheme", ["balanced", "owned", "dense_ring", "sparse_ps"])
def test_a_send_that_fails_is_an_abort_with_its_reason(scheme):
    def outcomes(failing):
        def work(session, calls):
            bucket = session.register_bucket("b", [TensorSpec("t", 400, 4)], scheme)
            session.barrier()
            if session.rank == 0:
                calls.failing = calls.sends + failing if failing else None
            before = calls.sends
            session.wait(session.reduce(bucket, [np.ones((400, 4), np.float32)]))
            session.wait(session.gather(bucket))
            return calls.sends - before

        return outcomes_over_gloo(2, work)

    sends = outcomes(0)[0].value
    assert sends >= 4
    for failing in range(1, sends + 1):
        first, other = (each.error for each in outcomes(failing))
        assert isinstance(first, sparsesync.PeerLostError), first
        if other is None:
            assert failing == sends, "it had received everything that it waits for"
            continue
        assert isinstance(other, sparsesync.AbortedError), (failing, other)
        assert other.rank == 0 and f"worker 0 ended the session: {first}" in str(other)


def test_counters_wait_for_no_lock_with_the_gil():
    """While a session sends others the reason of its end, its transport is locked and calls Python. With the GIL held this would
    deadlock.
    """

    class Slow(Watched):
        def __init__(self, group):
            super().__init__(group)
            self.tells = threading.Event()

        def send(self, rank, lane, data):
            if lane == REASONS:
                self.tells.set()
                time.sleep(0.2)  # releases the GIL
            return super().send(rank, lane, data)

    def work(session, calls):
        bucket = session.register_bucket("b", [TensorSpec("t", 40, 4)], "balanced")
        session.barrier()
        if session.rank == 0:
            calls.failing = calls.sends + 1
            ticket = session.reduce(bucket, [np.ones((40, 4), np.float32)])
            assert calls.tells.wait(DEADLINE_S)
            assert session.counters()["messages_sent"] > 0
        else:
            ticket = session.reduce(bucket, [np.ones((40, 4), np.float32)])
        session.wait(ticket)

    for outcome in outcomes_over_gloo(2, work, Slow):
        assert isinstance(outcome.error, sparsesync.PeerLostError | sparsesync.AbortedError), outcome.error


COLLECTED = """
import datetime, gc, sys, threading
import numpy as np, sparsesync
import torch.distributed as dist
from sparsesync import _native
from sparsesync.torch.process_group import _Calls
dropped, closed = threading.Event(), threading.Event()
class Collecting(_Calls):
    collects = False
    def send(self, rank, lane, data):
        if self.collects:
            self.collects = False
            assert dropped.wait(60)
            gc.collect()  # as Python does within any statement, in whatever thread runs it
        return super().send(rank, lane, data)
    def close(self):
        super().close()
        if dropped.is_set():
            closed.set()
class Holder:
    def __init__(self, session):
        self.session, self.myself = session, self
    def __del__(self):
        if sys.argv[1] == "asks":
            try:
                self.session.barrier()
            except sparsesync.ContractError as error:
                print(error)
        if sys.argv[1] != "drops":
            self.session.close()
def start(rank):
    group = dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=60))
    calls = Collecting(group)
    session = sparsesync.Session(_native.transport_over(calls, rank, [0, 0]), deadline_s=60)
    bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", 40, 4)], "balanced")
    session.barrier()
    calls.collects = rank == 0
    return session, session.reduce(bucket, [np.ones((40, 4), np.float32)])
def stay():
    session, ticket = start(1)
    try:
        session.wait(ticket)
    except sparsesync.PeerError:
        pass  # it left in the middle of a step
store = dist.HashStore()
other = threading.Thread(target=stay)
other.start()
holder = Holder(start(0)[0])
del holder
dropped.set()
if sys.argv[1] != "exits":
    assert closed.wait(60)
    other.join()
print("done")
"""


@pytest.mark.parametrize("case", ["drops", "closes", "asks", "exits"])
def test_garbage_collection_in_the_thread_of_a_session_closes_it(case):
    done = python(COLLECTED, case)
    said = "a session's own thread cannot wait for the session: it would wait forever\n" if case == "asks" else ""
    assert (done.returncode, done.stdout, done.stderr) == (0, said + "done\n", "")


@pytest.mark.parametrize("size", [1 << 32, 1 << 40, 1 << 63])
def test_a_worker_that_refuses_takes_no_memory_that_a_header_names(size):
    def lie(channel, flags, sequence, signature, bytes_):
        return channel, flags, sequence, signature, size if channel == 1 else bytes_

    def work(session, calls):
        bucket = session.register_bucket("b", [TensorSpec("t", 1000, 4)], "balanced", rounds=1)
        session.barrier()
        if session.rank == 1:
            calls.change_header = lie
        rows = np.array([1000]) if session.rank == 0 else np.arange(10)  # the first worker rejects its step
        with pytest.raises(sparsesync.Error) as told:
            session.wait(session.reduce(bucket, [(rows, np.ones((len(rows), 4), np.float32))]))
        return told.value, calls.largest_payload

    first, other = outcomes_over_gloo(2, work)
    error, largest = first.value
    assert isinstance(error, sparsesync.CorruptDataError) and str(size) in str(error), error
    assert largest <= 1000
    assert isinstance(other.value[0], sparsesync.RefusedError | sparsesync.AbortedError), other.value


@pytest.mark.parametrize("scheme", ["balanced", "sparse_ps"])
def test_a_worker_that_refuses_for_want_of_memory_takes_none(scheme):
    """Messages of others are received piece by piece into the memory of one piece."""
    rows, width = 100_000, 64

    def work(session, calls):
        bucket = session.register_bucket("b", [TensorSpec("t", rows, width)], scheme, rounds=1)
        session.barrier()
        seen = []
        for step in range(2):
            used = rows if step == 0 and session.rank != 0 else 100
            mine = 3000 if step == 0 and session.rank == 0 else used
            ticket = session.reduce(bucket, [(np.arange(mine), np.ones((mine, width), np.float32))])
            gathered = session.gather(bucket)
            for each in (ticket, gathered):
                try:
                    session.wait(each)
                    seen.append(None)
                except sparsesync.Error as error:
                    seen.append(error)
        return seen, calls.largest_payload, session.memory_high_water

    outcomes = outcomes_over_gloo(2, work, memory_bytes=lambda rank: 200_000 if rank == 0 else None)
    assert [each.error for each in outcomes] == [None, None]
    seen, largest, high_water = outcomes[0].value
    assert isinstance(seen[0], sparsesync.BudgetError | sparsesync.RefusedError), seen
    assert seen[2:] == [None, None], "the next step works"
    assert largest == PIECE_BYTES and high_water <= 200_000
