"""Lists the variants that bench/cluster/peers.py measures, in the order of its tables."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Variant:
    """A configuration that synchronizes gradients.

    key: name in JSON and on the command line. label: name in tables and pictures.

    launcher: "mpi" (mpirun; sparsesync makes all MPI calls), "openmpi" (mpirun, without sparsesync) or "torch" (torchrun).

    scheme: scheme of a Session over MPI, over a torch Gloo group, or, with `ucx`, over UCX; empty for a peer's all-reduce.

    backend: of the torch group that runs torch's all-reduce.

    is_ours: false for a peer. is_dense: input and output are whole tensors.
    """

    key: str
    label: str
    launcher: str
    scheme: str = ""
    wire: str | None = None
    announces: bool = False
    is_ours: bool = True
    is_dense: bool = False
    ucx: bool = False
    backend: str = "gloo"


VARIANTS = (
    Variant("mpi-balanced", "sparsesync balanced, MPI", "mpi", "balanced"),
    Variant("mpi-balanced-bf16", "sparsesync balanced, bf16 on the wire, MPI", "mpi", "balanced", wire="bf16"),
    Variant("mpi-owned", "sparsesync owned, MPI", "mpi", "owned"),
    Variant("mpi-owned-announced", "sparsesync owned, announced, MPI", "mpi", "owned", announces=True),
    Variant("mpi-owned-announced-bf16", "sparsesync owned, announced, bf16, MPI", "mpi", "owned", "bf16", True),
    Variant("mpi-auto", "sparsesync auto, MPI", "mpi", "auto"),
    Variant("mpi-all_gather", "sparsesync all_gather, MPI", "mpi", "all_gather"),
    Variant("mpi-dense_ring", "sparsesync dense_ring, MPI", "mpi", "dense_ring", is_dense=True),
    Variant("gloo-balanced", "sparsesync balanced, Gloo", "torch", "balanced"),
    Variant("gloo-owned-announced", "sparsesync owned, announced, Gloo", "torch", "owned", announces=True),
    Variant("ucx-balanced", "sparsesync balanced, UCX", "torch", "balanced", ucx=True),
    Variant("ucx-owned-announced", "sparsesync owned, announced, UCX", "torch", "owned", announces=True, ucx=True),
    Variant("ucx-dense_ring", "sparsesync dense_ring, UCX", "torch", "dense_ring", is_dense=True, ucx=True),
    Variant("ucx-dense_direct", "sparsesync dense_direct, UCX", "torch", "dense_direct", is_dense=True, ucx=True),
    Variant("backend-sparse", "torch all_reduce over backend sparsesync", "torch", backend="sparsesync"),
    Variant("torch-sparse", "torch Gloo all_reduce, sparse", "torch", is_ours=False),
    Variant("torch-dense", "torch Gloo all_reduce, dense", "torch", is_ours=False, is_dense=True),
    Variant("openmpi-dense", "OpenMPI MPI_Allreduce, dense", "openmpi", is_ours=False, is_dense=True),
)
BY_KEY = {each.key: each for each in VARIANTS}
LAUNCHERS = ("mpi", "torch", "openmpi")
SPARSE_PEER, DENSE_PEER = "torch-sparse", "torch-dense"
