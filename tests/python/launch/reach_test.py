"""Tests the transport of GPU gradients: all workers make the same choice from their exchanged properties, and report it."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (after torch is known to be here)
from sparsesync.torch.launch import Reach, payloads_of  # noqa: E402 (needs torch)


def workers(count=2, **of_all):
    """Returns `count` workers, each with a GPU and NCCL."""
    usual = {"device": "cuda:0", "asked": None, "machine": "a", "nccl": "2.28.9", "problem": "", "shares": False, **of_all}
    return [Reach(identity=f"GPU {rank}", **usual) for rank in range(count)]


def changed(told, rank, **to):
    return [dataclasses.replace(each, **to) if i == rank else each for i, each in enumerate(told)]


def test_a_gpu_each_and_nccl_everywhere():
    assert payloads_of(workers(), False) == (True, "by NCCL 2.28.9")


def test_the_same_gpu_on_two_machines_is_two():
    told = changed(changed(workers(), 0, identity="x"), 1, identity="x", machine="b")
    assert payloads_of(told, False)[0]


def test_a_worker_without_nccl():
    by_nccl, why = payloads_of(changed(workers(3), 1, nccl=None, problem="no libnccl.so.2"), False)
    assert not by_nccl
    assert why == "through pinned memory of the host: worker 1: no libnccl.so.2"


def test_workers_with_other_versions_of_nccl():
    by_nccl, why = payloads_of(changed(workers(3), 2, nccl="2.18.1"), False)
    assert not by_nccl
    assert "worker 0 has NCCL 2.28.9, worker 2 2.18.1" in why


def test_workers_that_share_a_gpu():
    told = changed(workers(3), 2, identity="GPU 1")
    by_nccl, why = payloads_of(told, False)
    assert not by_nccl
    assert "workers 1 and 2 share a GPU" in why
    assert payloads_of([dataclasses.replace(each, shares=True) for each in told], False)[0], "NCCL is configured to share a GPU"
    assert payloads_of([dataclasses.replace(each, asked="nccl") for each in told], False)[0], "NCCL is tried on request"


def test_threads_of_one_process_and_one_worker_alone():
    assert payloads_of(workers(), True) == (False, "from GPU to GPU within the process")
    assert payloads_of(workers(1), False) == (False, "nowhere: there is one worker")


def test_a_requested_transport_is_used_or_refused():
    assert payloads_of(workers(asked="nccl"), True)[0]
    assert payloads_of(workers(asked="staged"), False) == (False, "through pinned memory of the host: as requested")
    with pytest.raises(sparsesync.UnsupportedError, match="worker 1: no libnccl"):
        payloads_of(changed(workers(asked="nccl"), 1, nccl=None, problem="no libnccl"), False)
    with pytest.raises(sparsesync.UnsupportedError, match="leave it out"):
        payloads_of(workers(asked="staged"), True)
    with pytest.raises(sparsesync.UnsupportedError, match="the module is on the CPU"):
        payloads_of(workers(asked="nccl", device="cpu"), False)


def test_workers_that_differ():
    with pytest.raises(sparsesync.AgreementError, match="worker 0 has the module on cuda:0, worker 1 on cpu"):
        payloads_of(changed(workers(), 1, device="cpu"), False)
    with pytest.raises(sparsesync.AgreementError, match="worker 0 has None, worker 2 'staged'"):
        payloads_of(changed(workers(3), 2, asked="staged"), False)
    assert payloads_of(changed(workers(), 1, device="cuda:1"), False)[0], "each machine counts its GPUs separately"


def test_on_the_cpu_nothing_is_chosen():
    assert payloads_of(workers(device="cpu"), False) == (False, "in the host's memory")
