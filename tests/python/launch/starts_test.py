"""Workers that start late are waited for within the deadline; after it, an error names the missing ones."""
# ctest: SLOW launched

from __future__ import annotations

import ast
import datetime
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching  # noqa: E402 (needs torch)
import sparsesync  # noqa: E402 (needs torch)
import torch.distributed as dist  # noqa: E402 (needs torch)
from sparsesync import _native  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel, launch, local_group  # noqa: E402 (needs torch)
from sparsesync.torch.process_group import _Connecting, transport_over  # noqa: E402 (needs torch)
from torch._C._distributed_c10d import TCPStore  # noqa: E402 (needs torch)
from torch.distributed import distributed_c10d as c10d  # noqa: E402 (needs torch)

SHORT, LONG = datetime.timedelta(seconds=2), datetime.timedelta(seconds=60)


def by_workers(ranks: list[int], work: Callable[[int], Any]) -> list[Any]:
    """Runs work(rank) in a thread for each rank. Returns the results or exceptions."""
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive(), "a worker hangs"
    return [found[rank] for rank in ranks]


def test_workers_that_do_not_come_are_named() -> None:
    store = dist.HashStore()

    def work(rank: int) -> None:
        with _Connecting(rank, 4, SHORT) as connecting:
            connecting.all_come(store, "made this DistributedDataParallel")

    for error in by_workers([0, 2], work):
        assert type(error) is sparsesync.DeadlineError
        assert "workers 1, 3 have not made this DistributedDataParallel after 2 s" in str(error)


def test_a_worker_that_is_late_is_waited_for() -> None:
    store = dist.HashStore()

    def work(rank: int) -> list[bytes]:
        if rank == 1:
            time.sleep(0.3)
        with _Connecting(rank, 3, LONG) as connecting:
            return connecting.all_come(store, "come", f"machine {rank}")

    assert by_workers([0, 1, 2], work) == [[b"machine 0", b"machine 1", b"machine 2"]] * 3


def test_a_worker_that_leaves_while_it_is_connected_is_named() -> None:
    store = dist.HashStore()

    def work(rank: int) -> None:
        connecting = _Connecting(rank, 3, LONG)
        with connecting:
            connecting.all_come(store, "come")
            if rank != 1:
                raise RuntimeError("Gloo connectFullMesh failed\nand more")
            connecting._store = None  # simulates the end of its process

    first, _, last = by_workers([0, 1, 2], work)
    for error in (first, last):
        assert type(error) is sparsesync.PeerLostError
        assert error.rank == 1
        assert str(error) == "worker 1 has left while the workers of the process group were connected by Gloo: Gloo connectFullMesh failed"


def test_a_failing_network_is_not_a_lost_worker() -> None:
    store = dist.HashStore()

    def work(rank: int) -> None:
        with _Connecting(rank, 2, LONG) as connecting:
            connecting.all_come(store, "come")
            raise RuntimeError("no address of this machine")

    for error in by_workers([0, 1], work):
        assert type(error) is sparsesync.Error
        assert "could not be connected by Gloo" in str(error) and "no address of this machine" in str(error)


def test_a_store_that_is_lost_is_worker_0s() -> None:
    class Lost:
        def __getattr__(self, _: str) -> Any:
            raise dist.DistNetworkError("Broken pipe")

    with pytest.raises(sparsesync.PeerLostError, match="store.*is lost: Broken pipe") as raised, _Connecting(1, 2, LONG) as connecting:
        connecting.all_come(Lost(), "come")  # type: ignore[arg-type]
    assert raised.value.rank == 0


@pytest.mark.parametrize("comes", [False, True])
def test_errors_of_torch_while_a_transport_is_made_are_translated(comes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 1 does not start, or leaves while Gloo connects it."""
    group, store = dist.ProcessGroup(0, 2), dist.HashStore()
    monkeypatch.setattr(dist, "get_rank", lambda _: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(c10d, "_get_process_group_store", lambda _: store)

    def fail(*_: Any) -> Any:
        raise RuntimeError("Gloo connectFullMesh failed")

    monkeypatch.setattr(dist, "ProcessGroupGloo", fail)
    if comes:
        c10d.PrefixStore("sparsesync/transport 1", store).set("word of 1", "its machine")
    with pytest.raises(sparsesync.Error) as raised:
        transport_over(group, SHORT)
    if comes:
        assert isinstance(raised.value, sparsesync.PeerLostError) and raised.value.rank == 1
        assert "worker 1 has left while the workers of the process group were connected by Gloo" in str(raised.value)
    else:
        assert isinstance(raised.value, sparsesync.DeadlineError)
        assert "worker 1 has not made this DistributedDataParallel after 2 s" in str(raised.value)


STOPPED = """
import os, signal, sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("meets_first", [False, True])
def test_a_store_whose_process_is_stopped_ends_at_the_deadline(meets_first: bool) -> None:
    server = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        os.waitpid(server.pid, os.WUNTRACED)
        if meets_first:
            server.send_signal(signal.SIGCONT)

        def reach(timeout: datetime.timedelta) -> Any:
            return TCPStore("127.0.0.1", port, 1, is_master=False, wait_for_workers=False, timeout=timeout)

        store = reach(LONG) if meets_first else None
        server.send_signal(signal.SIGSTOP)

        def meet(connecting: _Connecting) -> None:
            connecting.all_come(store or reach(connecting.left()), "made this DistributedDataParallel")

        with pytest.raises(sparsesync.DeadlineError, match="store.*does not answer after 2 s"):
            _Connecting(1, 2, SHORT, ("127.0.0.1", port)).run(meet)
        assert server.poll() is None, "the error came after the server had ended"
        left = [each for each in threading.enumerate() if each.name == "sparsesync connects"]
        for each in left:
            each.join(60)
        assert not any(each.is_alive() for each in left), "a thread still waits for the store"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("deadline", [0, -1, 1e300, math.nan, math.inf, "1", datetime.timedelta(0), datetime.timedelta(-1)])
def test_invalid_deadlines(deadline: Any) -> None:
    for group in ("alone", local_group(1)[0]):
        with pytest.raises(sparsesync.InputError, match="a deadline of"):
            DistributedDataParallel(torch.nn.Linear(1, 1), group, deadline=deadline)


@pytest.mark.parametrize(("deadline", "seconds"), [(None, 1800), (4, 4), (datetime.timedelta(hours=2), 7200)])
def test_the_deadline_reaches_mpi(deadline: Any, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class World:
        def __init__(self, deadline_s: float, *, leaving_s: float) -> None:
            asked.append((deadline_s, leaving_s))

        def join(self, deadline_s: float) -> Any:
            asked.append(deadline_s)
            return _native.LocalNetwork(1).join(0)

        def close(self) -> None:
            pass

    monkeypatch.setattr(_native, "MpiWorld", World)
    monkeypatch.setattr(launch, "_mpi_worlds", [])
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    found = launch.find(None, deadline)
    launch.find(None, 5)
    assert found.deadline.total_seconds() == seconds
    assert asked == [(seconds, max(seconds, 60)), seconds, 5]


PROGRAM = """
import json, os, sys, time
import torch, sparsesync.torch
rank, of_mpi = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK"))), "OMPI_COMM_WORLD_RANK" in os.environ
folder, late_s, deadline = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
open(f"{folder}/{rank} has loaded", "w").close()
while not all(os.path.exists(f"{folder}/{each} has loaded") for each in json.loads(sys.argv[4])):
    time.sleep(0.01)
if rank == 1:
    time.sleep(late_s)
began = time.monotonic()
found = {"rank": rank}
try:
    ddp = sparsesync.torch.DistributedDataParallel(torch.nn.Linear(3, 2), deadline=deadline)
    ddp(torch.ones(1, 3)).sum().backward()
    found["transport"] = ddp.statistics()["transport"]
    found["deadline of torch's"] = str(sparsesync.torch.launch.timeout_of(torch.distributed.group.WORLD)) if not of_mpi else ""
    ddp.close()
except sparsesync.Error as error:
    found["error"], found["says"] = type(error).__name__, str(error)
found["seconds"] = time.monotonic() - began
json.dump(found, open(f"{folder}/{rank}.json", "w"))
sys.stdout.flush()
os._exit(0) if "error" in found else None
"""


def started(folder: Path, ranks: list[int], workers: int, late_s: float, deadline: float) -> list[Any]:
    """Starts processes of these ranks like torchrun does, and leaves out the other ranks. Returns their results. `late_s` is in seconds."""
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launching.free_port()), "WORLD_SIZE": str(workers)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(folder), str(late_s), str(deadline), json.dumps(ranks)],
            env=launching.environment(**address, RANK=str(rank)),
        )
        for rank in ranks
    ]
    for each in processes:
        assert each.wait(120) == 0
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in ranks]


def test_launched_workers_that_are_late_train(tmp_path: Path) -> None:
    for each in started(tmp_path, [0, 1], 2, late_s=2, deadline=60):
        assert each["transport"] == "ucx", each
        assert each["deadline of torch's"] == "0:30:00"


@pytest.mark.parametrize(("ranks", "says"), [([0, 1], "worker 2 has not"), ([1], "worker 0, or its launcher, does not serve")])
def test_launched_workers_that_are_missing_are_named(ranks: list[int], says: str, tmp_path: Path) -> None:
    for each in started(tmp_path, ranks, 3, late_s=0, deadline=10):
        # Worker 0 hosts the store. Other workers lose the store if worker 0's deadline ends slightly before theirs.
        assert each["error"] == "DeadlineError" or (each["error"] == "PeerLostError" and each["rank"] != ranks[0]), each
        assert says in each["says"]
        assert each["seconds"] < 60, "the deadline holds, not torch's half an hour"


def test_launched_by_mpi_the_deadline_holds_from_the_start(tmp_path: Path) -> None:
    """A worker that waits for MPI_Init gets an error at the deadline. mpirun ends the late worker, because the other one did not
    finalize MPI.
    """
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    launching.run(launching.mpirun(2, program, tmp_path, 8, 2, "[0, 1]"), 120)
    found = json.loads((tmp_path / "0.json").read_text(encoding="utf-8"))
    assert found["error"] == "DeadlineError", found
    assert "did not end within 2 s" in found["says"]
    assert found["seconds"] < 20, "the deadline holds, not a timeout of a minute"


def test_launched_by_mpi_workers_that_are_late_train(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    for each in launching.outcomes(launching.mpirun(2, program, tmp_path, 2, 60, "[0, 1]"), tmp_path, 2, 120):
        assert each["transport"] == "mpi", each


# ---- All waits of the package, each with its limit.

WAITS = {
    *("wait", "join", "sleep", "acquire", "create_connection", "all_gather", "broadcast", "agree", "barrier", "register_bucket"),
    *("TCPStore", "ProcessGroupGloo", "init_process_group", "rendezvous", "MpiWorld", "nccl_over", "ucx_over", "select", "recv", "accept"),
    "all_reduce",
}
# All waits of a Session end at its deadline_s, which is the wrapper's.
OF_SESSION = {"session", "_session"}
# (file, call): the argument that limits it.
LIMITED = {
    ("launch.py", "connection.transport.all_gather"): "seconds",
    ("launch.py", "_native.nccl_over"): "seconds",
    ("launch.py", "_native.ucx_over"): "connection.deadline",
    ("launch.py", "_native.MpiWorld"): "seconds",
    ("launch.py", "_mpi_worlds[0].join"): "seconds",
    ("launchers.py", "rendezvous"): "timeout=timeout",
    ("process_group.py", "work.wait"): "seconds",
    ("process_group.py", "dist.init_process_group"): "timeout=wait",
    ("process_group.py", "TCPStore"): "timeout=connecting.left()",
    ("process_group.py", "dist.ProcessGroupGloo"): "max(deadline, _MOMENT)",
    ("process_group.py", "socket.create_connection"): "self.left()",
    ("process_group.py", "time.sleep"): "self.left()",
    ("process_group.py", "store.wait"): "self.left()",
    ("process_group.py", "self._store.wait"): "_LAST_WORDS",
    ("process_group.py", "concurrent.futures.wait"): "seconds",
    ("backend.py", "dist.ProcessGroupGloo"): "timeout=timeout",
    ("backend.py", "said.wait"): "_LEAVING",
    ("sparse_reducer.py", "thread.join"): "_LEAVING_S",
    ("links.py", "_native.MpiWorld"): "self.seconds()",
    ("links.py", "world.join"): "self.seconds()",
    ("links.py", "_native.ucx_over"): "self.seconds()",
    ("links.py", "networks.join().all_gather"): "networks.seconds()",
    ("probes.py", "_native.MpiWorld"): "seconds",
    ("processes.py", "process.wait"): "",  # seconds, or _AFTER_KILL_S
}
# These calls do not wait, or wait for calls that are listed here.
WITHOUT = {
    ("launch.py", "_native.LocalNetwork(1).join"): "returns immediately",
    ("launch.py", "group.network.join"): "returns immediately",
    ("distributed.py", "self._synchronizer.join"): "creates a context",
    ("process_group.py", "self._group.recv"): "starts a call, which work.wait waits for",
    ("hook.py", "each.wait"): "the deadline of the session",
    ("pending_results.py", "bucket.wait"): "the deadline of the session",
    ("scalar_allreduce.py", "self._sums.wait"): "the deadline of the session",
    ("scalar_allreduce.py", "self.wait"): "the deadline of the session",
    ("torch_surface.py", "work.wait"): "the timeout of the group of torch's Join",
    ("backend.py", "self.reducer(tensor.device).all_reduce"): "starts an operation",
    ("functional.py", "work.wait"): "the deadline of the session",
    ("parameter_sync.py", "self.work.wait"): "the deadline of the session",
    ("sparse_reducer.py", "self._ended.wait"): "the deadline of the session",
    ("sparse_reducer.py", "self._done.wait"): "the operation has ended",
    ("sparse_reducer.py", "operation.after.wait"): "the deadline of the session",
    ("sparse_reducer.py", "last.wait"): "the deadline of the session",
    ("hook.py", "dist.all_reduce"): "the timeout of the group in torch's first step",
    ("links.py", "self.join"): "connects within seconds()",
    ("links.py", "networks.join"): "connects within seconds()",
}


def waits_in(path: Path) -> list[tuple[str, str]]:
    """Returns the calls that wait: the called name, and the whole call."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_text = isinstance(owner, ast.Constant)
        of_session = (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) in OF_SESSION if owner else False
        if name in WAITS and not of_text and not of_session:
            found.append((ast.unparse(node.func), ast.unparse(node)))
    return found


def test_every_wait_has_a_limit() -> None:
    package = Path(sparsesync.__file__).resolve().parent
    files = [path for folder in ("torch", "doctor") for path in sorted((package / folder).rglob("*.py"))]
    found = [(path.name, *each) for path in files for each in waits_in(path)]
    unlisted = [each for each in found if each[:2] not in {**LIMITED, **WITHOUT}]
    assert unlisted == [], "add the limits of these to LIMITED or WITHOUT"
    for file, callee, call in found:
        assert LIMITED.get((file, callee), "") in call, call
    assert {each[:2] for each in found} == {*LIMITED, *WITHOUT}, "remove these from the lists: they no longer exist"


def test_the_session_of_a_wrapper_has_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Session(_native.Session):
        def __init__(self, *given: Any, deadline_s: float, **named: Any) -> None:
            asked.append(deadline_s)
            super().__init__(*given, deadline_s=deadline_s, **named)

    monkeypatch.setattr(_native, "Session", Session)
    for deadline in (None, 7, datetime.timedelta(minutes=2)):
        DistributedDataParallel(torch.nn.Linear(1, 1), local_group(1)[0], deadline=deadline).close()
    assert asked == [1800, 7, 120]
