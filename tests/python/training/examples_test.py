"""Tests python/examples: both DDP wrappers side by side, as users start them; inputs, pictures and rejected options; and their parts."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

import argparse
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python" / "examples"))

import click_prediction
import common
import language_model
import launching
import torch

FOLDER = launching.ROOT / "python" / "examples"
TEXT = Path(sysconfig.get_paths()["stdlib"]) / "email"
# Small sizes, and enough steps for the loss to fall.
EXAMPLES = {
    "language_model": [
        *("--text", TEXT, "--vocabulary", 2000, "--embedding", 16, "--hidden", 16, "--batch", 4, "--length", 10),
        *("--sampled", 32, "--steps", 40),
    ],
    "click_prediction": [
        *("--rows", 500, "--embedding", 4, "--layers", "16", "--batch", 64, "--held-out", 512, "--steps", 60),
    ],
}
RUNS = {
    "torch": (launching.torchrun, ["--ddp", "torch", "--gloo-threads", 1]),
    "sparsesync": (launching.torchrun, ["--ddp", "sparsesync"]),
    "mpirun": (launching.mpirun, ["--announce"]),
}


@pytest.fixture(scope="module", params=EXAMPLES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Returns an example's results with two workers, by launcher and options."""
    folder = tmp_path_factory.mktemp(request.param)
    found = {}
    for name, (launcher, options) in RUNS.items():
        file = folder / f"{name}.json"
        program = FOLDER / f"{request.param}.py"
        done = launching.run(launcher(2, program, *EXAMPLES[request.param], *options, "--json", file))
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = {**json.loads(file.read_text(encoding="utf-8")), "stdout": done.stdout, "stderr": done.stderr}
    return found


@pytest.mark.parametrize("name", ["sparsesync", "mpirun"])
def test_losses_are_torchs(runs: dict[str, dict[str, Any]], name: str) -> None:
    losses, torchs = runs[name]["losses"], runs["torch"]["losses"]
    assert losses[:10] == pytest.approx(torchs[:10], rel=1e-5)
    assert len(losses) == len(torchs) == runs[name]["options"]["steps"]


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_falls(runs: dict[str, dict[str, Any]], name: str) -> None:
    losses = runs[name]["losses"]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.05
    guessed = {"language_model": math.log(2000), "click_prediction": math.log(2)}
    assert runs[name]["measures"]["held_out_loss"] < guessed[runs[name]["example"]] - 0.05


@pytest.mark.parametrize("name", RUNS)
def test_all_workers_have_the_same_bits(runs: dict[str, dict[str, Any]], name: str) -> None:
    assert runs[name]["parameters_equal"] is True
    assert runs[name]["stdout"].count("the parameters of all workers are equal bit for bit") == 1


def test_the_summary_of_a_run(runs: dict[str, dict[str, Any]]) -> None:
    for name, result in runs.items():
        assert result["workers"] == 2
        assert result["seconds"] == sorted(result["seconds"])
        assert result["steps_per_second"] > 0
        assert len(result["losses"]) == len(result["seconds"])
        assert re.search(
            rf"^{result['options']['steps']} steps in .* steps/s: 2 workers, --ddp",
            result["stdout"],
            flags=re.MULTILINE,
        )
        assert (result["bytes_sent_per_step"] is None) == (name == "torch")
    for name, transport in (("sparsesync", "ucx"), ("mpirun", "mpi")):
        statistics = runs[name]["statistics"]
        assert statistics["transport"] == transport
        assert runs[name]["bytes_sent_per_step"]["busiest"] > 0
        tables = [each for each in statistics["parameters"].values() if each["gradient"] == "sparse"]
        assert tables
        assert all(each["announced"] == (name == "mpirun") for each in tables)


def test_one_worker_prints_and_no_bar_where_there_is_no_terminal(runs: dict[str, dict[str, Any]]) -> None:
    for result in runs.values():
        steps = result["options"]["steps"]
        tenth = steps // 10
        lines = [line.split("  ")[0] for line in result["stdout"].splitlines() if line.startswith("step ")]
        assert lines == [f"step {number} of {steps}" for number in range(tenth, steps + 1, tenth)]
        assert "\r" not in result["stdout"] + result["stderr"]


def test_two_runs_in_one_picture(runs: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed; run scripts/setup")
    for names in (["sparsesync", "torch"], ["torch"]):
        common.draw(tmp_path / "loss.svg", [runs[name] for name in names])
        drawn = (tmp_path / "loss.svg").read_text(encoding="utf-8")
        assert re.findall(r"<!-- (\w+), sparse gradients: [\d.]+ steps/s -->", drawn) == names


# ---- One worker, and a terminal.


def alone(example: str, *options: object) -> subprocess.CompletedProcess[str]:
    return launching.run([sys.executable, str(FOLDER / f"{example}.py"), *map(str, options)], timeout=300)


@pytest.mark.parametrize("example", EXAMPLES)
def test_help_shows_the_commands(example: str) -> None:
    done = alone(example, "--help")
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    program = FOLDER / f"{example}.py"
    for command in (
        f"python {program}",
        f"torchrun --nproc-per-node 2 {program}",
        f"mpirun -np 2 python {program}",
        f"torchrun --nproc-per-node 2 {program} --ddp torch --json torch.json",
        f"torchrun --nproc-per-node 2 {program} --ddp sparsesync --against torch.json --plot both.svg",
    ):
        assert command in lines


def test_a_bar_on_a_terminal_and_an_interrupt() -> None:
    ours, its = pty.openpty()
    program = [
        sys.executable,
        str(FOLDER / "click_prediction.py"),
        *map(str, EXAMPLES["click_prediction"]),
        "--steps",
        "1000000",
    ]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=its, text=True, env=launching.environment())
    os.close(its)
    shown = ""
    try:
        while not re.search(r"\[#*\.+\] \d+/1000000  loss \d+\.\d+  \d+\.\d steps/s\r", shown):
            shown += os.read(ours, 4096).decode()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
        rest = os.read(ours, 1 << 16).decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 130
    assert rest.endswith("\r\x1b[Kclick_prediction.py: interrupted\r\n")
    assert output == ""


def test_an_interrupt_of_two_workers() -> None:
    command = launching.torchrun(2, FOLDER / "click_prediction.py", *EXAMPLES["click_prediction"], "--steps", 20000)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=launching.environment()
    )
    assert process.stdout
    try:
        # The first line appears after a tenth of all steps.
        assert process.stdout.readline().startswith("step 2000 of 20000  loss ")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.terminate()
        process.communicate()
    # torchrun also prints its log lines.
    said = [line for line in errors.splitlines() if line.startswith(("click_prediction.py", "[rank"))]
    assert said == ["click_prediction.py: interrupted"], errors


# ---- Rejected use.


def line_of(random: np.random.Generator) -> str:
    """Returns a line in Criteo's format, with some missing fields."""

    def or_nothing(text: str) -> str:
        return "" if random.random() < 0.2 else text

    integers = [or_nothing(str(random.integers(-2, 5000))) for _ in range(13)]
    hashes = [or_nothing(f"{random.zipf(1.3) * 2654435761 % (1 << 32):08x}") for _ in range(26)]
    return "\t".join([str(random.integers(2)), *integers, *hashes])


@pytest.fixture
def lines(random: np.random.Generator) -> list[str]:
    return [line_of(random) for _ in range(100)]


SMALL = ["--rows", 50, "--embedding", 2, "--layers", 4, "--batch", 10, "--held-out", 20, "--steps", 12]


def test_criteos_file_trains(lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "train.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = alone("click_prediction", *SMALL, "--data", file, "--json", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert len(result["losses"]) == 12, "80 lines are eight steps, so the file restarted"
    assert all(math.isfinite(loss) for loss in result["losses"])
    assert 0 < result["measures"]["held_out_auc"] < 1


def test_a_line_that_is_wrong_is_named_when_it_is_read(lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "train.txt"
    lines[64] = lines[64].rsplit("\t", 1)[0]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = alone("click_prediction", *SMALL, "--data", file)
    assert done.returncode == 2
    assert done.stderr == (
        f"click_prediction.py: --data {file}:65: 39 fields, where Criteo's train.txt has 40 between tabs: "
        "the label, 13 integers, 26 hashes\n"
    )


@pytest.mark.parametrize(("example", "option"), [("click_prediction", "--data"), ("language_model", "--text")])
def test_missing_data(example: str, option: str, tmp_path: Path) -> None:
    done = alone(example, option, tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{example}.py: {option} {tmp_path / 'none'}: ")
    assert done.stderr.count("\n") == 1, done.stderr


def test_torchs_own_under_mpirun_asks_for_an_address() -> None:
    done = launching.run(
        launching.mpirun(2, FOLDER / "click_prediction.py", *EXAMPLES["click_prediction"], "--ddp", "torch")
    )
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("click_prediction.py: ")]
    assert "mpirun -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=" in said
    assert "Traceback" not in done.stderr


def options_of(example: str, *more: object) -> argparse.Namespace:
    module = {"click_prediction": click_prediction, "language_model": language_model}[example]
    before = sys.argv
    sys.argv = [f"{example}.py", *map(str, more)]
    try:
        return module.options()
    finally:
        sys.argv = before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ddp", "torch", "--announce"], "--announce with --ddp torch: only sparsesync has it; leave it out"),
        (["--gloo-threads", "1"], "--gloo-threads with --ddp sparsesync: only torch has it; leave it out"),
        (["--ddp", "none", "--wire", "bf16"], "--wire with --ddp none: only sparsesync has it; leave it out"),
        (["--plot", "loss.txt"], "--plot loss.txt: its name must end with .svg, .png or .pdf"),
        (["--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder; make it first"),
        (["--json", "/"], "/ is a folder: give the name of a file"),
        (["--against", "x.json"], "--against needs --plot FILE"),
        (["--against", "/no/x.json", "--plot", "x.svg"], "--against /no/x.json: No such file or directory"),
        (["--against", __file__, "--plot", "x.svg"], "give a file that --json wrote"),
    ],
)
def test_options_that_are_wrong(options: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.importlib.util, "find_spec", lambda _: True)
    with pytest.raises(common.UserError, match=re.escape(says)):
        common.check(options_of("click_prediction", *options))


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(common.UserError, match="--plot needs matplotlib: pip install matplotlib"):
        common.check(options_of("click_prediction", "--plot", "x.svg"))


def test_a_comparison_with_an_invalid_result(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"tensors": []}', encoding="utf-8")
    with pytest.raises(common.UserError, match="this is not the result of an example"):
        common.read_result(tmp_path / "other.json")


# ---- Parts of the examples.


def test_the_digest_sees_one_bit() -> None:
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.bias.zero_()
        before = common.digest_of(module)
        assert common.digest_of(module) == before
        module.bias[1] = -0.0
    assert common.digest_of(module) != before


def test_words_by_frequency(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("other " * 1000)
    (tmp_path / "a.py").write_text("a a a a b b b c c d e f")
    (tmp_path / "b.py").write_text("a = b.c " * 50)
    text = language_model.Text(tmp_path, 5)
    together = torch.cat([text.training, text.held_out])
    # Counts of: a, unknown words (50 full stops, d, e and f), b, c, =.
    assert torch.bincount(together).tolist() == [54, 53, 53, 52, 50]
    assert together[:17].tolist() == [*[0] * 4, *[2] * 3, *[3] * 2, *[1] * 3, 0, 4, 2, 1, 3]
    assert len(text.held_out) == int(len(together) * language_model.HELD_OUT)


def test_streams_continue_and_restart() -> None:
    streams = language_model.in_streams(torch.arange(23), 2)
    assert streams.shape == (2, 11)
    batches = language_model.batches(streams, 3)
    seen = [next(batches) for _ in range(4)]
    assert [words[1].tolist() for words, _, _ in seen] == [[11, 12, 13], [14, 15, 16], [17, 18, 19], [11, 12, 13]]
    assert all((following == words + 1).all() for words, following, _ in seen)
    assert [begins for _, _, begins in seen] == [True, False, False, True]
    with pytest.raises(common.UserError, match="only 11 words"):
        next(language_model.batches(streams, 11))


def test_samples_are_as_frequent_as_expected() -> None:
    sampler = language_model.Sampler(200, 20, (1, 0))
    seen, expected = torch.zeros(200), torch.zeros(200)
    for _ in range(4000):
        samples, draws = sampler.draw()
        assert len(set(samples.tolist())) == 20
        assert draws >= 20
        seen[samples] += 1
        expected += sampler.expected(torch.arange(200), draws)
    # Five standard deviations of the count, and the bias of stopping when there are enough samples.
    assert ((seen - expected).abs() <= 5 * expected.sqrt() + 0.05 * expected).all()
    with pytest.raises(common.UserError, match="--sampled 200"):
        language_model.Sampler(200, 200, (1, 0))


def test_a_sample_that_is_the_target_does_not_count() -> None:
    torch.manual_seed(1)
    model = language_model.LanguageModel(30, 4, 4, sparse=True)
    words, targets = torch.tensor([[1, 2]]), torch.tensor([[7, 7]])

    def loss(samples: list[int]) -> float:
        log_expected = [torch.zeros(2), torch.zeros(len(samples))]
        return model(words, targets, torch.tensor(samples), log_expected, None)[0].item()

    assert loss([3, 7, 4]) == pytest.approx(loss([3, 4]), rel=1e-6)
    assert loss([3, 8, 4]) != pytest.approx(loss([3, 4]), rel=1e-3)


def test_all_words_sampled_is_the_full_softmax() -> None:
    torch.manual_seed(1)
    model = language_model.LanguageModel(30, 4, 4, sparse=False)
    text = torch.arange(26) % 30
    log_expected = [torch.zeros(25), torch.zeros(30)]
    loss, _ = model(text[None, :-1], text[None, 1:], torch.arange(30), log_expected, None)
    assert loss.item() == pytest.approx(model.full_loss(text, 1), rel=1e-5)


def test_fields_have_separate_rows_and_missing_values_have_one(random: np.random.Generator) -> None:
    values = random.integers(1, 1 << 32, (5000, 26), dtype=np.uint64)
    values[::3, 4] = 0
    rows = click_prediction.rows_of(values, 100)
    within = rows - 100 * np.arange(26)
    assert (within >= 0).all()
    assert (within < 100).all()
    assert ((within == 0) == (values == 0)).all()
    spread = np.bincount(within[:, 0], minlength=100)[1:]
    assert spread.max() < 2 * 5000 / 99


def test_workers_have_different_lines(lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "train.txt"
    numbered = [re.sub(r"^\d\t-?\d*", f"{number % 2}\t{number}", line) for number, line in enumerate(lines)]
    file.write_text("\r\n".join(numbered) + "\r\n", encoding="utf-8")
    options = options_of("click_prediction", *SMALL, "--data", file)
    seen = []
    for rank in range(3):
        criteo = click_prediction.Criteo(options, common.World("torchrun", rank, 3, 3))
        batches = criteo.batches()
        first = torch.cat([next(batches).integers[:, 0] for _ in range(2)])
        seen += first.expm1().round().int().tolist()
        assert criteo.held_out.integers[:, 0].expm1().round().int().tolist() == list(range(20))
        again = next(batches).integers[:, 0].expm1().round().int().tolist()
        assert again == list(range(20 + 10 * rank, 30 + 10 * rank)), "20 lines are too few for three workers"
    assert sorted(seen) == list(range(20, 80))


def test_too_few_lines(lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "train.txt"
    options = options_of("click_prediction", *SMALL, "--data", file)
    for count in (0, 49):
        file.write_text("".join(line + "\n" for line in lines[:count]), encoding="utf-8")
        says = f"{file}: it has {count} lines, --held-out 20 and a --batch of 10 for 3 workers need 50: give smaller ones"
        with pytest.raises(common.UserError, match=re.escape(says)):
            click_prediction.Criteo(options, common.World("torchrun", 0, 3, 3))


def test_what_a_line_must_be(lines: list[str]) -> None:
    label, *fields = lines[0].split("\t")
    fields[:13], fields[13:] = ["-2", "", *["7"] * 11], ["", "0000000f", *["ffffffff"] * 24]
    read = click_prediction._fields("\t".join([label, *fields]).encode())
    assert read == (int(label), [-2, 0, *[7] * 11], [0, 16, *[1 << 32] * 24])
    for place, wrong, says in (
        (0, "2", "the label is '2'"),
        (3, "1.5", "'1.5' is not an integer"),
        (20, "xyz", "'xyz' is not a hash"),
    ):
        changed = [label, *fields]
        changed[place] = wrong
        with pytest.raises(ValueError, match=re.escape(says)):
            click_prediction._fields("\t".join(changed).encode())


def test_auc_counts_pairs(random: np.random.Generator) -> None:
    scores = torch.tensor(random.integers(0, 20, 300) / 7, dtype=torch.float32)
    clicked = torch.tensor(random.integers(0, 2, 300), dtype=torch.float32)
    positive, negative = scores[clicked > 0], scores[clicked == 0]
    wins = (positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative).double()
    assert click_prediction.auc(scores, clicked) == pytest.approx(float(wins.mean()), rel=1e-9)
    assert math.isnan(click_prediction.auc(scores, torch.ones(300)))


def test_planted_clicks_can_be_predicted() -> None:
    planted = click_prediction.Planted(1000, seed=1)
    samples = planted.samples(np.random.default_rng(2), 20000)
    assert 0.15 < float(samples.clicked.mean()) < 0.4
    integers = samples.integers.double().expm1().round().numpy()
    scores = torch.from_numpy(planted._scores(samples.rows.numpy(), integers))
    assert click_prediction.auc(scores, samples.clicked) > 0.8
    counts = torch.bincount(samples.rows[:, 2] - 2000)
    assert counts.max() > 20 * counts[counts > 0].double().median(), "values are skewed"
