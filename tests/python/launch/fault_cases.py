"""Kills, stops or breaks a worker at a chosen moment of a training, and checks the other workers. `scripts/stress faults` runs it.

A run has three workers. One of them, the victim, writes a marker and then fails. It is killed, stopped, terminated or interrupted,
exits, or raises. The moment is its k-th network call, a time, or a point of the program. A finding is one of:

- The fault did not happen.

- A survivor has no typed error of sparsesync within the deadline and a grace period.

- A worker does not end.

- Something is left behind: processes, sockets, files in /dev/shm, temporary files.

A finding prints the arguments that repeat it.

Over gloo and ucx, processes train with sparsesync.torch. Over mpi they use sessions under mpirun; over threads they do so in one process.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sparsesync
from launching import ROOT, environment, free_port

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

WORKERS = 3
DEADLINE_S = 3.0
GRACE_S = 1.0
# Time for everything that does not depend on the deadline: starting, importing, ending.
PATIENCE_S = 60.0
MOST_STEPS = 4000
STEPS_BEFORE_CLOSE = 3
OVER = ["gloo", "ucx", "mpi", "threads"]
OF_TORCH = ("gloo", "ucx")
BREAKS = ["no fault", "hang", "untyped", "late", "shared memory", "temporary file", "process"]

KINDS = {
    **dict.fromkeys(OF_TORCH, ["kill", "stop", "terminate", "interrupt", "exit", "raise"]),
    "mpi": ["kill", "stop", "terminate", "interrupt", "exit", "raise"],
    "threads": ["exit", "stop", "raise"],
}
POINTS = {
    "gloo": ["call", "before backward", "in backward", "in init", "call", "in join", "before init", "call", "in close"],
    "ucx": ["time", "before backward", "in backward", "in init", "time", "in join", "before init", "time", "in close"],
    "mpi": ["time", "between phases", "before reduce", "in init", "before init", "time", "before join", "in close"],
    "threads": ["before reduce", "between phases", "after reduce", "before register", "before join"],
}
# Their training is over by then: they may, but need not, notice the fault.
WITHOUT_ERROR = {"in close"}
# Arguments of DistributedDataParallel, or the scheme of a bucket.
TRAININGS: list[dict[str, Any]] = [
    {},
    {"scheme": "balanced"},
    {"schedule": "dear"},
    {"scheme": "owned", "announce": True},
    {"sparsifier": "DGC"},
    {"sparsifier": "CoarseGrained", "chunk": 512},
    {"schedule": "auto", "scheme": "balanced"},
]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(OF_TORCH, TRAININGS),
    "mpi": [{"scheme": each} for each in ("balanced", "owned", "dense_native", "all_gather", "dense_ring")],
    "threads": [{"scheme": each} for each in ("balanced", "owned", "all_gather", "dense_ring", "sparse_ps")],
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault, and the training in which it happens."""

    seed: int
    over: str
    kind: str
    at: str  # "call", "time", or a point of the program
    number: int  # index of the network call or of the step
    seconds: float  # delay, if `at` is "time"
    victim: int
    variant: dict[str, Any]


def draw(seed: int, over: str) -> Case:
    """Draws the case of a seed. Consecutive seeds cycle through all kinds and all points."""
    source = random.Random(f"{seed} {over}")
    kinds, points = KINDS[over], POINTS[over]
    at = points[seed // len(kinds) % len(points)] if seed % 2 else source.choice(points)
    return Case(
        seed=seed,
        over=over,
        kind=kinds[seed % len(kinds)],
        at=at,
        number=source.randint(1, 400 if at == "call" else 12),
        seconds=source.uniform(0, 0.3),
        victim=source.randrange(WORKERS),
        variant=source.choice(VARIANTS[over]),
    )


# ---- Inside a worker.


class FaultError(Exception):
    """Raised by the victim."""


class Worker:
    """One worker of a run. Fires the fault if it is the victim, and keeps its result."""

    def __init__(self, case: Case, rank: int, folder: Path, broken: str = "") -> None:
        self.case = case
        self.rank = rank
        self.folder = folder
        self.broken = broken
        self.steps = 0
        self.calls = 0
        self.last = time.monotonic()
        self.failed = 0.0  # when the error occurred
        self._fired = threading.Lock()

    @property
    def is_victim(self) -> bool:
        return self.rank == self.case.victim and self.broken != "no fault"

    def progress(self) -> None:
        """Records the moment of this worker's latest progress."""
        self.last = time.monotonic()

    def point(self, name: str) -> None:
        """Marks a point of the program. A point within a step counts from the case's step on."""
        in_step = name not in ("before init", "in init", "before join", "before register", "in join", "in close")
        if self.is_victim and self.case.at == name and (not in_step or self.steps >= self.case.number):
            self.fire()

    def call(self) -> None:
        """Counts a network call."""
        self.calls += 1
        if self.is_victim and self.case.at == "call" and self.calls == self.case.number:
            self.fire()

    def fire_later(self) -> None:
        """Fires after the case's time, from a separate thread."""
        timer = threading.Timer(self.case.seconds, self.fire)
        timer.daemon = True
        timer.start()

    def fire(self) -> None:
        """Writes the marker and triggers the fault."""
        if not self._fired.acquire(blocking=False):
            return
        if self.broken == "process":
            subprocess.Popen(["sleep", "3600"])
        write(self.folder / "fired", {"at": time.monotonic(), "rank": self.rank})
        kind = self.case.kind
        if self.case.over == "threads":
            if kind == "stop":
                wait_for([self.folder / f"{rank}.json" for rank in range(WORKERS) if rank != self.rank], PATIENCE_S)
            raise FaultError
        if kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[kind])
        elif kind == "exit":
            os._exit(3)
        elif self.case.at == "time" or (self.case.at == "in init" and self.case.over == "mpi"):
            os._exit(4)  # an exception in this timer thread would have no effect
        else:
            raise FaultError("raised by the victim")

    def run(self, work: Callable[[Worker], None]) -> None:
        """Runs the worker's part and writes its result to RANK.json."""
        found: dict[str, Any] = {"rank": self.rank, "error": ""}
        try:
            work(self)
        except BaseException as error:
            # Leaving a session and its network after the error also takes time.
            self.failed = self.failed or time.monotonic()
            found["error"] = type(error).__name__
            found["typed"] = isinstance(error, sparsesync.Error)
            found["says"] = str(error)
        if self.broken == "late":
            self.failed += DEADLINE_S + 3
        found |= {"at": self.failed or time.monotonic(), "last": self.last, "steps": self.steps, "calls": self.calls}
        if self.broken == "untyped":
            found["error"], found["typed"] = "RuntimeError", False
        write(self.folder / f"{self.rank}.json", found)
        if self.broken == "hang" and not self.is_victim:
            time.sleep(3600)


SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}


def write(path: Path, content: Any) -> None:
    """Writes a JSON file atomically."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.rename(path)


def wait_for(paths: list[Path], seconds: float) -> bool:
    """Waits up to `seconds` seconds for all paths to exist. Returns whether they do."""
    until = time.monotonic() + seconds
    while not all(each.exists() for each in paths):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def meet(worker: Worker) -> None:
    """Waits until all workers have loaded their modules, which takes longer than some deadlines."""
    write(worker.folder / f"{worker.rank}.loaded", os.getpid())
    wait_for([worker.folder / f"{rank}.loaded" for rank in range(WORKERS)], PATIENCE_S)
    worker.progress()


def train(worker: Worker) -> None:
    """Trains a small model with sparsesync.torch."""
    import sparsesync.torch
    import torch
    from sparsesync.torch import process_group

    meet(worker)
    count_calls(worker, process_group)
    worker.point("before init")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(2000, 8, sparse=True), torch.nn.Linear(8, 4))
    options = dict(worker.case.variant)
    if "sparsifier" in options:
        chunks = {"chunk": options.pop("chunk")} if "chunk" in options else {}
        options["sparsifier"] = getattr(sparsesync.torch, options["sparsifier"])(**chunks)
        model[0].sparse = False
    ddp = sparsesync.torch.DistributedDataParallel(model, deadline=DEADLINE_S, transport=worker.case.over, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    if options.get("schedule") == "dear":
        optimizer = sparsesync.torch.wrap_optimizer(optimizer, ddp)
    at = worker.case.at
    if at == "time" and worker.is_victim:
        worker.fire_later()
    few = at == "in close" or (at == "in join" and worker.rank == worker.case.victim)
    with ddp.join() if at == "in join" else contextlib.nullcontext():
        for step in range(STEPS_BEFORE_CLOSE if few else MOST_STEPS):
            optimizer.zero_grad()
            worker.point("before backward")
            hidden = model[0](torch.randint(0, 2000, (16,))) if at == "in backward" else None
            loss = ddp(torch.randint(0, 2000, (16,))).square().sum()
            if hidden is not None:
                # Its hook runs before the gradients of the table.
                hidden.register_hook(lambda _: worker.point("in backward"))
                loss = loss + 0 * hidden.sum()
            loss.backward()
            optimizer.step()
            worker.steps = step + 1
            worker.progress()
        worker.point("in join")
    worker.point("in close")
    ddp.close()


def count_calls(worker: Worker, process_group: Any) -> None:
    """Counts each call of Gloo, and reports when the workers are being connected."""
    import torch.distributed as dist

    class Counted(process_group._Calls):  # type: ignore[misc, name-defined]
        def send(self, rank: int, lane: int, data: Any) -> Any:
            worker.call()
            return super().send(rank, lane, data)

        def receive(self, rank: int, lane: int, data: Any) -> Any:
            worker.call()
            return super().receive(rank, lane, data)

        def wait(self, calls: Any, seconds: float, done: Any) -> None:
            worker.call()
            super().wait(calls, seconds, done)

        def all_reduce(self, dtype: str, data: Any, seconds: float) -> None:
            worker.call()
            super().all_reduce(dtype, data, seconds)

    def reported(connect: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            worker.point("in init")
            return connect(*given)

        return call

    process_group._Calls = Counted
    if worker.case.over == "ucx":
        process_group._native.ucx_over = reported(process_group._native.ucx_over)
    else:
        dist.ProcessGroupGloo = reported(dist.ProcessGroupGloo)


def synchronize_over_mpi(worker: Worker) -> None:
    """Runs a session of processes that mpirun started."""
    meet(worker)
    worker.point("before init")
    if worker.is_victim and worker.case.at == "in init":
        worker.fire_later()
    with sparsesync.MpiWorld(deadline_s=DEADLINE_S, leaving_s=DEADLINE_S) as world:
        worker.point("before join")
        with sparsesync.Session(world.join(DEADLINE_S), deadline_s=DEADLINE_S) as session:
            synchronize(worker, session)


def synchronize_threads(worker: Worker, network: Any) -> None:
    """Runs a session of threads."""
    worker.progress()
    worker.point("before join")
    with sparsesync.Session(network.join(worker.rank), deadline_s=DEADLINE_S) as session:
        synchronize(worker, session)


def synchronize(worker: Worker, session: Any) -> None:
    """Runs steps of one bucket until an error occurs."""
    try:
        steps(worker, session)
    except BaseException:
        worker.failed = time.monotonic()
        raise


def steps(worker: Worker, session: Any) -> None:
    """Does the same without recording the error."""
    spec = sparsesync.TensorSpec("table", 5000, 16)
    source = np.random.default_rng(worker.rank)
    worker.point("before register")
    bucket = session.register_bucket("bucket", [spec], worker.case.variant["scheme"])
    for step in range(STEPS_BEFORE_CLOSE if worker.case.at == "in close" else MOST_STEPS):
        rows = np.unique(source.integers(0, spec.rows, 200))
        worker.point("before reduce")
        reduced = session.reduce(bucket, [(rows, np.ones((len(rows), 16), np.float32))])
        worker.point("after reduce")
        session.wait(reduced)
        worker.point("between phases")
        session.wait(session.gather(bucket))
        worker.steps = step + 1
        worker.progress()
        if step == 0 and worker.is_victim and worker.case.at == "time":
            worker.fire_later()
    worker.point("in close")


# ---- Outside of the workers.


class InChildError(BaseException):
    """Unwinds the stack of a forked process, so that it ends like any Python program."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


def fork(folder: Path, name: str, variables: dict[str, str], work: Callable[[], None]) -> int:
    """Forks a process with a new process session. Its output goes to NAME.out."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    os.setsid()
    output = os.open(folder / f"{name}.out", os.O_WRONLY | os.O_CREAT)
    for each in (1, 2):
        os.dup2(output, each)
    os.environ.update(variables)
    tempfile.tempdir = None
    raise InChildError(work)


class Run:
    """Runs one case."""

    def __init__(self, case: Case, folder: Path, grace_s: float, broken: str) -> None:
        self.case = case
        self.folder = folder
        self.grace_s = grace_s
        self.broken = broken
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.port = free_port()
        self.shared = set(os.listdir("/dev/shm"))
        self.children: dict[int, int] = {}  # forked processes: process id by rank
        self.sessions: set[int] = set()
        self.statuses: dict[int, int] = {}
        self.seconds: dict[int, float] = {}
        self.errors: dict[int, str] = {}

    def start(self) -> None:
        variables = environment(TMPDIR=str(self.temporary))
        if self.case.over == "mpi":
            # Without recovery mpirun itself would end the survivors.
            command = [str(ROOT / "cmake/mpirun.sh"), "--enable-recovery", "-np", str(WORKERS), sys.executable, __file__]
            command += ["--worker", str(self.folder), json.dumps(dataclasses.asdict(self.case)), "--broken", self.broken]
            with open(self.folder / "mpirun.out", "wb") as output:
                job = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
                )
            self.children[0] = job.pid
        elif self.case.over == "threads":
            self.children[0] = fork(self.folder, "threads", variables, lambda: run_threads(self.case, self.folder, self.broken))
        else:
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "WORLD_SIZE": str(WORKERS)}
            for rank in range(WORKERS):
                own = {**variables, "RANK": str(rank)}
                worker = Worker(self.case, rank, self.folder, self.broken)
                self.children[rank] = fork(self.folder, str(rank), own, lambda worker=worker: worker.run(train))
        self.sessions = set(self.children.values())

    def survivors(self) -> list[int]:
        return [rank for rank in range(WORKERS) if rank != self.case.victim]

    def finish(self) -> list[str]:
        """Waits for all workers to end. Returns the findings."""
        problems = []
        results = [self.folder / f"{rank}.json" for rank in self.survivors()]
        until = time.monotonic() + PATIENCE_S + 3 * DEADLINE_S
        while not all(each.exists() for each in results) and time.monotonic() < until and self.still_runs():
            time.sleep(0.005)
        if self.case.kind == "stop" and self.case.over != "threads":
            self.continue_victim()
        ends = time.monotonic() + (PATIENCE_S if self.broken != "hang" else 2)
        while self.still_runs() and time.monotonic() < ends:
            time.sleep(0.005)
        problems += self.judged()
        problems += self.left_behind()
        for session in self.sessions:
            for process in processes_of(session):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        while self.still_runs():
            time.sleep(0.005)
        return problems

    def still_runs(self) -> bool:
        """Returns whether a child still runs, apart from a stopped victim."""
        for rank, process in self.children.items():
            if rank not in self.statuses:
                done, status = os.waitpid(process, os.WNOHANG)
                if done:
                    self.statuses[rank] = os.waitstatus_to_exitcode(status)
        return len(self.statuses) < len(self.children)

    def continue_victim(self) -> None:
        """Kills a stopped victim, which would not end otherwise."""
        if self.case.over in OF_TORCH:
            os.kill(self.children[self.case.victim], signal.SIGKILL)
        elif (loaded := self.folder / f"{self.case.victim}.loaded").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(loaded.read_text(encoding="utf-8")), signal.SIGKILL)

    def judged(self) -> list[str]:
        """Compares the survivors' results with the guarantees."""
        problems = []
        fired = self.folder / "fired"
        if not fired.exists():
            problems.append("the fault did not happen")
        moment = json.loads(fired.read_text(encoding="utf-8"))["at"] if fired.exists() else 0.0
        for rank in self.survivors():
            path = self.folder / f"{rank}.json"
            if not path.exists():
                problems.append(f"worker {rank} ended without a result, or hangs: {self.output(rank)}")
                continue
            found = json.loads(path.read_text(encoding="utf-8"))
            self.errors[rank] = found["error"]
            self.seconds[rank] = found["at"] - max(moment, found["last"])
            if found["error"] and not found["typed"]:
                problems.append(f"worker {rank}: {found['error']}: {found.get('says', '')}")
            if not found["error"] and self.case.at not in WITHOUT_ERROR:
                problems.append(f"worker {rank} did not notice the fault in {found['steps']} steps")
            if found["error"] and not fired.exists():
                problems.append(f"worker {rank}: {found['error']}: {found['says']}")
            if self.seconds[rank] > DEADLINE_S + self.grace_s:
                problems.append(f"worker {rank}: {found['error']} after {self.seconds[rank]:.2f} s")
            if self.case.over in OF_TORCH and self.statuses.get(rank) != 0:
                problems.append(f"worker {rank} ended with status {self.statuses.get(rank)}: {self.output(rank)}")
        return problems

    def output(self, rank: int) -> str:
        """Returns the end of a worker's output."""
        name = {"mpi": "mpirun", "threads": "threads"}.get(self.case.over, str(rank))
        path = self.folder / f"{name}.out"
        return path.read_text(encoding="utf-8", errors="replace")[-2000:] if path.exists() else ""

    def left_behind(self) -> list[str]:
        """Describes what the run leaves behind: processes, sockets, shared memory, temporary files."""
        if self.broken == "shared memory":
            Path(f"/dev/shm/sparsesync-{os.getpid()}").touch()
        elif self.broken == "temporary file":
            (self.temporary / "left").touch()
        until = time.monotonic() + 2
        while True:
            processes = sorted(process for session in self.sessions for process in processes_of(session))
            shared = sorted(each for each in set(os.listdir("/dev/shm")) - self.shared if not in_use(f"/dev/shm/{each}"))
            files = sorted(str(each.relative_to(self.temporary)) for each in self.temporary.rglob("*") if not each.is_dir())
            left = {
                "processes": [f"{each} {command_of(each)}" for each in processes],
                "listening sockets": [str(self.port)] if listens(self.port) else [],
                "files in /dev/shm": shared,
                "temporary files": files,
            }
            found = [f"{name} are left: {', '.join(each)}" for name, each in left.items() if each]
            if not found or time.monotonic() > until:
                break
            time.sleep(0.05)
        if self.broken == "shared memory":
            Path(f"/dev/shm/sparsesync-{os.getpid()}").unlink()
        return found


def run_threads(case: Case, folder: Path, broken: str) -> None:
    """Runs the workers of a case over threads."""
    network = sparsesync.LocalNetwork(WORKERS)
    workers = [Worker(case, rank, folder, broken) for rank in range(WORKERS)]
    threads = [
        threading.Thread(target=each.run, args=(lambda worker: synchronize_threads(worker, network),), daemon=True) for each in workers
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def processes_of(session: int) -> list[int]:
    """Returns the processes of a process session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of_session = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
            if int(of_session) == session and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def command_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
    return ""


def in_use(path: str) -> bool:
    """Returns whether a process has the file open or mapped. Then it belongs to a program that still runs beside this one."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path in (process / "maps").read_text(encoding="utf-8", errors="replace"):
                return True
            if any(os.readlink(each) == path for each in (process / "fd").iterdir()):
                return True
    return False


def listens(port: int) -> bool:
    """Returns whether a socket listens at the port."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text(encoding="utf-8").splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    return True
    return False


def run_cases(cases: list[Case], grace_s: float = GRACE_S, broken: str = "") -> dict[str, Any]:
    """Runs cases one after another, with a grace period of `grace_s` seconds. Returns the results."""
    if any(case.over in OF_TORCH for case in cases):
        # Import once here for all forked processes. Otherwise torch would import dynamo in the first step, which takes longer than the
        # grace period.
        importlib.import_module("sparsesync.torch")
        importlib.import_module("torch._dynamo")
    began = time.monotonic()
    runs, findings = [], []
    for number, case in enumerate(cases):
        folder = Path(tempfile.mkdtemp(prefix="sparsesync-faults-"))
        run = Run(case, folder, grace_s, broken)
        run.start()
        problems = run.finish()
        shutil.rmtree(folder)
        errors = ", ".join(run.errors.values()) or "no survivor"
        worst = max(run.seconds.values(), default=0.0)
        print(f"{number + 1:4} {case.over:7} {case.kind:9} {describe(case):24} worker {case.victim}: {errors} {worst:.2f} s", flush=True)
        if problems:
            print(f"FINDING: scripts/stress faults --over {case.over} --seed {case.seed} --runs 1")
            print("\n".join(f"    {each}" for each in problems), flush=True)
        findings += [{"seed": case.seed, "over": case.over, "problem": each, "case": dataclasses.asdict(case)} for each in problems]
        runs.append({"case": dataclasses.asdict(case), "seconds": run.seconds, "errors": run.errors})
    return {
        "workers": WORKERS,
        "deadline_s": DEADLINE_S,
        "grace_s": grace_s,
        "seconds": time.monotonic() - began,
        "runs": len(runs),
        "survivors": sum(len(each["errors"]) for each in runs),
        **table_of(runs),
        "findings": findings,
        "cases": runs,
        "provenance": sparsesync.provenance(),
    }


def describe(case: Case) -> str:
    if case.at == "call":
        return f"at call {case.number}"
    return f"{case.seconds:.3f} s into steps" if case.at == "time" else case.at


def table_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the runs and the longest seconds until a survivor's error by kind of fault, and the runs by point."""
    kinds: dict[str, dict[str, Any]] = collections.defaultdict(lambda: {"runs": 0, "seconds_most": 0.0})
    for each in runs:
        of_kind = kinds[f"{each['case']['over']} {each['case']['kind']}"]
        of_kind["runs"] += 1
        of_kind["seconds_most"] = max([of_kind["seconds_most"], *each["seconds"].values()])
    places = collections.Counter(f"{each['case']['over']} {each['case']['at']}" for each in runs)
    errors = collections.Counter(error or "none" for each in runs for error in each["errors"].values())
    return {"kinds": dict(sorted(kinds.items())), "places": dict(sorted(places.items())), "errors": dict(sorted(errors.items()))}


def worker_main(folder: str, case: str, broken: str) -> None:
    """Runs a worker that mpirun started."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    Worker(Case(**json.loads(case)), rank, Path(folder), broken).run(synchronize_over_mpi)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(prog="scripts/stress faults", description=__doc__, formatter_class=raw)
    options.add_argument("--over", choices=OVER, action="append", help="launcher; may be repeated (default: all)")
    options.add_argument("--runs", type=int, default=20, help="runs per launcher (20)")
    options.add_argument("--seed", type=int, help="seed of the first run; later ones count up (default: random)")
    options.add_argument("--grace", type=float, default=GRACE_S, help="seconds that a survivor may take after the deadline (1)")
    options.add_argument("--json", type=Path, help="write the result to this file")
    options.add_argument("--broken", default="", choices=["", *BREAKS], help=argparse.SUPPRESS)
    options.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    # Shells start background processes with interrupts ignored, and workers would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given.worker:
        worker_main(*given.worker, given.broken)
        return 0
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 30)
    print(f"scripts/stress faults --seed {seed}", flush=True)
    cases = [draw(each, over) for over in given.over or OVER for each in range(seed, seed + given.runs)]
    result = run_cases(cases, given.grace, given.broken)
    if given.json:
        write_results(given.json, {"seed": seed, **result})
    print(f"{result['runs']} runs in {result['seconds']:.0f} s, {result['survivors']} survivors, {len(result['findings'])} findings")
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    status = 0
    try:
        status = main()
    except InChildError as child:
        child.work()
    sys.exit(status)
