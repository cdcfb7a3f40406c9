"""Errors that the library raises. All derive from ``Error``, and most also from the built-in exception that fits.

The type of an error from a session's ``wait()`` says whether the session can continue. After RefusedError,
AgreementError, InputError, UnsupportedError, BudgetError and DeviceMemoryError, the next step works on all workers.
After any other type, the session is over on all workers.
"""

from __future__ import annotations


class Error(Exception):
    """The base class of all errors that the library raises. The message is a single line.

    Example:
        >>> import sparsesync
        >>> try:
        ...     sparsesync.LocalNetwork(0)
        ... except sparsesync.Error as error:
        ...     print(type(error).__name__)
        InputError
    """


class InputError(Error, ValueError):
    """The input cannot be used: a file, an option, an array of the wrong type or shape, or an index outside its tensor.

    Example:
        >>> import numpy as np
        >>> import sparsesync
        >>> sparsesync.coalesce(np.array([7]), np.ones((1, 2), np.float32), 4)
        Traceback (most recent call last):
            ...
        sparsesync.InputError: ...
    """


class IoError(Error, OSError):
    """The operating system refused to write, for example because the disk is full or failed.

    Example:
        >>> import sparsesync
        >>> issubclass(sparsesync.IoError, OSError)
        True
    """


class BudgetError(Error, MemoryError):
    """An allocation would exceed the memory budget or the memory of the machine. Nothing was allocated.

    Example:
        >>> import numpy as np
        >>> import sparsesync
        >>> transport = sparsesync.LocalNetwork(1).join(0)
        >>> with sparsesync.Session(transport, memory_bytes=1000) as session:
        ...     bucket = session.register_bucket("table", [sparsesync.TensorSpec("table", 1_000_000, 8)], "balanced")
        ...     rows = np.arange(100_000)
        ...     reduced = session.reduce(bucket, [(rows, np.ones((len(rows), 8), np.float32))])
        ...     session.wait(reduced)
        Traceback (most recent call last):
            ...
        sparsesync.BudgetError: ...
    """


class DeviceError(Error):
    """A GPU is missing or failed, or the build has no GPU support.

    Example:
        >>> import sparsesync
        >>> try:
        ...     session = sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device="cuda:99")
        ... except sparsesync.DeviceError:
        ...     print("no such GPU")
        no such GPU
    """


class DeviceMemoryError(Error, MemoryError):
    """The memory of a GPU, or pinned host memory, is exhausted. Nothing was allocated.

    Example:
        >>> import sparsesync
        >>> def run(step):
        ...     try:
        ...         return step()
        ...     except sparsesync.DeviceMemoryError:
        ...         return "skipped"  # on the other workers the step raises RefusedError
        >>> run(lambda: "done")
        'done'
    """


class CorruptDataError(Error):
    """Bytes from the network or from a file contradict their header.

    Example:
        >>> import sparsesync
        >>> issubclass(sparsesync.CorruptDataError, sparsesync.Error)
        True
    """


class AgreementError(Error):
    """The workers passed different options or models. The message names the first difference, on all workers.

    Example:
        >>> import concurrent.futures
        >>> import sparsesync
        >>> network = sparsesync.LocalNetwork(2)
        >>> def worker(rank):
        ...     with sparsesync.Session(network.join(rank), deadline_s=10) as session:
        ...         session.agree("the model", [("rows", str(1000 + rank))])
        >>> with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ...     list(pool.map(worker, range(2)))
        Traceback (most recent call last):
            ...
        sparsesync.AgreementError: ...
    """


class OrderError(Error):
    """A function was called out of order, or a phase waited until the deadline for one that was never submitted.

    Example:
        >>> import sparsesync
        >>> transport = sparsesync.LocalNetwork(1).join(0)
        >>> with sparsesync.Session(transport, deadline_s=0.1) as session:
        ...     bucket = session.register_bucket("table", [sparsesync.TensorSpec("table", 10, 1)], "balanced")
        ...     session.wait(session.gather(bucket))  # without reduce()
        Traceback (most recent call last):
            ...
        sparsesync.OrderError: ...
    """


class DeadlineError(Error, TimeoutError):
    """A wait exceeded its deadline. The message names the workers that did not respond.

    Example:
        >>> import sparsesync
        >>> transport = sparsesync.LocalNetwork(2).join(0)  # worker 1 never joins
        >>> transport.all_gather(b"", 0.05)
        Traceback (most recent call last):
            ...
        sparsesync.DeadlineError: ...
    """


class UnsupportedError(Error):
    """A transport, a device or a module lacks the requested feature.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(4, 2, device="meta")
        >>> sparsesync.torch.DistributedDataParallel(model, process_group="alone")
        Traceback (most recent call last):
            ...
        sparsesync.UnsupportedError: ...
    """


class ProtocolError(Error):
    """A worker received a message other than the expected one: the workers are out of step.

    Example:
        >>> import sparsesync
        >>> issubclass(sparsesync.ProtocolError, sparsesync.Error)
        True
    """


class ClosedError(Error):
    """The object was closed, or it belongs to the process that this one was forked from.

    Example:
        >>> import sparsesync
        >>> session = sparsesync.Session(sparsesync.LocalNetwork(1).join(0))
        >>> session.close()
        >>> session.barrier()
        Traceback (most recent call last):
            ...
        sparsesync.ClosedError: ...
    """


class ContractError(Error, RuntimeError):
    """A broken contract: a bug in the caller or in the library.

    Example:
        >>> import sparsesync
        >>> issubclass(sparsesync.ContractError, RuntimeError)
        True
    """


class PeerError(Error):
    """The base class of errors that one worker caused.

    Example:
        >>> import sparsesync
        >>> def culprit(error):
        ...     return error.rank if isinstance(error, sparsesync.PeerError) else None
        >>> error = sparsesync.PeerLostError("worker 3 left")
        >>> error.rank = 3
        >>> culprit(error)
        3
    """

    rank: int
    """The rank of the worker that caused the error, from 0."""


class PeerLostError(PeerError, ConnectionError):
    """A worker left, or the network lost it.

    Example:
        >>> import concurrent.futures
        >>> import sparsesync
        >>> network = sparsesync.LocalNetwork(2)
        >>> def worker(rank):
        ...     with sparsesync.Session(network.join(rank), deadline_s=10) as session:
        ...         if rank == 0:
        ...             session.all_gather(b"")  # worker 1 closes its session instead
        >>> with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ...     list(pool.map(worker, range(2)))
        Traceback (most recent call last):
            ...
        sparsesync.PeerLostError: ...
    """


class RefusedError(PeerError):
    """Another worker refused a step. The next step works. The worker that refused it raises the cause instead.

    Example:
        >>> import concurrent.futures
        >>> import numpy as np
        >>> import sparsesync
        >>> network = sparsesync.LocalNetwork(2)
        >>> def worker(rank):
        ...     with sparsesync.Session(network.join(rank), deadline_s=10) as session:
        ...         bucket = session.register_bucket("table", [sparsesync.TensorSpec("table", 10, 1)], "balanced")
        ...         row = 3 if rank == 0 else 30  # worker 1 names a row outside the table
        ...         reduced = session.reduce(bucket, [(np.array([row]), np.ones((1, 1), np.float32))])
        ...         session.wait(session.gather(bucket))
        ...         session.wait(reduced)
        >>> with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ...     list(pool.map(worker, range(2)))
        Traceback (most recent call last):
            ...
        sparsesync.RefusedError: ...
    """


class AbortedError(PeerError):
    """A worker ended the session. ``rank`` and the message say which worker, possibly this one, and why.

    Example:
        >>> import sparsesync
        >>> issubclass(sparsesync.AbortedError, sparsesync.PeerError)
        True
    """


# Tracebacks and pickles name the classes as users import them.
for _each in tuple(globals().values()):
    if isinstance(_each, type) and issubclass(_each, Error):
        _each.__module__ = "sparsesync"
