"""Rows of embeddings, told to the others as their forward pass begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import all of dynamo at once

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import OnModule, Synchronized, nonzero_rows, weakly

_ENDED = (
    "announce=True: a forward pass that keeps gradients was not followed by its backward pass, and its rows are told "
    "already: use torch.no_grad() where none follows, one forward pass for each backward, or announce=False"
)


class Announcements:
    """Listens to the embeddings of a module, and announces the rows of buckets that are nothing but their weights.

    A bucket's rows are told when the last of its tables has been asked as often as in the first step; what is asked less
    often, at the end of the forward pass. Rows of passes within no_sync() count to the step that they are synchronized in.
    """

    def __init__(self, module: torch.nn.Module, parameters: Sequence[Synchronized], device: CpuDevice) -> None:
        self._device = device
        self._streams: set[int] = set()  # that wrote the rows that were asked for
        self._none = torch.empty(0, dtype=torch.int64, device=parameters[0].parameter.device)
        by_parameter: dict[torch.Tensor, int] = {each.parameter: each.index for each in parameters}
        self._rows: dict[int, list[torch.Tensor]] = {}  # of each table, asked for since the last synchronized step
        self._calls: dict[int, int] = {}  # in this pass
        self._usual: dict[int, int] = {}  # in the first one
        self._members: dict[int, tuple[int, ...]] = {}  # bucket: its tables
        self._untold: dict[int, set[int]] = {}  # bucket: tables that have not been asked as often as usual
        self._told: set[int] = set()
        self._session: _native.Session | None = None
        self._finish: Callable[[int], None] = lambda _: None
        self._listening = False
        self._hooks = []
        asked = weakly(self._asked)
        for each in module.modules():
            if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag) and each.weight in by_parameter:
                index = by_parameter[each.weight]
                self._rows[index] = []
                hook = OnModule(functools.partial(asked, index))
                self._hooks.append(each.register_forward_pre_hook(hook, with_kwargs=True))

    # ---- When buckets are made.

    def untold(self, parameters: Iterable[Synchronized]) -> list[int]:
        """Parameters whose gradients touch rows here that no embedding was asked for: they cannot announce."""
        return [each.index for each in parameters if not self._is_told(each)]

    def _is_told(self, parameter: Synchronized) -> bool:
        if parameter.index not in self._rows:
            return False
        gradient = parameter.parameter.grad
        if gradient is None:
            return True
        return bool(torch.isin(nonzero_rows(gradient), self._asked_rows(parameter.index)).all())

    def start(
        self, session: _native.Session, members: dict[int, tuple[int, ...]], tells: bool, finish: Callable[[int], None]
    ) -> None:
        """From the next forward pass on these buckets announce. Their order was set. tells: this step's are told now. finish: has
        the results of a bucket's last step taken, if they were not."""
        self._session = session
        self._finish = finish
        self._members = members
        if not tells:
            return
        self._usual = dict(self._calls)
        for bucket in members:
            self._tell(bucket)

    # ---- A forward pass.

    def listen(self, tells: bool) -> None:
        """A forward pass begins; within no_sync() nothing is told."""
        self._calls = {}
        self._listening = True
        if not tells:
            return
        if self._told:
            raise _native.OrderError(_ENDED)
        self._untold = {
            bucket: {table for table in tables if self._usual.get(table, 0) > 0}
            for bucket, tables in self._members.items()
        }

    @_disable_dynamo
    def _asked(self, table: int, _: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._listening or not torch.is_grad_enabled():
            return
        asked = inputs[0] if inputs else named["input"]
        self._streams.add(self._device.stream())
        self._rows[table].append(asked.detach().flatten().to(torch.int64))
        self._calls[table] = self._calls.get(table, 0) + 1
        if self._calls[table] != self._usual.get(table):
            return
        for bucket, tables in self._untold.items():
            if table in tables:
                tables.remove(table)
                if not tables:
                    self._tell(bucket)

    def end(self, tells: bool) -> None:
        """The forward pass is over."""
        self._listening = False
        if tells:
            for bucket in self._members:
                if bucket not in self._told:
                    self._tell(bucket)
        self._untold = {}

    def forget(self) -> None:
        """The step is over."""
        self._told = set()
        self._streams = set()
        for rows in self._rows.values():
            rows.clear()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _asked_rows(self, table: int) -> torch.Tensor:
        rows = self._rows[table]
        return torch.cat(rows) if rows else self._none

    def _tell(self, bucket: int) -> None:
        assert self._session is not None
        self._finish(bucket)
        self._told.add(bucket)
        rows = [self._device.view(self._asked_rows(table)) for table in self._members[bucket]]
        self._session.announce(bucket, rows, sorted({*self._streams, self._device.stream()}))
