"""The programs of docs/guide/parallelism.md train as one process with the batches of all ranks does."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching
import torch.distributed as dist

PAGE = (launching.ROOT / "docs/guide/parallelism.md").read_text(encoding="utf-8")
MODEL = next(each for each in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "class Model" in each)

# Trains a copy of the model in each process. {seeds} are those of the batches.
CHECK = """
import json, pathlib, sys
from torch.distributed.tensor import DTensor

found = [each.detach().full_tensor() if isinstance(each, DTensor) else each.detach() for each in model.parameters()]
torch.manual_seed(0)
alone = Model()
before = [each.detach().clone() for each in alone.parameters()]
batches = []
for seed in {seeds}:
    batches.append(torch.randint(100_000, (64, 8), generator=torch.Generator().manual_seed(seed)))
(sum(alone(each) for each in batches) / len(batches)).backward()
torch.optim.SGD(alone.parameters(), lr=0.1).step()
outcome = {{
    "rank": dist.get_rank(),
    "errors": [float((one - other).abs().max()) for one, other in zip(found, alone.parameters(), strict=True)],
    "moved": [float((one - other).abs().max()) for one, other in zip(before, alone.parameters(), strict=True)],
}}
pathlib.Path(sys.argv[1], f"{{dist.get_rank()}}.json").write_text(json.dumps(outcome))
dist.destroy_process_group()
"""


def section(title: str) -> str:
    """Returns the program in a section of the page."""
    found = re.search(rf"^## {title}$.*?```python\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def train(title: str, workers: int, seeds: list[int], folder: Path, leave_out: str = "") -> list[Any]:
    program = folder / "train.py"
    text = "".join(line for line in section(title).splitlines(keepends=True) if not leave_out or leave_out not in line)
    program.write_text(MODEL + text + CHECK.format(seeds=seeds), encoding="utf-8")
    return launching.outcomes(launching.torchrun(workers, program, folder), folder, workers)


@pytest.mark.parametrize(
    ("title", "workers", "seeds"),
    [
        ("FSDP2", 2, [1, 2]),
        ("HSDP", 4, [1, 2, 3, 4]),
        ("replicate", 2, [1, 2]),
        ("DeepSpeed", 2, [1, 2]),
        ("Tensor parallelism", 4, [0, 1]),
    ],
)
def test_training_gives_the_parameters_of_one_process(title: str, workers: int, seeds: list[int], tmp_path: Path) -> None:
    if not dist.is_gloo_available():
        pytest.skip("this build of torch has no Gloo")
    if title == "DeepSpeed":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed; scripts/test --full installs it")
    for each in train(title, workers, seeds, tmp_path):
        assert min(each["moved"]) > 1e-3 and max(each["errors"]) < 1e-5, each


def test_the_check_fails_without_synchronization(tmp_path: Path) -> None:
    for each in train("FSDP2", 2, [1, 2], tmp_path, leave_out="synchronize"):
        table, *others = each["errors"]
        assert table > 1e-3 and max(others) < 1e-5, each
