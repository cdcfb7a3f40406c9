"""Ray Train over the backend `sparsesync`, on a local cluster."""
# ctest: PROCESSORS 2 LABELS long

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
pytest.importorskip("ray.train", reason="Ray Train is not installed; run scripts/setup --for full")

import framework_support as support
import launching

PROGRAM = Path(__file__).with_name("ray_cases.py")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of all cases on both workers. One cluster runs them, because it starts slowly."""
    folder = tmp_path_factory.mktemp("ray")
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # names of sockets in it have 107 characters at most
        command = [sys.executable, str(PROGRAM), str(folder), short]
        more = {"PYTHONHASHSEED": "0", "SPARSESYNC_BACKEND_SCHEME": "balanced", **QUIET}
        return launching.outcomes(command, folder, support.WORKERS, **more)


def of(found: list[Any], case: str) -> list[Any]:
    return [each[case] for each in found]


def test_training(found: list[Any]) -> None:
    support.expect_trained(of(found, "trained"))
    assert {each["wrapper"] for each in of(found, "trained")} == {"torch.nn.parallel.distributed"}
    assert (of(found, "backend"), of(found, "workers")) == (["sparsesync"] * support.WORKERS, [support.WORKERS] * support.WORKERS)


def test_clipped_gradients(found: list[Any]) -> None:
    support.expect_trained(of(found, "clipped"))
    assert of(found, "clipped")[0]["moved"] < 0.5 * of(found, "trained")[0]["moved"], "nothing was clipped"


def test_without_ray_an_error_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['ray'] = None; import sparsesync.ray"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=launching.environment())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: sparsesync.ray needs Ray Train: pip install 'ray[train]>=2.60'"


def test_the_program_of_the_guide_trains(tmp_path: Path) -> None:
    program = support.program_of_the_guide("Ray Train", tmp_path, before="\nworkers = ")
    text = program.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        start = f"import ray\nray.init(address='local', num_cpus=4, include_dashboard=False, _temp_dir={short!r})\n"
        text = re.sub("^(import sys, framework_support as support|sys.stdout)", r"    \1", text, flags=re.MULTILINE)  # within the function
        program.write_text(start + text, encoding="utf-8")
        done = launching.run([sys.executable, str(program)], folder=tmp_path, **support.GUIDE, HOME=short, **QUIET)
    support.expect_sent(done)
