"""Parameters and buffers that workers share: broadcast from one worker, checked for changes, and buffers sent after the gradients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import DTYPES, Result, Synchronized, wait_for_step

_WRAP_AGAIN = "its gradient would stay on each worker: call close() on the DistributedDataParallel, and wrap the module again"
_DTYPES = {**DTYPES, torch.int32: "i32", torch.int64: "i64"}
_WORD = 4  # bytes; buffers of other types are sent as i32 words


class ModuleState:
    """All parameters and buffers of a module, except those listed in ``_ddp_params_and_buffers_to_ignore``, as in torch.

    shares_buffers: buffers become those of worker 0. False: each worker keeps its buffers, of any layout and shape.
    """

    def __init__(self, module: torch.nn.Module, shares_buffers: bool) -> None:
        self.module = module
        self._ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.shares_buffers = shares_buffers

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Returns each parameter once, under its first name that is not ignored."""
        named = self.module.named_parameters(remove_duplicate=False)
        by_id = {id(each): (name, each) for name, each in reversed([one for one in named if one[0] not in self._ignored])}
        return list(reversed(by_id.values()))

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the shared buffers that have elements, as they are now."""
        if not self.shares_buffers:
            return []
        return [(name, each) for name, each in self.module.named_buffers() if each.numel() > 0 and name not in self._ignored]

    def check(self) -> None:
        """Raises UnsupportedError naming a parameter or a buffer that cannot be broadcast."""
        for what, named, remedy in (
            ("parameter", self.parameters(), "replace it"),
            ("buffer", self.buffers(), "pass broadcast_buffers=False"),
        ):
            for name, each in named:
                problem = _problem_of(each)
                if problem:
                    raise _native.UnsupportedError(
                        f"{what} '{name}' {problem}: {remedy}, or name it in the module's _ddp_params_and_buffers_to_ignore"
                    )

    def take_over(self, session: _native.Session, root: int) -> None:
        """Broadcasts parameters and buffers from worker ``root``. All workers call it between steps.

        Tensors that are equal everywhere are not sent. Tensors on a GPU are copied through the host.
        """
        state = [each.detach() for _, each in (*self.parameters(), *self.buffers())]
        own = b"".join(hashlib.blake2b(bytes_of(each).cpu().numpy().data, digest_size=16).digest() for each in state)
        told = session.all_gather(own)
        for place, each in enumerate(state):
            span = slice(16 * place, 16 * place + 16)
            if all(of_worker[span] == own[span] for of_worker in told):
                continue
            data = bytes_of(each).cpu()
            session.broadcast(data, root)
            if data.data_ptr() == each.data_ptr():
                torch.autograd.graph.increment_version(each)  # the session wrote behind torch's back
            else:
                each.copy_(data.view(each.dtype).view(each.shape))


def _problem_of(tensor: torch.Tensor) -> str | None:
    if tensor.is_meta:
        return "is on the meta device, and has no values"
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}, and only strided tensors are sent"
    if torch._debug_has_internal_overlap(tensor) == 1:
        return "is expanded: several of its elements share memory, and cannot be written"
    return None


def broadcast_together(session: _native.Session, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Broadcasts small tensors from worker ``root``, in one message. All workers call it between steps.

    For tensors on a GPU, ``root`` waits for its stream, and the other workers do not wait.
    """
    if not tensors:
        return
    on_gpu = any(each.device.type != "cpu" for each in tensors)
    if session.rank == root or not on_gpu:
        together = torch.cat([bytes_of(each).cpu() for each in tensors])
    else:
        # Pinned memory makes the copies to the GPU asynchronous.
        size = sum(each.numel() * each.element_size() for each in tensors)
        together = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    session.broadcast(together, root)
    if session.rank == root:
        return
    at = 0
    for each in tensors:
        size = each.numel() * each.element_size()
        own = together[at : at + size]
        if own.storage_offset() % each.element_size() != 0:
            own = own.clone()
        each.detach().copy_(own.view(each.dtype).view(each.shape), non_blocking=True)
        at += size


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements as uint8, without a copy if they are contiguous."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


class Membership:
    """Checks before each forward pass that the module's parameters are still those that are synchronized."""

    def __init__(self, state: ModuleState, synchronized: Sequence[Synchronized]) -> None:
        self._state = state
        self._synchronized = {id(each.parameter) for each in synchronized}
        self._first = synchronized[0]
        self._type = (self._first.parameter.dtype, self._first.parameter.device)
        self._look()

    def _look(self) -> None:
        # The modules are kept alive, so that no new object can reuse their id().
        self._modules = list(self._state.module.modules())
        self._owned = [owned for each in self._modules for owned in (each._parameters, each._modules)]
        self._seen = self._identities()
        self._frozen = [each for _, each in self._state.parameters() if id(each) not in self._synchronized]

    def _identities(self) -> list[int]:
        return [id(each) for owned in self._owned for each in owned.values()]

    def check(self) -> None:
        """Raises OrderError if a parameter was added, or began to require a gradient, since the module was wrapped.

        It also raises if the module's dtype or device changed.
        """
        first = self._first.parameter
        if (first.dtype, first.device) != self._type:
            raise _native.OrderError(
                f"parameter '{self._first.name}' was {self._type[0]} on {self._type[1]} when the module was wrapped, and is "
                f"{first.dtype} on {first.device}: call close() on the DistributedDataParallel, and wrap the module again"
            )
        if self._identities() == self._seen and not any(each.requires_grad for each in self._frozen):
            return
        frozen = {id(each) for each in self._frozen}
        for name, each in self._state.parameters():
            if id(each) in self._synchronized or not isinstance(each, torch.nn.Parameter) or each.numel() == 0:
                continue
            if each.requires_grad:
                was = "did not require a gradient" if id(each) in frozen else "was not part of the module"
                raise _native.OrderError(f"parameter '{name}' {was} when the module was wrapped, and {_WRAP_AGAIN}")
        self._look()


class SharedBuffers:
    """Gives forward passes the buffers of worker 0. They are broadcast before a pass, or sent after the last step."""

    def __init__(self, session: _native.Session, device: CpuDevice, state: ModuleState, broadcasts: bool) -> None:
        self.state = state
        self.broadcasts = broadcasts and bool(state.buffers())
        self._session = session
        self._device = device
        self._background: BackgroundBuffers | None = None  # set if buffers are sent during the forward pass
        # Whether the next pass broadcasts buffers. None: they are equal, and no pass has run since the module was wrapped.
        self._refresh_due: bool | None = None
        self._modules = [module for module in state.module.modules() if module._buffers]

    def begin_forward(self, begins_step: bool, synchronize: bool) -> None:
        """Prepares a pass that keeps gradients. begins_step: it is the first pass of a step. synchronize: its gradients are sent."""
        self.finish()
        # torch's rule, except that a second pass of a step leaves buffers alone: backward may need their old values.
        if begins_step and self._refresh_due is not False:
            self._refresh(0)
        self._refresh_due = synchronize

    def begin_evaluation(self, joins: bool, accumulates: bool) -> None:
        """Prepares a pass without gradients, which sees the buffers of worker 0.

        One broadcast serves all passes until buffers change, and replaces the broadcast of the next step. Workers may
        therefore evaluate different numbers of batches.

        joins: inputs may be uneven. accumulates: gradients stay on this worker.
        """
        self.finish()
        if joins:
            return
        if self._refresh_due:
            self._refresh(0)
            self._refresh_due = False
        if not accumulates and any(module.training for module in self._modules):
            self._refresh_due = True

    def begin_joined(self, root: int) -> None:
        """Broadcasts buffers from worker ``root`` within join(). Buffers sent after the last step are equal already."""
        self.finish()
        if not self._background:
            self._refresh(root)

    def are_equal(self) -> None:
        """Records that the whole module was broadcast."""
        self._refresh_due = None

    def _refresh(self, root: int) -> None:
        if self.broadcasts:
            broadcast_together(self._session, [buffer for _, buffer in self.state.buffers()], root)

    def send_behind_steps(self) -> list[int]:
        """Sends buffers after each step from now on. All workers call it between steps. Returns the numbers of their buckets."""
        if not self.broadcasts:
            return []
        self._background = BackgroundBuffers(self._session, self._device, self.state)
        return [self._background.number]

    def submit(self, root: int) -> None:
        """Sends the buffers of worker ``root``, once per step, if they are sent after steps."""
        if self._background:
            self._background.submit(self._session.rank == root)

    def finish(self) -> None:
        """Writes the buffers that were sent after the last step.

        Call it before anything may write to them: torch's batch_norm changes buffers without a trace.
        """
        if self._background and self._background.pending and not self._session.closed:
            self._background.finish()
            self._refresh_due = False


class BackgroundBuffers:
    """Broadcasts all shared buffers after a step, as a sum to which only one worker contributes.

    All workers make one, between the same steps.
    """

    def __init__(self, session: _native.Session, device: CpuDevice, state: ModuleState) -> None:
        self._session = session
        self._device = device
        self._state = state
        self._shapes = {name: (each.shape, each.dtype) for name, each in state.buffers()}
        crossing = [_as_crossing(each.detach()) for _, each in state.buffers()]
        self._crossing = [(each.numel(), each.dtype) for each in crossing]
        specs = [_native.TensorSpec(name, each.numel(), 1, _DTYPES[each.dtype]) for name, each in zip(self._shapes, crossing, strict=True)]
        self.number = session.register_bucket("(buffers)", specs, "dense_ring")
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None
        self._submitted: list[tuple[torch.Tensor, int]] = []  # each buffer with the version that was sent

    def submit(self, is_root: bool) -> None:
        """Sends the buffers, once per step. is_root: this worker's buffers are broadcast.

        Raises UnsupportedError if a buffer is new, or has another shape or type than in the first step.
        """
        named = self._state.buffers()
        for name, each in named:
            if self._shapes.get(name) != (each.shape, each.dtype):
                raise _native.UnsupportedError(
                    f"buffer '{name}' is {list(each.shape)} {each.dtype} now, unlike in the first step: schedules that send buffers "
                    "under the forward pass need the same buffers in all steps; use schedule='lazy' without wrap_optimizer(), or "
                    "broadcast_buffers=False"
                )
        by_name = dict(named)
        missing = next((name for name in self._shapes if name not in by_name), None)
        if missing is not None:
            raise _native.UnsupportedError(f"buffer '{missing}' is missing: it is sent in all steps; use broadcast_buffers=False")
        self._submitted = [(by_name[name], by_name[name]._version) for name in self._shapes]
        given: list[Any] = [self._device.view(_as_crossing(each.detach())) if is_root else None for each, _ in self._submitted]
        reduced = self._session.reduce(self.number, given, [self._device.stream()])
        self._tickets = (reduced, self._session.gather(self.number))

    @property
    def pending(self) -> bool:
        """Whether buffers were sent and are not written yet."""
        return self._tickets is not None

    def finish(self) -> None:
        """Writes the sent values to the buffers. Call it before they are used again.

        A buffer that the program replaced or wrote to meanwhile, for example by load_state_dict(), is left as it is.
        """
        if self._tickets is None:
            return
        try:
            wait_for_step(self._session, self._tickets)
            self._write()
        except (_native.Error, RuntimeError):
            self._tickets = None
            raise
        self._tickets = None  # an exception from a signal handler leaves them pending
        self._submitted = []

    def _write(self) -> None:
        now = {id(each) for _, each in self._state.buffers()}
        for place, (each, version) in enumerate(self._submitted):
            if id(each) not in now or each._version != version:
                continue
            result = Result(self._session, self.number, place, self._device)
            if each.dtype in _DTYPES and each.is_contiguous():
                result.write(each.detach())
            else:
                size, dtype = self._crossing[place]
                whole = torch.empty(size, dtype=dtype, device=each.device)
                result.write(whole)
                each.detach().copy_(_as_buffer(whole, each))


def _as_crossing(buffer: torch.Tensor) -> torch.Tensor:
    """Returns the elements as a contiguous tensor of a type that can be summed."""
    if buffer.dtype in _DTYPES:
        return buffer.contiguous()
    own = bytes_of(buffer)
    whole = own.new_zeros(-(-len(own) // _WORD) * _WORD)
    whole[: len(own)] = own
    return whole.view(torch.int32)


def _as_buffer(crossed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.dtype in _DTYPES:
        return crossed.view(like.shape)
    own = crossed.view(torch.uint8)[: like.numel() * like.element_size()]
    return own.view(like.dtype).view(like.shape)
