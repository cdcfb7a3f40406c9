"""Runs tests that torch ships over the backend `sparsesync`: shipped_cases.py FOLDER, started by torchrun.

torch's harness starts processes for each test. Here, all tests run in the same processes, each in a new process group. Each process writes
the outcomes to FOLDER/RANK.json: for each test "passed", or the reason why it was left out or skipped, or failed.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import sys
import traceback
import unittest
from pathlib import Path
from typing import Any

os.environ["BACKEND"] = "gloo"  # so that torch does not skip the tests of Gloo

import sparsesync.torch  # noqa: F401
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test as shipped

BACKEND = "sparsesync"
WAIT = datetime.timedelta(seconds=60)

_WORK = "torch wraps the operations of backends written in Python, and the wrapper has wait() and get_future() only"
_TIME = "measures time; over Gloo it fails here, too, because ranks share the processes of earlier tests"
LEFT_OUT = {
    "test_ddp_logging_data_cpu": "torch logs the name 'custom'",
    **dict.fromkeys(("test_irecv", "test_isend", "test_isend_autograd_profiler", "test_isend_torch_profiler"), _WORK),
    **dict.fromkeys((f"test_send_recv_any_source{each}" for each in ("", "_autograd_profiler", "_torch_profiler")), _WORK),
    **dict.fromkeys(("test_barrier_timeout_full_group", "test_barrier_timeout_global", "test_barrier_timeout_group"), _TIME),
    "test_SyncBatchNorm_process_group": "needs torchvision",
}


class Cases(shipped.TestDistBackend, shipped.DistributedTest._DistTestBase):  # type: ignore[misc]
    """torch's tests of backends."""


def run(name: str, rank: int, folder: Path) -> str:
    """Runs a test within a process group. Returns its outcome."""
    if name in LEFT_OUT:
        return f"left out: {LEFT_OUT[name]}"
    method = getattr(Cases, name)
    if getattr(method, "__unittest_skip__", False):
        return f"skipped: {method.__unittest_skip_why__}"
    # These tests choose the model by the name of the backend.
    shipped.BACKEND = "gloo" if name.startswith("test_accumulate_gradients") else BACKEND
    if rank == 0:
        shipped.Barrier.init()
    shipped.Barrier.barrier_id = 0
    dist.barrier()
    random.seed(0)
    torch.manual_seed(0)
    case = Cases(name)
    case.rank = rank
    case.file_name = str(folder / name)
    try:
        getattr(case, name)()
    except unittest.SkipTest as skipped:
        return f"skipped: {skipped}"
    except SystemExit as skipped:
        return f"skipped: status {skipped.code}"
    except BaseException:
        return f"failed: {traceback.format_exc()}"
    return "passed"


def main() -> None:
    folder = Path(sys.argv[1])
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["TEMP_DIR"] = str(folder)
    for each in ("barrier", "test_dir", "init_dir"):
        (folder / each).mkdir(exist_ok=True)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, workers, rank == 0, WAIT)
    found: dict[str, Any] = {}
    for name in dir(Cases):
        if name.startswith("test_"):
            dist.init_process_group(BACKEND, store=dist.PrefixStore(name, store), rank=rank, world_size=workers, timeout=WAIT)
            found[name] = run(name, rank, folder)
            store.set(f"{name} {rank}", "")
            store.wait([f"{name} {each}" for each in range(workers)], WAIT)  # a test that fails on one rank breaks connections
            dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
