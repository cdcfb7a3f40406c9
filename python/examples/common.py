"""Code that the examples share: options, the choice of a DistributedDataParallel, progress, and results."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import sparsesync
import torch
import torch.distributed as dist
from sparsesync.torch import DistributedDataParallel
from torch.nn.parallel import DistributedDataParallel as TorchsOwn

# Steps that steps/s and bytes exclude, because buckets are made in them.
STARTING = 2

_EPILOG = """\
run:
  python {program}
  torchrun --nproc-per-node 2 {program}
  mpirun -np 2 python {program}
compare with torch in one picture:
  torchrun --nproc-per-node 2 {program} --ddp torch --json torch.json
  torchrun --nproc-per-node 2 {program} --ddp sparsesync --against torch.json --plot both.svg
"""


class UserError(Exception):
    """An error that the user can fix: one line, exit status 2.

    everywhere: it occurs on all workers, so worker 0 alone prints it.
    """

    def __init__(self, line: str, everywhere: bool = True) -> None:
        super().__init__(line)
        self.everywhere = everywhere


@dataclasses.dataclass(frozen=True)
class World:
    """This process among the others, as its launcher describes it."""

    launcher: str = "none"
    rank: int = 0
    size: int = 1
    local_size: int = 1

    @staticmethod
    def found() -> World:
        for launcher, prefix in (("mpirun", "OMPI_COMM_WORLD_"), ("torchrun", "")):
            names = [f"{prefix}RANK", f"{prefix}{'' if prefix else 'WORLD_'}SIZE"]
            if all(name in os.environ for name in names):
                local = os.environ.get(f"{prefix}LOCAL_{'' if prefix else 'WORLD_'}SIZE", "1")
                return World(launcher, int(os.environ[names[0]]), int(os.environ[names[1]]), int(local))
        return World()


# ---- Options


def parser(description: str | None, *, steps: int, batch: int, lr: float) -> argparse.ArgumentParser:
    """Makes the parser with the options of both examples."""
    made = argparse.ArgumentParser(
        description=description,
        epilog=_EPILOG.format(program=sys.argv[0]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--ddp", choices=("sparsesync", "torch", "none"), default="sparsesync", help="wrapper that synchronizes gradients (sparsesync)"
    )
    made.add_argument(
        "--gradients", choices=("sparse", "dense"), default="sparse", help="layout of embedding gradients (sparse)"
    )
    made.add_argument("--optimizer", choices=("sgd", "adagrad", "adam"), default="adagrad", help="name of the optimizer (adagrad)")
    made.add_argument("--lr", type=float, default=lr, metavar="RATE", help=f"learning rate ({lr})")
    made.add_argument("--steps", type=positive, default=steps, metavar="N", help=f"number of steps ({steps})")
    made.add_argument("--batch", type=positive, default=batch, metavar="N", help=f"batch size of each worker ({batch})")
    made.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (1)")
    made.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the result as JSON")
    made.add_argument("--plot", type=pathlib.Path, metavar="FILE", help="draw loss against time: .svg, .png or .pdf")
    made.add_argument("--against", type=pathlib.Path, metavar="FILE", help="also draw another run, from its --json file")
    own = made.add_argument_group("options for --ddp sparsesync")
    own.add_argument("--scheme", metavar="NAME", help="a name from sparsesync.schemes() (auto)")
    own.add_argument("--wire", choices=("bf16", "f16"), help="type of the values in messages (f32)")
    own.add_argument("--announce", action="store_true", help="exchange row indices during the forward pass")
    own.add_argument("--transport", choices=("ucx", "gloo", "mpi"), help="network between the workers (that of the launcher)")
    torchs = made.add_argument_group("options for --ddp torch")
    torchs.add_argument(
        "--gloo-threads", type=positive, metavar="N", help="threads of the Gloo group; 1 avoids a crash in torch 2.15 (2)"
    )
    return made


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return value


def check(options: argparse.Namespace) -> None:
    """Checks the options, so that errors appear before minutes of training."""
    for ddp, names in (("sparsesync", ("scheme", "wire", "announce", "transport")), ("torch", ("gloo_threads",))):
        for name in names:
            if getattr(options, name) and options.ddp != ddp:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} with --ddp {options.ddp}: only {ddp} has it; leave it out")
    for path in (options.json, options.plot):
        if path and not path.absolute().parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.absolute().parent}; make it first")
        if path and path.is_dir():
            raise UserError(f"{path} is a folder: give the name of a file")
    if options.plot:
        if options.plot.suffix not in (".svg", ".png", ".pdf"):
            raise UserError(f"--plot {options.plot}: its name must end with .svg, .png or .pdf")
        if not importlib.util.find_spec("matplotlib"):
            raise UserError("--plot needs matplotlib: pip install matplotlib")
    if options.against:
        if not options.plot:
            raise UserError("--against needs --plot FILE, the picture to draw both runs into")
        read_result(options.against)


# ---- Wrapper and optimizers


def distributed(module: torch.nn.Module, options: argparse.Namespace, world: World) -> torch.nn.Module:
    """Wraps the module as --ddp says. This is the only line in which the two wrappers differ."""
    if options.ddp == "sparsesync":
        return DistributedDataParallel(
            module, scheme=options.scheme or "auto", wire=options.wire, announce=options.announce, transport=options.transport
        )
    if options.ddp == "torch":
        _initialize_torch(world)
        return TorchsOwn(module, process_group=gloo_group(options.gloo_threads) if options.gloo_threads else None)
    return module


def _initialize_torch(world: World) -> None:
    if world.size == 1 and world.launcher != "torchrun":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    elif "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        dist.init_process_group("gloo", rank=world.rank, world_size=world.size)
    else:
        raise UserError(
            "--ddp torch under mpirun: torch needs the host of rank 0 and a free port there: use "
            "mpirun -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 ..., or torchrun"
        )


def gloo_group(threads: int) -> dist.ProcessGroup:
    """Makes a Gloo group of all workers with a given number of threads.

    After each all-reduce a thread stores the operation's name in a string that torch does not lock. In torch 2.15 this
    corrupts the heap if one thread ends a sparse all-reduce, whose name is on the heap, while another ends a dense one
    (ProcessGroupGloo::runLoop). With one thread it cannot happen.
    """

    def create(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroup:
        interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "")  # read like this by torch, too
        gloo, options = dist.ProcessGroupGloo, dist.ProcessGroupGloo._Options()
        devices = [gloo.create_device(interface=each) for each in interfaces.split(",") if each]
        options._devices = devices or [gloo.create_default_device()]
        options._threads = threads
        options._timeout = timeout
        return gloo(store, rank, size, options)

    name = f"gloo_of_{threads}"
    dist.Backend.register_backend(name, create, devices=["cpu"])
    group: dist.ProcessGroup = dist.new_group(backend=name)
    return group


def optimizers(module: torch.nn.Module, options: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Makes the optimizers: one, or two if sparse gradients need a separate one."""
    if options.optimizer == "sgd":
        return [torch.optim.SGD(module.parameters(), lr=options.lr)]
    if options.optimizer == "adagrad":
        return [torch.optim.Adagrad(module.parameters(), lr=options.lr, initial_accumulator_value=0.001)]
    if options.gradients == "dense":
        return [torch.optim.Adam(module.parameters(), lr=options.lr)]
    tables = [each.weight for each in module.modules() if isinstance(each, torch.nn.Embedding)]
    numbers = {id(table) for table in tables}
    others = [parameter for parameter in module.parameters() if id(parameter) not in numbers]
    return [torch.optim.SparseAdam(tables, lr=options.lr), torch.optim.Adam(others, lr=options.lr)]


def gather(ddp: torch.nn.Module, own: Any) -> list[Any]:
    """Returns the value of each worker, by rank. Call it between steps, with a value that JSON can store."""
    if isinstance(ddp, DistributedDataParallel):
        return [json.loads(each) for each in ddp.synchronizer.session.all_gather(json.dumps(own).encode())]
    if isinstance(ddp, TorchsOwn):
        # all_gather_object() is avoided, because it unpickles data from other workers.
        text = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, torch.tensor([len(text)]))
        texts = [torch.zeros(int(max(sizes)), dtype=torch.uint8) for _ in sizes]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, int(max(sizes)) - len(text))))
        return [json.loads(bytes(each[: int(size)].tolist())) for each, size in zip(texts, sizes, strict=True)]
    return [own]


# ---- Run


class Run:
    """Runs the steps, shows progress, and prints and writes the result."""

    def __init__(self, ddp: torch.nn.Module, options: argparse.Namespace, world: World) -> None:
        self._ddp = ddp
        self._module: torch.nn.Module = getattr(ddp, "module", ddp)
        self._options = options
        self._world = world
        self._losses: list[float] = []
        self._seconds: list[float] = []  # since the start, at the end of each step
        self._before = {"bytes_sent": 0.0, "seconds_exposed": 0.0}  # costs of the starting steps

    def steps(self) -> Iterator[int]:
        """Yields the indices of the steps. Call record() in each step."""
        progress = _Progress(self._options.steps) if self._world.rank == 0 else None
        began = time.perf_counter()
        try:
            for step in range(self._options.steps):
                if step == STARTING:
                    self._before = self._taken()
                yield step
                self._seconds.append(time.perf_counter() - began)
                if progress:
                    progress.show(self._seconds, self._losses[-1])
        finally:
            if progress:
                progress.clear()

    def record(self, loss: torch.Tensor) -> None:
        self._losses.append(loss.item())

    def finish(self, measure: Callable[[], dict[str, float]]) -> None:
        """Ends the run on all workers. measure: returns measures of the trained module; called on worker 0 only."""
        taken = {name: value - self._before[name] for name, value in self._taken().items()}
        told = gather(self._ddp, {"losses": self._losses, "taken": taken, "digest": digest_of(self._module)})
        if self._world.rank == 0:
            result = self._result(told, measure())
            print("\n".join(_summary(result)), flush=True)
            if self._options.json:
                self._options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            if self._options.plot:
                against = [read_result(self._options.against)] if self._options.against else []
                draw(self._options.plot, [result, *against])
        if isinstance(self._ddp, DistributedDataParallel):
            self._ddp.close()

    def _taken(self) -> dict[str, float]:
        if not isinstance(self._ddp, DistributedDataParallel):
            return dict.fromkeys(self._before, 0.0)
        statistics = self._ddp.statistics()
        return {name: float(statistics[name]) for name in self._before}

    def _result(self, told: Sequence[dict[str, Any]], measures: dict[str, float]) -> dict[str, Any]:
        options = self._options
        tensors = list(self._module.parameters())
        result: dict[str, Any] = {
            "example": pathlib.Path(sys.argv[0]).stem,
            "options": {name: _plain(value) for name, value in vars(options).items()},
            "workers": self._world.size,
            "launcher": self._world.launcher,
            "losses": [sum(of_step) / len(told) for of_step in zip(*(each["losses"] for each in told), strict=True)],
            "seconds": self._seconds,
            "steps_per_second": _rate(self._seconds),
            "measures": measures,
            "parameters": sum(each.numel() for each in tensors),
            "parameters_bytes": sum(each.numel() * each.element_size() for each in tensors),
            "parameters_equal": None,
            "bytes_sent_per_step": None,
            "exposed_share": None,
            "provenance": {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "threads": torch.get_num_threads(),
                "cores": os.cpu_count(),
                "sparsesync": sparsesync.provenance(),
            },
        }
        if options.ddp != "none":
            result["parameters_equal"] = all(each["digest"] == told[0]["digest"] for each in told)
        if isinstance(self._ddp, DistributedDataParallel):
            counted = max(1, options.steps - STARTING)
            sent = [each["taken"]["bytes_sent"] / counted for each in told]
            exposed = [each["taken"]["seconds_exposed"] / counted * result["steps_per_second"] for each in told]
            result["bytes_sent_per_step"] = {"busiest": max(sent), "mean": sum(sent) / len(sent)}
            result["exposed_share"] = sum(exposed) / len(exposed)
            result["statistics"] = self._ddp.statistics()
        return result


def _plain(option: Any) -> Any:
    return str(option) if isinstance(option, pathlib.Path) else option


def _rate(seconds: Sequence[float]) -> float:
    """Returns the steps per second, without the starting steps if there are others."""
    if len(seconds) <= STARTING:
        return len(seconds) / seconds[-1]
    return (len(seconds) - STARTING) / (seconds[-1] - seconds[STARTING - 1])


def digest_of(module: torch.nn.Module) -> str:
    """Returns a digest of all bits of all parameters and buffers."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in module.state_dict().values():
        hashed.update(memoryview(tensor.detach().contiguous().flatten().view(torch.uint8).numpy()))
    return hashed.hexdigest()


def _summary(result: dict[str, Any]) -> Iterator[str]:
    losses, options = result["losses"], result["options"]
    last = losses[-max(1, len(losses) // 10) :]
    yield f"loss {losses[0]:.4f} in the first step, {sum(last) / len(last):.4f} over the last {counted(len(last), 'step')}"
    for name, value in result["measures"].items():
        yield f"{name.replace('_', ' ')} {value:.4f}"
    yield (
        f"{counted(len(losses), 'step')} in {result['seconds'][-1]:.1f} s, {result['steps_per_second']:.2f} steps/s: "
        f"{counted(result['workers'], 'worker')}, --ddp {options['ddp']}, {options['gradients']} gradients"
    )
    yield f"model of {result['parameters'] / 1e6:.2f} million parameters, {result['parameters_bytes'] / 1e6:.1f} MB"
    if result["bytes_sent_per_step"]:
        yield (
            f"sent by the busiest worker: {result['bytes_sent_per_step']['busiest'] / 1e6:.3f} MB per step; "
            f"backward waited {result['exposed_share']:.0%} of the time"
        )
    else:
        yield "bytes sent: only sparsesync counts them"
    yield {
        True: "the parameters of all workers are equal bit for bit",
        False: "the parameters of the workers DIFFER",
        None: "the parameters were not synchronized",
    }[result["parameters_equal"]]


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class _Progress:
    """A progress bar on a terminal, for runs of over two seconds; ten lines elsewhere."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._bar = sys.stderr.isatty()
        self._shown = 0.0  # seconds since the start when the bar was last drawn

    def show(self, seconds: Sequence[float], loss: float) -> None:
        done = len(seconds)
        text = f"loss {loss:.4f}  {_rate(seconds):.1f} steps/s"
        if not self._bar:
            if done % max(1, self._steps // 10) == 0 or done == self._steps:
                print(f"step {done} of {self._steps}  {text}", flush=True)
            return
        if seconds[-1] < 2 or seconds[-1] - self._shown < 0.1:
            return
        self._shown = seconds[-1]
        text = f"{done}/{self._steps}  {text}"
        width = max(10, min(60, shutil.get_terminal_size().columns - len(text) - 4))
        full = width * done // self._steps
        print(f"\r\x1b[K[{'#' * full}{'.' * (width - full)}] {text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# ---- Picture


def read_result(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file that --json wrote."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--against {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--against {path}: {error}; give a file that --json wrote") from None
    if not isinstance(result, dict) or not {"losses", "seconds", "steps_per_second", "options"} <= result.keys():
        raise UserError(f"--against {path}: this is not the result of an example; give a file that --json wrote")
    return result


def draw(path: pathlib.Path, results: Sequence[dict[str, Any]]) -> None:
    """Draws loss against time: each step in a pale colour, and a moving average."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        losses, options, colour = result["losses"], result["options"], f"C{number}"
        span = max(1, len(losses) // 20)
        parts = [losses[max(0, end - span) : end] for end in range(1, len(losses) + 1)]
        label = f"{options['ddp']}, {options['gradients']} gradients: {result['steps_per_second']:.1f} steps/s"
        axes.plot(result["seconds"], losses, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(result["seconds"], [sum(part) / len(part) for part in parts], color=colour, label=label)
    title = f"{results[0]['example'].replace('_', ' ')}, {counted(results[0]['workers'], 'worker')}"
    axes.set(xlabel="seconds", ylabel="loss of a step, mean over workers", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


# ---- Start and end of a process


class _Interrupts:
    """Records interrupts by the user, or by a launcher that ends its processes."""

    def __init__(self) -> None:
        self.came = False
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._on_signal)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if not self.came:  # later signals are ignored during shutdown
            self.came = True
            raise KeyboardInterrupt

    def soon(self) -> bool:
        """Returns whether this process was also interrupted, shortly after an error from workers that were interrupted first."""
        try:
            if not self.came:
                time.sleep(0.5)
        except KeyboardInterrupt:
            pass
        return self.came


def _leave_torch() -> None:
    """Ends torch's process group and its threads. A thread that releases a tensor while Python ends would abort the process."""
    gc.collect()  # the wrapper's reference cycles keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()


def launch(main: Callable[[argparse.Namespace, World], None], options: argparse.Namespace) -> NoReturn:
    """Runs an example in this process and exits. Errors that the user can fix are one line, printed once."""
    interrupts = _Interrupts()
    world = World.found()

    def end(status: int, line: str, tells: bool) -> NoReturn:
        if tells:
            print(f"{pathlib.Path(sys.argv[0]).name}: {line}", file=sys.stderr, flush=True)
        sys.exit(status)

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world.local_size))
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # otherwise Adagrad warns
    torch.manual_seed(options.seed)
    try:
        check(options)
        main(options, world)
        _leave_torch()
    except KeyboardInterrupt:
        end(130, "interrupted", world.rank == 0)
    except UserError as error:
        end(2, str(error), world.rank == 0 or not error.everywhere)
    except (sparsesync.Error, RuntimeError) as error:
        if interrupts.soon():
            end(130, "interrupted", world.rank == 0)
        if isinstance(error, sparsesync.InputError | sparsesync.UnsupportedError):
            end(2, str(error), world.rank == 0)
        if isinstance(error, sparsesync.Error):
            end(1, f"worker {world.rank}: {error}", True)
        raise
    sys.exit(0)
