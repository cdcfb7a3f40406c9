"""``explain()``: the state of a training run in plain sentences, and advice."""

from __future__ import annotations

import torch


def explain(module: torch.nn.Module) -> str:
    """Explains how the gradients of a training run are synchronized, and what could be faster.

    It only reads the state of this rank: any rank may call it alone, at any time between steps.

    Args:
        module: A ``DistributedDataParallel`` of this package, or torch's over the backend ``sparsesync``.

    Returns:
        Sentences about the transport, the buckets and their schemes, bytes and times per step, and advice. Lines have at most 100 columns.

    Raises:
        InputError: The module is neither.
        ClosedError: The wrapper is closed.
        OrderError: The wrapper is a copy, which is not connected.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> ddp = sparsesync.torch.DistributedDataParallel(torch.nn.Linear(3, 2), process_group="alone")
        >>> print(sparsesync.torch.explain(ddp))
        Rank 0 of 1 has no other workers...
        No step is complete: buckets and schemes are known after the first one.
        ...
    """
    from sparsesync.torch import explanation  # takes time to import, and few programs need it

    return explanation.explanation_of(module)
