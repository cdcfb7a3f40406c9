"""``init_method="launcher://"`` of torch.distributed, for processes of Slurm and of launchers with PMI's variables."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from sparsesync import _launchers, _native

SCHEME = "launcher"  # torch.distributed.init_process_group(..., init_method="launcher://")


def _rendezvous(url: str, timeout: datetime.timedelta = dist.default_pg_timeout, **more: Any) -> Iterator[Any]:
    """Connects processes for torch. Processes of torchrun, or with its variables, connect as with env://."""
    if not _launchers.started_by_torchrun():
        found = _launchers.torch_variables()
        if not found:
            raise _native.InputError(
                "launcher://: neither torchrun, srun nor PMI started this process with others: set RANK, WORLD_SIZE, MASTER_ADDR and "
                "MASTER_PORT, or use another init_method"
            )
        os.environ.update(found)
    yield from rendezvous(url.replace(SCHEME, "env", 1), timeout=timeout, **more)


def register() -> None:
    """Registers ``init_method="launcher://"`` with torch.distributed."""
    register_rendezvous_handler(SCHEME, _rendezvous)  # type: ignore[no-untyped-call]
