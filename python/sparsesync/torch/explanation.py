"""The text of ``explain()``: the state of a training run in plain sentences, and advice."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as _TorchDistributedDataParallel

from sparsesync import _native
from sparsesync import _units as units
from sparsesync.torch.backend import NAME, SparseSyncBackend
from sparsesync.torch.distributed import DistributedDataParallel
from sparsesync.torch.gradients import COMPLEX, DTYPES, Kind, nonzero_rows
from sparsesync.torch.launch import DEFAULT_DEADLINE
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.bucketing import LEAST_ELEMENTS, MOST_ROWS, sparse_parameters
from sparsesync.torch.synchronizer import Synchronizer

_WIDTH = 100  # columns of the text
_MOST_NAMES = 4  # names of parameters in a sentence
_SETTINGS_OF_UCX = "install it on all machines; `python -m sparsesync doctor` says how"
_EXPOSED = 0.5  # share of the communication from which a schedule that hides more is worth a try

_TRANSPORTS = {
    "ucx": "over UCX",
    "mpi": "over MPI, because mpirun started the processes (transport='ucx' requests UCX)",
    "local": "as threads of one process",
    "nccl": "over NCCL",
    "process_group": "over Gloo",
}
_KINDS = {
    Kind.SPARSE: "sparse, sent as rows",
    Kind.ROWS: "dense with few non-zero rows, sent as rows",
    Kind.DENSE: "dense, sent whole",
    Kind.SPARSIFIED: "dense, of which the sparsifier sends a part",
}


def explanation_of(module: torch.nn.Module) -> str:
    """Returns the text of explain()."""
    if isinstance(module, DistributedDataParallel):
        return _lines(*_of_wrapper(module))
    backend = _backend_of(module)
    if backend is None or not isinstance(module, _TorchDistributedDataParallel):
        raise _native.InputError(
            f"explain: {type(module).__name__} is neither a sparsesync.torch.DistributedDataParallel nor torch's over the backend {NAME}: "
            "pass the wrapped module"
        )
    return _lines(*_of_backend(module.module, backend, find_unused=module.find_unused_parameters))


def _lines(said: Sequence[str], advice: Sequence[str]) -> str:
    lines = [*said, "Advice:" if advice else "No advice.", *(f"- {each}" for each in advice)]
    return "\n".join(textwrap.fill(each, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) for each in lines)


# ---- The wrapper of this package


def _of_wrapper(ddp: DistributedDataParallel) -> tuple[list[str], list[str]]:
    """Returns the sentences and the advice for a wrapper."""
    synchronizer = ddp.synchronizer
    statistics = ddp.statistics()  # raises the errors of a wrapper that is closed or a copy
    exchange = synchronizer.exchange
    worker, options, buckets = exchange.worker, exchange.options, exchange.buckets
    size, steps = statistics["workers"], statistics["steps"]
    said = [_reach(statistics["rank"], size, statistics["transport"], worker.without_ucx, statistics["device"], statistics["payloads"])]
    sparsifier = type(options.sparsifier).__name__ if options.sparsifier else "none"
    said.append(
        f"Schedule {options.schedule}, scheme {options.scheme}, {options.gradient} over the workers, values sent as "
        f"{options.wire or 'they are'}, sparsifier {sparsifier}, index prefetch {'on' if exchange.announcements else 'off'}."
    )
    advice = _on_connection(size, worker.without_ucx, worker.deadline_s)
    if ddp.find_unused_parameters:
        advice.append("Leave out find_unused_parameters: it has no effect here.")
    if not buckets:
        return [*said, "No step is complete: buckets and schemes are known after the first one."], advice
    of_buckets = [(bucket, bucket.statistics()) for bucket in buckets]
    said.append(f"{_counted(steps, 'step')}. Buckets, in the order of their gradients:")
    observed = _observed(synchronizer)
    for place, (bucket, taken) in enumerate(of_buckets):
        said.append(f"- {_bucket(bucket, taken, observed.get(place))}")
        advice += _on_bucket(bucket, taken, observed.get(place), synchronizer)
    said.append(_per_step([taken for _, taken in of_buckets]))
    if not any(bucket.planned.kind is not Kind.DENSE for bucket in buckets) and size > 1:
        advice.append("No gradient is sparse: torch's DistributedDataParallel has less overhead, unless you pass a sparsifier.")
    seconds, exposed = statistics["seconds"], statistics["seconds_exposed"]
    if options.schedule == "lazy" and not worker.one_machine and exposed > _EXPOSED * seconds > 0:
        advice.append(
            f"{units.percent(round(min(1.0, exposed / seconds), 2))} of the communication is exposed: try schedule='auto', with "
            "wrap_optimizer()."
        )
    return said, advice


def _reach(rank: int, size: int, transport: str, without_ucx: str, device: str, payloads: str) -> str:
    """Returns the sentences about the network."""
    if size == 1:
        return f"Rank 0 of 1 has no other workers, on {device}: nothing is sent."
    text = f"Rank {rank} of {size} is connected {_TRANSPORTS[transport]}. Gradients are on {device}, and are sent {payloads}."
    return f"{text} UCX is not used: {without_ucx}." if without_ucx else text


def _on_connection(size: int, without_ucx: str, deadline_s: float) -> list[str]:
    advice = []
    if size > 1 and without_ucx not in ("", "as requested"):
        advice.append(f"Use UCX, over which steps take as little as half the time: {_SETTINGS_OF_UCX}.")
    if size > 1 and deadline_s >= DEFAULT_DEADLINE.total_seconds():
        advice.append(f"A worker that hangs is noticed after {deadline_s / 60:.3g} minutes: pass a shorter deadline, in seconds.")
    return advice


def _observed(synchronizer: Synchronizer) -> dict[int, tuple[float, float]]:
    """Returns the shares of rows that this worker, and all workers together, touched in the last step, by the place of the bucket.

    Empty while gradients are in transit. The share of all workers is NaN if the scheme does not count their rows.
    """
    shares: dict[int, tuple[float, float]] = {}
    buckets = synchronizer.buckets
    if any(bucket.submitted for bucket in buckets):
        return shares
    for place, bucket in enumerate(buckets):
        if not bucket.planned.kind.has_rows:
            continue
        rows = sum(member.parameter.shape[0] for member in bucket.planned.members)
        touched, united = map(sum, zip(*synchronizer.session.observed(bucket.number), strict=True))
        dense = synchronizer.session.choice(bucket.number)["scheme"].startswith("dense_")
        shares[place] = (touched / rows, math.nan if dense else united / rows)
    return shares


def _bucket(bucket: Bucket, taken: Mapping[str, Any], shares: tuple[float, float] | None) -> str:
    members = bucket.planned.members
    if len(members) == 1 or bucket.planned.kind is Kind.SPARSE:
        described = [f"{member.name} ({_shape(member.parameter)})" for member in members]
        subject = f"{_listed(described)}: {_KINDS[bucket.planned.kind]}"
    else:
        size = sum(member.parameter.nbytes for member in members)
        names = _listed([member.name for member in members])
        subject = f"{len(members)} parameters of {units.size(size)} ({names}): {_KINDS[bucket.planned.kind]}"
    steps = max(1, taken["steps"])
    text = f"{subject}. Scheme {taken['scheme']}: {taken['why']}."
    if shares:
        of_all = "" if math.isnan(shares[1]) else f", all workers {_percent(shares[1])}"
        text += f" In the last step, this worker touched {_percent(shares[0])} of the rows{of_all}."
    return f"{text} {units.size(taken['bytes_sent'] / steps)} sent and {units.seconds(taken['seconds_exposed'] / steps)} exposed per step."


def _per_step(of_buckets: Sequence[Mapping[str, Any]]) -> str:
    """Returns the costs of a step: means over all steps of the current buckets."""

    def mean(key: str) -> float:
        return math.fsum(taken[key] / max(1, taken["steps"]) for taken in of_buckets)

    return (
        f"Per step: {units.size(mean('bytes_sent'))} sent, {units.size(mean('bytes_received'))} received, "
        f"{units.seconds(mean('seconds'))} of communication, of which the program waits {units.seconds(mean('seconds_exposed'))}."
    )


def _on_bucket(
    bucket: Bucket, taken: Mapping[str, Any], shares: tuple[float, float] | None, synchronizer: Synchronizer
) -> list[str]:
    """Returns the advice for a bucket."""
    advice = []
    name, kind = taken["bucket"], bucket.planned.kind
    if kind is Kind.ROWS:
        embeddings = _embeddings(synchronizer.module)
        advice += [_make_sparse(member.name) for member in bucket.planned.members if member.parameter in embeddings]
    if kind is Kind.SPARSE and shares:
        touched, united = shares
        share, who = (touched, "this worker touches") if math.isnan(united) else (united, "all workers together touch")
        if share > MOST_ROWS:
            advice.append(
                f"{name}: {who} {_percent(share)} of the rows. Above {_percent(MOST_ROWS)}, little is gained over dense gradients: "
                "compare with sparse=False."
            )
    if taken["why"].startswith("on trial"):
        advice.append(f"{name}: auto still tries schemes. Measure times later, or name a scheme.")
    if taken["non_finite"]:
        advice.append(f"{name}: {taken['non_finite']} summed values were infinite or NaN. With wire='f16', use wire='bf16'.")
    return advice


# ---- torch's wrapper over the backend


def _backend_of(module: torch.nn.Module) -> SparseSyncBackend | None:
    """Returns this package's backend of torch's wrapper, for the device of its parameters; None if the module has another one."""
    if not isinstance(module, _TorchDistributedDataParallel):
        return None
    group: dist.ProcessGroup = module.process_group
    device = next(module.parameters()).device
    try:
        backend = group._get_backend(device)
    except RuntimeError:  # the group has none for this device
        return None
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
    return backend if isinstance(backend, SparseSyncBackend) else None


def _of_backend(module: torch.nn.Module, backend: SparseSyncBackend, find_unused: bool) -> tuple[list[str], list[str]]:
    """Returns the sentences and the advice for torch's wrapper."""
    options = backend.options
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
    makes_sparse = sparse_parameters(module)
    sparse = [name for name, each in parameters.items() if each in makes_sparse or (each.grad is not None and each.grad.is_sparse)]
    dense = [name for name in parameters if name not in sparse]
    size = sum(parameters[name].nbytes for name in dense)
    said = [
        f"Rank {backend.rank()} of {backend.size()} uses torch's DistributedDataParallel over the backend {NAME}.",
        f"Scheme {options.scheme}, values sent as {options.wire or 'they are'}.",
        f"Sparse gradients, summed by {NAME}: {_listed([f'{name} ({_shape(parameters[name])})' for name in sparse])}.",
        f"Dense gradients, summed by torch's network: {_counted(len(dense), 'parameter')} of {units.size(size)} ({_listed(dense)}).",
    ]
    advice: list[str] = []
    deadline_s = (options.deadline or backend.timeout).total_seconds()
    for device, statistics in backend.statistics().items():
        said.append(
            f"Sparse all-reduces on {device} run {_TRANSPORTS[statistics['transport']]}: {units.size(statistics['bytes_sent'])} sent and "
            f"{units.size(statistics['bytes_received'])} received so far, measurements of links included."
        )
        for shape in statistics["shapes"]:
            said.append(
                f"- {shape['tensor']}, {shape['reduction']}: {_counted(shape['operations'], 'operation')}. Scheme {shape['scheme']}: "
                f"{shape['why']}."
            )
        if statistics["without_ucx"]:
            said.append(f"UCX is not used: {statistics['without_ucx']}.")
        advice += _on_connection(backend.size(), statistics["without_ucx"], deadline_s)
    if not backend.statistics():
        said.append("No sparse all-reduce has run.")
    embeddings = _embeddings(module)
    advice += [_make_sparse(name) for name in dense if parameters[name] in embeddings and _has_few_rows(parameters[name])]
    if not sparse:
        advice.append(f"No parameter has sparse gradients, so {NAME} sends none: set sparse=True in embeddings, or use Gloo or NCCL.")
    if find_unused:
        advice.append("Leave out find_unused_parameters if all parameters are used: torch searches the graph in every step.")
    return said, advice


def _has_few_rows(parameter: torch.nn.Parameter) -> bool:
    """Returns whether the parameter has a dense gradient with few non-zero rows."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or gradient.numel() < LEAST_ELEMENTS:
        return False
    return len(nonzero_rows(gradient)) < MOST_ROWS * gradient.shape[0]


# ---- Both


def _embeddings(module: torch.nn.Module) -> set[torch.Tensor]:
    """Returns the weights of embeddings that make dense gradients."""
    return {
        each.weight for each in module.modules() if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag) and not each.sparse
    }


def _make_sparse(name: str) -> str:
    return (
        f"{name}: most rows of its gradient are zero. Set sparse=True in the embedding, and use an optimizer for sparse gradients, such as "
        "SGD, Adagrad or SparseAdam."
    )


def _shape(parameter: torch.Tensor) -> str:
    shape = " x ".join(units.count(each) for each in parameter.shape) or "1"
    return f"{shape}, {DTYPES.get(parameter.dtype) or f'pairs of {COMPLEX[parameter.dtype]}'}"


def _listed(names: Iterable[str]) -> str:
    """Returns the first names, and the number of the others."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}" if names else "none"


def _counted(count: int, noun: str) -> str:
    return f"{units.count(count)} {noun}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
