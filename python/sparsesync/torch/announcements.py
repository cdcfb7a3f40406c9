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
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.pending_results import PendingResults
from sparsesync.torch.schedule.schedule import Schedule

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
        self._schedule: Schedule | None = None
        self._told = False  # whether some bucket's rows of this step are
        self._listening = False
        self._telling = False
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

    def start(self, schedule: Schedule, tells: bool) -> None:
        """From the next forward pass on buckets of the schedule announce. Their order was set. tells: this step's are told now."""
        self._schedule = schedule
        if tells:
            self._usual = dict(self._calls)
        schedule.expect_announcements(self._usual)
        if tells:
            for bucket in schedule.end_forward():
                self._tell(bucket)

    # ---- A forward pass.

    def listen(self, tells: bool) -> None:
        """A forward pass begins; within no_sync() nothing is told."""
        self._calls = {}
        self._listening = True
        self._telling = False  # also after a pass that failed
        if not tells:
            return
        if self._told:
            raise _native.OrderError(_ENDED)
        assert self._schedule is not None
        self._schedule.begin_forward()
        self._telling = True

    @_disable_dynamo
    def _on_call(self, table: int, _: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._listening or not torch.is_grad_enabled():
            return
        self._asked.add(table, inputs[0] if inputs else named["input"])
        self._calls[table] = self._calls.get(table, 0) + 1
        if not self._telling or self._calls[table] != self._usual.get(table):
            return
        assert self._schedule is not None
        complete = self._schedule.announced(table)
        if complete:
            self._tell(complete)

    def end(self, tells: bool) -> None:
        """The forward pass is over."""
        self._listening = self._telling = False
        if tells:
            assert self._schedule is not None
            for bucket in self._schedule.end_forward():
                self._tell(bucket)

    def forget(self) -> None:
        """The step is over."""
        self._told = False
        self._asked.forget()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _tell(self, bucket: Bucket) -> None:
        self._results.take(bucket)
        self._told = True
        rows = [self._asked.view_of(member.index) for member in bucket.planned.members]
        self._session.announce(bucket.number, rows, self._asked.streams())
