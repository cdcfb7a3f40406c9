"""Accelerate over the backend `sparsesync`, and with the wrapper."""
# ctest: PROCESSORS 2

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
pytest.importorskip("accelerate", reason="Accelerate is not installed; run scripts/setup")

import framework_support as support
import launching
from framework_support import of

PROGRAM = Path(__file__).with_name("accelerate_cases.py")
WRAPPERS = {"backend": "torch.nn.parallel.distributed", "wrapper": "sparsesync.torch.distributed"}
BOTH = pytest.mark.parametrize("wrapper", list(WRAPPERS))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of all cases on both ranks. One program runs them, because importing Accelerate takes seconds."""
    return support.outcomes(PROGRAM, tmp_path_factory.mktemp("accelerate"))


@BOTH
def test_training(wrapper: str, found: list[Any]) -> None:
    support.expect_trained(of(found, wrapper))
    for each in of(found, wrapper):
        assert (each["wrapper"], each["workers"], each["unwraps"]) == (WRAPPERS[wrapper], support.WORKERS, True)


@BOTH
def test_clipped_gradients(wrapper: str, found: list[Any]) -> None:
    support.expect_trained(of(found, f"{wrapper}, clipped"))
    assert of(found, f"{wrapper}, clipped")[0]["moved"] < 0.5 * of(found, wrapper)[0]["moved"], "nothing was clipped"


@BOTH
def test_accumulated_gradients(wrapper: str, found: list[Any]) -> None:
    support.expect_trained(of(found, f"{wrapper}, accumulated"), steps=support.STEPS // 2)
    for accumulated, each in zip(of(found, f"{wrapper}, accumulated"), of(found, wrapper), strict=True):
        assert accumulated["sent"] < each["sent"], "gradients were sent in each step"


@BOTH
def test_bf16(wrapper: str, found: list[Any]) -> None:
    """The reference rounds sums of other batches."""
    support.expect_trained(of(found, f"{wrapper}, bf16"), tolerance=2e-3)


def test_accelerate_refuses_the_name_on_the_cpu(found: list[Any]) -> None:
    """The page of frameworks says so, and initializes the group instead."""
    assert of(found, "refused") == ["Your assigned backend sparsesync is not available, please use gloo"] * support.WORKERS


def test_no_thread_is_left(found: list[Any]) -> None:
    assert of(found, "threads left") == [[], []]


def test_the_program_of_the_guide_trains(tmp_path: Path) -> None:
    program = support.program_of_the_guide("Accelerate", tmp_path)
    command = launching.torchrun(support.WORKERS, program)
    support.expect_sent(launching.run(command, folder=tmp_path, **support.GUIDE))
