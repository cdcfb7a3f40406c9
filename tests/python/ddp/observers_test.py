"""A failure of a recording or a log is not an error of the training."""

from __future__ import annotations

import logging
import resource
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
from schedule_cases import Model, optimizers_of, sgd, train, weights  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel, record_model, record_trace, recording  # noqa: E402 (needs torch)
from workers import good, run_workers  # noqa: E402 (needs torch)

# {name: (recorder, number of recorded steps that is complete after three training steps)}
RECORDERS = {"record_trace": (record_trace, 3), "record_model": (record_model, 1)}

each_recorder = pytest.mark.parametrize("recorder", RECORDERS)


def wrapped(member: Any) -> tuple[DistributedDataParallel, list[torch.optim.Optimizer]]:
    ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced", deadline=20)
    return ddp, optimizers_of(ddp.module, sgd)


@each_recorder
@pytest.mark.parametrize("wrong", ["nowhere", "within a file", "too long", "a folder of the user's", "no path", "no steps"])
def test_a_path_that_cannot_be_written_is_refused_at_the_call(tmp_path: Path, recorder: str, wrong: str) -> None:
    record, _ = RECORDERS[recorder]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    paths: dict[str, Any] = {
        "nowhere": tmp_path / "none" / "T",
        "within a file": tmp_path / "file" / "T",
        "too long": tmp_path / ("T" * 300),
        "a folder of the user's": tmp_path / "folder",
        "no path": 7.5,
        "no steps": tmp_path / "T",
    }

    def work(rank: int, member: Any) -> str:
        ddp, optimizers = wrapped(member)
        train(ddp, rank, optimizers, steps=1)
        with pytest.raises(sparsesync.InputError) as refused:
            record(ddp, paths[wrong], 0 if (wrong, rank) == ("no steps", 1) else 2, force=True)
        train(ddp, rank, optimizers, steps=2)
        ddp.close()
        return str(refused.value)

    said = good(run_workers(2, work))
    assert said[0] == said[1]
    assert said[0].startswith(f"{recorder}: ")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "folder" / "notes").read_text() == "mine"


@each_recorder
def test_workers_that_record_different_things_get_an_error(tmp_path: Path, recorder: str) -> None:
    record, _ = RECORDERS[recorder]

    def work(rank: int, member: Any) -> None:
        ddp, optimizers = wrapped(member)
        train(ddp, rank, optimizers, steps=1)
        with pytest.raises(sparsesync.AgreementError, match="steps"):
            record(ddp, tmp_path / "T", 2 + rank)
        train(ddp, rank, optimizers, steps=4)
        ddp.close()

    good(run_workers(2, work))
    assert list(tmp_path.iterdir()) == []


class Breaks:
    """Breaks a recording while it runs, just before its last step."""

    def __init__(self, how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.how, self.folder, self.monkeypatch = how, folder, monkeypatch

    @property
    def path(self) -> Path:
        return self.folder / "T"

    def __call__(self, rank: int) -> None:
        if rank == 0 and self.how == "the folder is removed":
            shutil.rmtree(self.folder)
        elif rank == 0 and self.how == "the name is taken":
            self.path.write_text("mine")
        elif rank == 0 and self.how == "the disk is full":
            # Limits every file to a few bytes. (Python ignores the signal that reports it.)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@each_recorder
@pytest.mark.parametrize("how", ["the folder is removed", "the name is taken", "the disk is full"])
@pytest.mark.parametrize("ended", ["by itself", "by close()"])
@pytest.mark.parametrize("errors", [False, True])
def test_a_failed_recording_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recorder: str, how: str, ended: str, errors: bool
) -> None:
    record, steps = RECORDERS[recorder]
    folder = tmp_path / "folder"
    folder.mkdir()
    breaks = Breaks(how, folder, monkeypatch)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def work(rank: int, member: Any) -> tuple[Any, Any]:
        ddp, optimizers = wrapped(member)
        train(ddp, rank, optimizers, steps=1)
        running = record(ddp, breaks.path, steps if ended == "by itself" else 10)
        train(ddp, rank, optimizers, steps=2)
        breaks(rank)
        try:
            train(ddp, rank, optimizers, steps=1)
            if ended == "by close()":
                running.close()
        finally:
            if rank == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert running.complete
        train(ddp, rank, optimizers, steps=2)
        found = weights(ddp.module)
        ddp.close()
        return running.problem, found

    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.WARNING, "sparsesync"):
        warnings.simplefilter("error" if errors else "always")
        (problem, found), *others = good(run_workers(2, work))
    said = caplog.messages if errors else [str(each.message) for each in warned if each.category is RuntimeWarning]
    assert len(said) == 1, said
    assert said[0].startswith(f"{recorder}: nothing was recorded in '{breaks.path}', and the training goes on: worker 0: ")
    assert problem and problem in said[0]
    for of_other, other in others:
        assert of_other == problem
        assert all(torch.equal(found[name], other[name]) for name in found)
    left = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
    assert left == (["T"] if how == "the name is taken" else [])


def test_a_failed_recording_on_one_worker_ends_that_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of = recording._rows_of

    def fails(gradient: Any) -> Any:
        if threading.current_thread() is broken.get(1):
            raise MemoryError("no memory for that")
        return rows_of(gradient)

    broken: dict[int, threading.Thread] = {}
    monkeypatch.setattr(recording, "_rows_of", fails)

    def work(rank: int, member: Any) -> Any:
        ddp, optimizers = wrapped(member)
        running = record_trace(ddp, tmp_path / "T", 4)
        train(ddp, rank, optimizers, steps=2)
        assert not running.complete
        # On the CPU a backward pass runs in the calling thread.
        broken[rank] = threading.current_thread()
        train(ddp, rank, optimizers, steps=3)
        assert running.complete
        ddp.close()
        return running.problem

    with pytest.warns(RuntimeWarning, match="record_trace: nothing was recorded") as warned:
        assert good(run_workers(3, work)) == ["worker 1: MemoryError: no memory for that"] * 3
    assert len(warned) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def a_handler_that_raises() -> Iterator[Callable[[], int]]:
    handled = []

    class Raises(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            handled.append(record)
            raise OSError("the log cannot be written")

    log = logging.getLogger("sparsesync")
    handler, level = Raises(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lambda: len(handled)
    log.removeHandler(handler)
    log.setLevel(level)


def test_a_handler_of_the_log_that_raises_ends_no_step(
    a_handler_that_raises: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    def work(rank: int, member: Any) -> None:
        ddp, optimizers = wrapped(member)
        train(ddp, rank, optimizers, steps=2)
        ddp.close()

    good(run_workers(2, work))
    assert a_handler_that_raises() == 1, "worker 0 logs the decisions"
    assert "the log cannot be written" in capsys.readouterr().err
