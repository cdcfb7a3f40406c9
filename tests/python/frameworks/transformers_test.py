"""The Trainer of transformers over the backend `sparsesync`."""
# ctest: PROCESSORS 2 LABELS long

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
pytest.importorskip("transformers", reason="transformers is not installed; run scripts/setup --for full")

import framework_support as support
import launching
from framework_support import of

PROGRAM = Path(__file__).with_name("transformers_cases.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of all cases on both ranks. One program runs them, because importing transformers takes seconds."""
    return support.outcomes(PROGRAM, tmp_path_factory.mktemp("transformers"))


def test_training(found: list[Any]) -> None:
    support.expect_trained(of(found, "trained"))
    assert {(each["workers"], each["steps"]) for each in of(found, "trained")} == {(support.WORKERS, support.STEPS)}


def test_clipped_gradients(found: list[Any]) -> None:
    support.expect_trained(of(found, "clipped"))
    assert of(found, "clipped")[0]["moved"] < 0.5 * of(found, "trained")[0]["moved"], "nothing was clipped"


def test_accumulated_gradients(found: list[Any]) -> None:
    support.expect_trained(of(found, "accumulated"), steps=support.STEPS // 2)
    for accumulated, each in zip(of(found, "accumulated"), of(found, "trained"), strict=True):
        assert accumulated["sent"] < each["sent"], "gradients were sent in each step"


def test_bf16(found: list[Any]) -> None:
    """The reference rounds sums of other batches."""
    support.expect_trained(of(found, "bf16"), tolerance=2e-3)


def test_a_checkpoint_resumes(found: list[Any]) -> None:
    """The resumed run trains half of the steps, and ends with the weights of a whole run."""
    support.expect_trained(of(found, "resumed"), steps=support.STEPS // 2)
    assert [each["bits"] for each in of(found, "resumed")] == [each["bits"] for each in of(found, "saved")]
    for resumed, saved in zip(of(found, "resumed"), of(found, "saved"), strict=True):
        assert resumed["sent"] < 0.7 * saved["sent"], "the resumed run repeated steps"


def test_trainer_refuses_the_name_on_the_cpu(found: list[Any]) -> None:
    """The page of frameworks says so, and initializes the group instead."""
    assert of(found, "refused") == ["Your assigned backend sparsesync is not available, please use gloo"] * support.WORKERS


def test_no_thread_is_left(found: list[Any]) -> None:
    assert of(found, "threads left") == [[], []]


def test_the_program_of_the_guide_trains(tmp_path: Path) -> None:
    program = support.program_of_the_guide("Trainer of transformers", tmp_path)
    command = launching.torchrun(support.WORKERS, program)
    support.expect_sent(launching.run(command, folder=tmp_path, **support.GUIDE))
