"""Parameters and buffers of a module that workers share, made those of one worker."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from sparsesync import _native


class ModuleState:
    """All parameters and buffers of a module but those that it names in `_ddp_params_and_buffers_to_ignore`, as torch's own has it.

    shares_buffers: whether buffers are worker 0's; else each worker keeps its own, of any layout and shape.
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
        """Returns the shared buffers that have elements, as the module has them now."""
        if not self.shares_buffers:
            return []
        return [(name, each) for name, each in self.module.named_buffers() if each.numel() > 0 and name not in self._ignored]

    def check(self) -> None:
        """Raises UnsupportedError naming a parameter or a buffer that cannot be made worker 0's."""
        for what, named, remedy in (
            ("parameter", self.parameters(), "replace it"),
            ("buffer", self.buffers(), "broadcast_buffers=False leaves each worker its own"),
        ):
            for name, each in named:
                problem = _problem_of(each)
                if problem:
                    raise _native.UnsupportedError(
                        f"{what} '{name}' {problem}: {remedy}, or name it in the module's _ddp_params_and_buffers_to_ignore"
                    )

    def take_over(self, session: _native.Session, root: int) -> None:
        """Makes parameters and buffers those of worker `root`. Call it between steps, on all workers. Tensors that are equal
        everywhere are not sent. Those on a GPU are sent by way of the host."""
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
                torch.autograd.graph.increment_version(each)  # torch has not seen the change
            else:
                each.copy_(data.view(each.dtype).view(each.shape))


def _problem_of(tensor: torch.Tensor) -> str | None:
    if tensor.is_meta:
        return "is on the meta device, and has no values"
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}, and only strided ones are sent"
    if torch._debug_has_internal_overlap(tensor) == 1:
        return "is expanded: several of its elements share memory, and cannot be written"
    return None


def broadcast_together(session: _native.Session, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Between steps, all workers: small tensors become those of worker `root`, in one broadcast. Where they are on a GPU `root`
    waits for what its stream computes, and the others do not."""
    if not tensors:
        return
    on_gpu = any(each.device.type != "cpu" for each in tensors)
    if session.rank == root or not on_gpu:
        together = torch.cat([bytes_of(each).cpu() for each in tensors])
    else:
        # Pinned: so that the copies to the GPU are not waited for.
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
    """Its elements as uint8, in its own memory where they lie one after another."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
