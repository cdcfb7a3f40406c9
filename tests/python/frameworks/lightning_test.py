"""Lightning with the backend `sparsesync`, and with the strategy of this name."""
# ctest: PROCESSORS 2

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
pytest.importorskip("lightning", reason="Lightning is not installed; run scripts/setup")

import framework_support as support
import launching
from framework_support import of

PROGRAM = Path(__file__).with_name("lightning_cases.py")
BOTH = pytest.mark.parametrize("strategy", ["backend", "strategy"])
WRAPPERS = {
    "backend": "torch.nn.parallel.distributed.DistributedDataParallel",
    "strategy": "sparsesync.torch.distributed.DistributedDataParallel",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of all cases on both ranks. One program runs them, because importing Lightning takes seconds."""
    return support.outcomes(PROGRAM, tmp_path_factory.mktemp("lightning"))


@BOTH
def test_training(strategy: str, found: list[Any]) -> None:
    support.expect_trained(of(found, strategy))
    for each in of(found, strategy):
        assert each["wrapper"] == WRAPPERS[strategy]
        assert each["layouts"] == ["torch.sparse_coo", "torch.sparse_coo", "torch.strided", "torch.strided"]


def test_the_name_of_the_strategy(found: list[Any]) -> None:
    support.expect_trained(of(found, "by name"))
    assert {each["wrapper"] for each in of(found, "by name")} == {WRAPPERS["strategy"]}


@BOTH
def test_clipped_gradients(strategy: str, found: list[Any]) -> None:
    support.expect_trained(of(found, f"{strategy}, clipped"))
    assert of(found, f"{strategy}, clipped")[0]["moved"] < 0.5 * of(found, strategy)[0]["moved"], "nothing was clipped"


@BOTH
def test_accumulated_gradients(strategy: str, found: list[Any]) -> None:
    support.expect_trained(of(found, f"{strategy}, accumulated"), steps=support.STEPS // 2)
    for accumulated, each in zip(of(found, f"{strategy}, accumulated"), of(found, strategy), strict=True):
        assert accumulated["sent"] < each["sent"], "gradients were sent in each step"


@BOTH
@pytest.mark.parametrize("precision", ["bf16", "f16 with a scaled loss"])
def test_mixed_precision(strategy: str, precision: str, found: list[Any]) -> None:
    """The reference rounds sums of other batches."""
    support.expect_trained(of(found, f"{strategy}, {precision}"), tolerance=2e-3)


@BOTH
def test_16_mixed_is_bf16_on_the_cpu(strategy: str, found: list[Any]) -> None:
    assert [each["bits"] for each in of(found, f"{strategy}, 16-mixed")] == [each["bits"] for each in of(found, f"{strategy}, bf16")]


@BOTH
def test_torch_cannot_clip_sparse_gradients_by_value(strategy: str, found: list[Any]) -> None:
    """The page of frameworks says so."""
    assert all("clamp" in each and "Sparse" in each for each in of(found, f"{strategy}, clipped by value")), found


@BOTH
def test_manual_optimization(strategy: str, found: list[Any]) -> None:
    support.expect_trained(of(found, f"{strategy}, manual"))


@BOTH
def test_a_checkpoint_resumes(strategy: str, found: list[Any]) -> None:
    support.expect_trained(of(found, f"{strategy}, resumed"), tolerance=2e-5)  # Adagrad divides by small sums
    for each in of(found, f"{strategy}, resumed"):
        assert each["steps"] == [support.STEPS, 2 * support.STEPS]
        assert each["names"] == ["model.words.weight", "model.others.weight", "model.out.weight", "model.out.bias"]


def test_no_thread_is_left(found: list[Any]) -> None:
    assert [each["threads left"] for each in found] == [[], []]


def test_communication_hooks_are_refused() -> None:
    import sparsesync
    from sparsesync.lightning import SparseSyncStrategy

    with pytest.raises(sparsesync.UnsupportedError, match="SparseSyncStrategy: ddp_comm_hook: these are for torch's wrapper"):
        SparseSyncStrategy(ddp_comm_hook=print)


def test_without_lightning_an_error_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['lightning'] = None; import sparsesync.lightning"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=launching.environment())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: sparsesync.lightning needs the package lightning: pip install 'lightning>=2.6'"
    )


def test_the_program_of_the_guide_trains(tmp_path: Path) -> None:
    """Lightning starts the second process."""
    program = support.program_of_the_guide("Lightning", tmp_path)
    support.expect_sent(launching.run([sys.executable, str(program)], folder=tmp_path, **support.GUIDE))
