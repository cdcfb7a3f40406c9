"""Parameters and buffers of a module, made those of one worker."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from sparsesync import _native


def buffers_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The buffers that have elements."""
    return [(name, buffer) for name, buffer in module.named_buffers() if buffer.numel() > 0]


def take_over(session: _native.Session, module: torch.nn.Module, root: int) -> None:
    """Between steps, all workers: parameters and buffers become those of worker `root`; what is the same everywhere does not
    cross. What is on a GPU goes by way of the host."""
    state = [each.detach() for each in (*module.parameters(), *(buffer for _, buffer in buffers_of(module)))]
    own = b"".join(hashlib.blake2b(_bytes_of(each).cpu().numpy().data, digest_size=16).digest() for each in state)
    told = session.all_gather(own)
    for place, each in enumerate(state):
        span = slice(16 * place, 16 * place + 16)
        if all(of_worker[span] == own[span] for of_worker in told):
            continue
        data = _bytes_of(each).cpu()
        session.broadcast(data, root)
        if each.device.type != "cpu" or not each.is_contiguous():
            each.copy_(data.view(each.dtype).view(each.shape))


def broadcast_together(session: _native.Session, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Between steps, all workers: small tensors become those of worker `root`, in one broadcast. Where they are on a GPU `root`
    waits for what its stream computes, and the others do not."""
    if not tensors:
        return
    on_gpu = any(each.device.type != "cpu" for each in tensors)
    if session.rank == root or not on_gpu:
        together = torch.cat([_bytes_of(each).cpu() for each in tensors])
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
        each.copy_(own.view(each.dtype).view(each.shape), non_blocking=True)
        at += size


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as uint8, in its own memory where they lie one after another."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
