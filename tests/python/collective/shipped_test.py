"""The tests of torch.distributed that torch ships pass over the backend `sparsesync`, as over Gloo."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
pytest.importorskip("expecttest", reason="torch's tests need expecttest; run scripts/setup")

import launching

PROGRAM = Path(__file__).with_name("shipped_cases.py")
EXPECTED = {
    "test_sparse_all_reduce_sum",
    "test_all_reduce_sum",
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_batch_isend_irecv_gloo",
}


def test_torchs_tests_pass(tmp_path: Path) -> None:
    found = launching.outcomes(launching.torchrun(2, PROGRAM, tmp_path), tmp_path, 2)
    for outcomes in found:
        failed = {name: text for name, text in outcomes.items() if text.startswith("failed")}
        assert not failed, "\n".join(failed.values())
        assert {name for name, text in outcomes.items() if text == "passed"} >= EXPECTED
