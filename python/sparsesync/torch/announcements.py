"""Index prefetch: embeddings announce the rows they look up to the other workers during the forward pass."""

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
    "announce=True: a forward pass that keeps gradients was not followed by its backward pass, and its rows were already "
    "announced: use torch.no_grad() for passes without backward, one forward pass for each backward, or announce=False"
)


class AskedRows:
    """The rows that embeddings looked up since the last synchronized step, by table."""

    def __init__(self, device: CpuDevice, none: torch.Tensor) -> None:
        """Starts without tables. none: an empty tensor of rows on the module's device."""
        self._device = device
        self._none = none
        self._rows: dict[int, list[torch.Tensor]] = {}
        self._streams: set[int] = set()  # streams that wrote the rows

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
        """Returns the rows of a table in the form that Session.announce takes."""
        return self._device.view(self.rows_of(table))

    def streams(self) -> list[int]:
        """Returns the streams that wrote the rows, and the current one."""
        return sorted({*self._streams, self._device.stream()})

    def forget(self) -> None:
        self._streams = set()
        for rows in self._rows.values():
            rows.clear()


class Announcements:
    """Listens to the embeddings of a module, and announces the rows of buckets that consist of embedding weights.

    A bucket's rows are announced when the last of its tables has had as many lookups as in the first step. If a table
    has fewer, they are announced at the end of the forward pass. Rows of passes within no_sync() belong to the step
    that synchronizes them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Sequence[Synchronized],
        session: _native.Session,
        device: CpuDevice,
        results: PendingResults,
    ) -> None:
        """Registers the hooks. results: the results of the last step, which a bucket takes before it announces."""
        self._session = session
        self._results = results
        self._asked = AskedRows(device, torch.empty(0, dtype=torch.int64, device=parameters[0].parameter.device))
        self._calls: dict[int, int] = {}  # lookups of each table in this pass
        self._usual: dict[int, int] = {}  # lookups of each table in the first pass
        self._schedule: Schedule | None = None
        self._told = False  # some bucket announced its rows in this step
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

    # ---- When buckets are made

    def untold(self, parameters: Iterable[Synchronized]) -> list[int]:
        """Returns the parameters whose gradients touch rows that no embedding looked up here: they cannot announce."""
        return [each.index for each in parameters if not self._is_told(each)]

    def _is_told(self, parameter: Synchronized) -> bool:
        if parameter.index not in self._asked:
            return False
        gradient = parameter.parameter.grad
        if gradient is None:
            return True
        return bool(torch.isin(nonzero_rows(gradient), self._asked.rows_of(parameter.index)).all())

    def start(self, schedule: Schedule, announces: bool) -> None:
        """Has the buckets of a schedule announce from the next forward pass on.

        Their order was set. announces: announce this step's rows now.
        """
        self._schedule = schedule
        if announces:
            self._usual = dict(self._calls)
        schedule.expect_announcements(self._usual)
        if announces:
            for bucket in schedule.end_forward():
                self._tell(bucket)

    # ---- Forward pass

    def listen(self, announces: bool) -> None:
        """Begins a forward pass. announces: announce its rows; False within no_sync()."""
        self._calls = {}
        self._listening = True
        self._telling = False  # also after a pass that failed
        if not announces:
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

    def end(self, announces: bool) -> None:
        """Ends a forward pass. announces: announce the rows of buckets that have not announced yet."""
        self._listening = self._telling = False
        if announces:
            assert self._schedule is not None
            for bucket in self._schedule.end_forward():
                self._tell(bucket)

    def forget(self) -> None:
        """Ends the step."""
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
