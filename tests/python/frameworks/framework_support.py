"""The model, data and checks that all tests of frameworks share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import launching
import torch
import torch.distributed as dist

# The environment of the guide's programs. They import this module at their end.
PATH = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(launching.HERE), str(Path(__file__).parent)])
GUIDE = {"PYTHONPATH": PATH, "SPARSESYNC_BACKEND_SCHEME": "balanced"}

ROWS, WIDTH, CLASSES = 3000, 8, 3
WORKERS, BATCH, STEPS = 2, 16, 6
RATE = 0.5  # learning rate


class Model(torch.nn.Module):
    """Two tables with sparse gradients, and a dense layer. All ranks have the same initial weights."""

    def __init__(self) -> None:
        super().__init__()
        source = torch.random.get_rng_state()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
        self.others = torch.nn.EmbeddingBag(ROWS, WIDTH, sparse=True, mode="sum")
        self.out = torch.nn.Linear(WIDTH, CLASSES)
        torch.random.set_rng_state(source)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.words(ids) + self.others(ids.unsqueeze(1)))
        return result

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(ids).float(), ids % CLASSES)


def all_ids(steps: int = STEPS) -> torch.Tensor:
    """Returns the inputs of all ranks: [samples], dtype torch.int64. Ranks share each STEP's WORKERS * BATCH samples."""
    return torch.randint(0, ROWS, (WORKERS * BATCH * steps,), generator=torch.Generator().manual_seed(7))


def alone(
    steps: int = STEPS,
    *,
    accumulated: int = 1,
    clip: float | None = None,
    context: Callable[[], Any] | None = None,
    epochs: int = 1,
    optimizer: Any = torch.optim.SGD,
) -> torch.nn.Module:
    """Trains in this process, with the batches of all ranks in each step. The mean gradient of equal batches is that of their union."""
    model = Model()
    optimizer = optimizer(model.parameters(), RATE)
    batches = epochs * all_ids(steps).split(WORKERS * BATCH)
    for number, ids in enumerate(batches, 1):
        if context is None:
            loss = model.loss(ids)
        else:
            with context():
                loss = model.loss(ids)
        (loss / accumulated).backward()
        if number % accumulated == 0:
            if clip is not None:
                norm_clipped(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


def norm_clipped(parameters: Iterable[torch.nn.Parameter], most: float) -> None:
    """Clips the norm of gradients, independently of torch's implementation for sparse ones."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    norm = torch.stack([each.to_dense().double().square().sum() for each in gradients]).sum().sqrt()
    for each in gradients:
        each.mul_(min(1.0, most / (float(norm) + 1e-6)))


def distance(ours: torch.nn.Module, theirs: torch.nn.Module) -> float:
    """Returns the largest difference of two models' parameters."""
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(float((a.detach().float() - b.detach().float()).abs().max()) for a, b in pairs)


def bits(model: torch.nn.Module) -> list[int]:
    """Returns a hash of each parameter. Run with PYTHONHASHSEED=0 to compare ranks."""
    return [hash(each.detach().float().numpy().tobytes()) for each in model.parameters()]


def sent_by_backend() -> int:
    """Returns the bytes of sparse tensors that the backend of the default group has sent; 0 if it is another backend."""
    from sparsesync.torch.backend import SparseSyncBackend

    backend = dist.group.WORLD._get_backend(torch.device("cpu")) if dist.is_initialized() else None
    if not isinstance(backend, SparseSyncBackend):
        return 0
    return backend.reducer(torch.device("cpu")).counters().get("bytes_sent", 0)


def rows_bytes(steps: int = STEPS) -> int:
    """Returns a lower bound of the bytes that a rank sends. In each step it sends half of its rows of each table, at least."""
    rows = min(len(batch.unique()) for batch in all_ids(steps).split(BATCH))
    return steps * 2 * (rows // 2) * WIDTH * 2  # 2 tables; values of 2 bytes or more


def program_of_the_guide(section: str, folder: Path, before: str = "dist.destroy_process_group()\n") -> Path:
    """Writes the first program of a section of the guide, and lines that print the bytes that sparsesync has sent.

    before: the text that these lines precede; they are the last ones if the program does not have it.
    """
    page = (launching.ROOT / "docs/guide/frameworks.md").read_text(encoding="utf-8")
    [text] = re.findall(rf"^## {section}\n.*?```python\n(.*?)```", page, flags=re.DOTALL | re.MULTILINE)
    start, found, end = text.partition(before)
    check = "import sys, framework_support as support\nsys.stdout.write(f'sent {support.sent_by_backend()}\\n')\n"
    program = folder / "train.py"
    program.write_text(start + check + found + end, encoding="utf-8")
    return program


def outcomes(program: Path, folder: Path) -> list[Any]:
    """Runs the cases of a program on all ranks. Returns the results of each rank, by case."""
    command = launching.torchrun(WORKERS, program, folder)
    return launching.outcomes(command, folder, WORKERS, PYTHONHASHSEED="0", SPARSESYNC_BACKEND_SCHEME="balanced")


def of(found: list[Any], case: str) -> list[Any]:
    """Returns the results of a case, by rank."""
    return [each[case] for each in found]


def expect_sent(done: subprocess.CompletedProcess[str]) -> None:
    """Expects that the program of the guide ended, and that sparsesync has sent bytes on each rank."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    sent = [int(each) for each in re.findall(r"sent (\d+)", done.stdout)]
    assert len(sent) == WORKERS and min(sent) > 1000, f"{done.stdout}\n{done.stderr}"


def report(folder: str, found: dict[str, Any], rank: int) -> None:
    """Writes the results of a rank, and the names of this library's threads that are left."""
    found["threads left"] = sorted(each.name for each in threading.enumerate() if each.name.startswith("sparsesync"))
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()


def expect_trained(found: list[Any], steps: int = STEPS, tolerance: float = 1e-6) -> None:
    """Expects equal parameters on all ranks, near those of a single process, and sparse gradients that sparsesync has sent."""
    assert [each["bits"] for each in found] == [found[0]["bits"]] * len(found), found
    for each in found:
        assert each["error"] <= tolerance, found
        assert each["moved"] > 100 * max(tolerance, 1e-6), "the model did not train"
        assert each["sent"] >= rows_bytes(steps), found
