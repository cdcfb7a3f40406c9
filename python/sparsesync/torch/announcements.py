"""Rows of embeddings, told to the others as their forward pass begins."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import all of dynamo at once

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Synchronized, nonzero_rows
from sparsesync.torch.module_hooks import OnModule, weakly
from sparsesync.torch.schedule.pending_results import PendingResults

_ENDED = (
    "announce=True: a forward pass that keeps gradients was not followed by its backward pass, and its rows are told "
    "already: use torch.no_grad() where none follows, one forward pass for each backward, or announce=False"
)


class AskedRows:
    """Rows that embeddings were asked for since the last synchronized step, by table."""

    def __init__(self, device: CpuDevice, none: torch.Tensor) -> None:
        """none: no rows, where the module is."""
        self._device = device
        self._none = none
        self._rows: dict[int, list[torch.Tensor]] = {}
        self._streams: set[int] = set()  # that wrote them

    def listen_to(self, table: int) -> None:
        self._rows[table] = []

    def __contains__(self, table: int) -> bool:
        return table in self._rows

    def add(self, table: int, rows: torch.Tensor) -> None:
        self._streams.add(self._device.stream())
        self._rows[table].append(rows.detach().flatten().to(torch.int64))

    def rows_of(self, table: int) -> torch.Tensor:
        rows = self._rows[table]
        return torch.cat(rows) if rows else self._none

    def view_of(self, table: int) -> Any:
        """The rows as Session.announce takes them."""
        return self._device.view(self.rows_of(table))

    def streams(self) -> list[int]:
        """Streams that wrote the rows, and the present one."""
        return sorted({*self._streams, self._device.stream()})

    def forget(self) -> None:
        self._streams = set()
        for rows in self._rows.values():
            rows.clear()


class Announcements:
    """Listens to the embeddings of a module, and announces the rows of buckets that are nothing but their weights.

    A bucket's rows are told when the last of its tables has been asked as often as in the first step; what is asked less
    often, at the end of the forward pass. Rows of passes within no_sync() count to the step that they are synchronized in.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Sequence[Synchronized],
        session: _native.Session,
        device: CpuDevice,
        results: PendingResults,
    ) -> None:
        """results: of the last step, which are taken before their bucket announces."""
        self._session = session
        self._results = results
        self._asked = AskedRows(device, torch.empty(0, dtype=torch.int64, device=parameters[0].parameter.device))
        self._calls: dict[int, int] = {}  # of each table, in this pass
        self._usual: dict[int, int] = {}  # in the first one
        self._members: dict[int, tuple[int, ...]] = {}  # bucket: its tables
        self._untold: dict[int, set[int]] = {}  # bucket: tables that have not been asked as often as usual
        self._told: set[int] = set()
        self._listening = False
        self._hooks = []
        by_parameter: dict[torch.Tensor, int] = {member.parameter: member.index for member in parameters}
        on_call = weakly(self._on_call)
        for embedding in module.modules():
            if isinstance(embedding, torch.nn.Embedding | torch.nn.EmbeddingBag) and embedding.weight in by_parameter:
                table = by_parameter[embedding.weight]
                self._asked.listen_to(table)
                hook = OnModule(functools.partial(on_call, table))
                self._hooks.append(embedding.register_forward_pre_hook(hook, with_kwargs=True))

    # ---- When buckets are made.

    def untold(self, parameters: Iterable[Synchronized]) -> list[int]:
        """Parameters whose gradients touch rows here that no embedding was asked for: they cannot announce."""
        return [each.index for each in parameters if not self._is_told(each)]

    def _is_told(self, parameter: Synchronized) -> bool:
        if parameter.index not in self._asked:
            return False
        gradient = parameter.parameter.grad
        if gradient is None:
            return True
        return bool(torch.isin(nonzero_rows(gradient), self._asked.rows_of(parameter.index)).all())

    def start(self, members: dict[int, tuple[int, ...]], tells: bool) -> None:
        """From the next forward pass on these buckets announce. Their order was set. tells: this step's are told now."""
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
    def _on_call(self, table: int, _: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._listening or not torch.is_grad_enabled():
            return
        self._asked.add(table, inputs[0] if inputs else named["input"])
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
        self._asked.forget()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _tell(self, bucket: int) -> None:
        self._results.take_numbered(bucket)
        self._told.add(bucket)
        rows = [self._asked.view_of(table) for table in self._members[bucket]]
        self._session.announce(bucket, rows, self._asked.streams())
