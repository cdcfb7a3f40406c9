"""What the library raises: a family of its own, each beside the built-in exception that one would expect.

The type of an error of a session's wait() says whether the session is over. After RefusedError, AgreementError, InputError,
UnsupportedError, BudgetError and DeviceMemoryError (MemoryError) the next step works, on all workers. After any other type
the session is over on all workers.
"""

from __future__ import annotations


class Error(Exception):
    """All that the library raises; one line each."""


class InputError(Error, ValueError):
    """Input that cannot be used: a file, an option, an array of another type or shape, an index outside its tensor."""


class IoError(Error, OSError):
    """The system refused to write: a full disk, a device that fails."""


class BudgetError(Error, MemoryError):
    """A memory budget that would be exceeded, or memory that the machine does not have. Nothing was allocated."""


class DeviceError(Error):
    """A GPU that is not there, or does not do what it is told."""


class DeviceMemoryError(Error, MemoryError):
    """A GPU's memory, or memory that it reaches, that is not to be had. Nothing was allocated."""


class CorruptDataError(Error):
    """Bytes from the network or a file that are not what they say."""


class AgreementError(Error):
    """Workers that disagree; all of them hear of what."""


class OrderError(Error):
    """Phases out of order: one that waited, until the deadline, for another that was not submitted."""


class DeadlineError(Error, TimeoutError):
    """A wait that reached its deadline; it names the workers that were waited for."""


class UnsupportedError(Error):
    """What a transport, or a device, does not have."""


class ProtocolError(Error):
    """A message that is not the one that was waited for: workers out of step."""


class ClosedError(Error):
    """What was closed, or belongs to the process that this one was forked from."""


class ContractError(Error, RuntimeError):
    """A broken contract: a bug in the caller or in the library."""


class PeerError(Error):
    """What one worker has caused."""

    rank: int
    """The worker that caused it, from 0."""


class PeerLostError(PeerError, ConnectionError):
    """A worker that left, or that the network lost."""


class RefusedError(PeerError):
    """A worker refused a step before it sent anything; the next step works."""


class AbortedError(PeerError):
    """A worker ended the session: another one, or the one that raises it. `rank` and the text say which one, and why."""


# As users write them.
for _each in tuple(globals().values()):
    if isinstance(_each, type) and issubclass(_each, Error):
        _each.__module__ = "sparsesync"
