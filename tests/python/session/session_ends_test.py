"""Sessions in forked processes, and in processes that end with open objects."""
# ctest: SLOW mpi

import shutil

import pytest
from bindings_support import DEADLINE_S, ROOT, python

# Other processes, and the end of a process


FORKED = """
import gc, os, sys, threading
import numpy as np, sparsesync
network = sparsesync.LocalNetwork(3)
left = network.join(2)
sessions = [sparsesync.Session(network.join(rank), deadline_s=60) for rank in range(2)]
alone = sparsesync.Session(sparsesync.LocalNetwork(1).join(0))
writer = sparsesync.TraceWriter(sys.argv[2] + "/T", [sparsesync.TensorSpec("t", 4, 1)], 1, 1)
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
        lambda: writer.write(0, 0, [np.arange(2)]),
    ):
        try:
            call()
        except sparsesync.ClosedError as error:
            told.append(str(error))
    assert len(told) == 9, told
    assert all(f"forked from {os.getppid()}" in text and "make a new one here" in text for text in told), told
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
        del session, left, network, sessions, alone, writer, call
        gc.collect()
    sys.exit(5)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
# The parent goes on.
alone.wait(alone.gather(bucket))
assert alone.result_rows(bucket, 0) == 0
writer.write(0, 0, [np.arange(2)])
writer.commit()
left = sparsesync.Session(left)
more = [threading.Thread(target=each.barrier) for each in (sessions[1], left)]
for each in more: each.start()
for each in (waits, *more): each.join()
print("done")
"""


@pytest.mark.parametrize("child", ["closes", "drops", "leaves"])
def test_a_forked_process_gets_an_error_and_ends(child, tmp_path):
    script = FORKED.replace("del session, left", "del left") if child == "drops" else FORKED
    done = python(script, child, tmp_path)
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
    """Sessions are closed one after another, and a closed one is lost to the others."""
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


# The same over MPI: objects are left open, and destroyed in any order

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
        pytest.skip("mpirun is not installed")
    script = OVER_MPI + OVER_MPI_ENDS[case] + "\nprint('done ', end='')\n"
    done = python(script, launcher=[str(ROOT / "cmake" / "mpirun.sh"), "-np", "2"])
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["done"] * 2, "")


DAEMONS = {
    "fails": """
end = sparsesync.LocalNetwork(2).join(0)
def call():
    try:
        end.all_gather(b"", 0.5)
    except sparsesync.Error:
        pass  # Python has not ended by then
""",
    "ends": """
network = sparsesync.LocalNetwork(2)
ends = [network.join(rank) for rank in range(2)]
def other():
    time.sleep(0.5)
    ends[1].all_gather(b"", 60)
def call():
    ends[0].all_gather(b"", 60)
threading.Thread(target=other, daemon=True).start()
""",
}


@pytest.mark.parametrize("case", DAEMONS)
def test_a_daemon_threads_call_that_ends_after_python_does(case):
    """The thread requests the GIL, which is no longer available."""
    script = f"""
import sys, threading, time, sparsesync
class Last:
    def __del__(self, sleep=time.sleep):
        sleep(1.5)
sys.last = Last()  # goes late, when no thread gets the GIL any more
{DAEMONS[case]}
ready = threading.Semaphore(0)
def work():
    ready.release()
    call()
threading.Thread(target=work, daemon=True).start()
ready.acquire()
print("ends", flush=True)
"""
    done = python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
