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
    cross."""
    state = [each.detach() for each in (*module.parameters(), *(buffer for _, buffer in buffers_of(module)))]
    own = b"".join(hashlib.blake2b(_bytes_of(each).numpy().data, digest_size=16).digest() for each in state)
    told = session.all_gather(own)
    for place, each in enumerate(state):
        span = slice(16 * place, 16 * place + 16)
        if all(of_worker[span] == own[span] for of_worker in told):
            continue
        data = _bytes_of(each)
        session.broadcast(data, root)
        if not each.is_contiguous():
            each.copy_(data.view(each.dtype).view(each.shape))


def broadcast_together(session: _native.Session, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Between steps, all workers: small tensors become those of worker `root`, in one broadcast."""
    if not tensors:
        return
    together = torch.cat([_bytes_of(each) for each in tensors])
    session.broadcast(together, root)
    at = 0
    for each in tensors:
        size = each.numel() * each.element_size()
        each.copy_(together[at : at + size].clone().view(each.dtype).view(each.shape))
        at += size


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as uint8, in its own memory where they lie one after another."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
