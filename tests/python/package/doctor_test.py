"""`python -m sparsesync doctor` in environments that lack a part, or where a part crashes or hangs."""
# ctest: COST 60 PROCESSORS 2 SLOW launched

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import launching
import pytest
import sparsesync
from bindings_support import package_folder, python
from sparsesync.doctor import command, environment, links, processes
from sparsesync.doctor import findings as found
from sparsesync.doctor.findings import Findings, Row
from sparsesync.doctor.host import Host
from sparsesync.doctor.processes import Outcome

ROOT = pathlib.Path(os.environ.get("SPARSESYNC_SOURCE_DIR", pathlib.Path(__file__).parents[3]))
LONG = "200"  # seconds: the limit of a command that is expected to end long before
HOST = Host("node", "10.0.0.7", ["lo", "eth0"], "eth0", "10.0.0.7")
LAUNCHERS = ("OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "SLURM_")
NO_TORCH = "import sys; sys.modules['torch'] = None"


@dataclasses.dataclass
class Said:
    """The findings that the command printed."""

    status: int
    document: dict[str, Any]

    def row(self, name: str) -> Row:
        return Row(**next(each for each in self.document["rows"] if each["name"] == name))

    def names(self) -> list[str]:
        return [each["name"] for each in self.document["rows"]]

    @property
    def todo(self) -> str:
        return "\n".join(self.document["todo"])


def variables(**changed: str) -> dict[str, str]:
    """Returns an environment without a launcher and without SPARSESYNC_ variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*LAUNCHERS, "SPARSESYNC_"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **changed}


def run(*arguments: str, timeout: float = 300, **changed: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "sparsesync", *arguments]
    return subprocess.run(line, env=variables(**changed), capture_output=True, text=True, timeout=timeout, check=False)


def doctor(*arguments: str, **changed: str) -> Said:
    done = run("doctor", "--json", *(arguments or ("--timeout", LONG)), **changed)
    assert done.stderr == "", done.stderr
    return Said(done.returncode, json.loads(done.stdout))


def with_code(folder: pathlib.Path, **modules: str) -> str:
    """Writes modules that Python finds first. Returns a PYTHONPATH with their folder."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return os.pathsep.join([str(folder), str(package_folder().parent)])


# ---- The whole command


def test_this_machine_without_mpi_and_ucx(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    said = doctor(PATH=str(tmp_path), SPARSESYNC_UCX_LIBRARY="/nonexistent", SPARSESYNC_LOGG="info", SPARSESYNC_OF_OTHERS="1")
    assert said.status == 0 and said.document["usable"] is True
    assert [link["transport"] for link in said.document["links"]] == ["gloo"], "UCX and MPI are not usable"
    (link,) = said.document["links"]
    assert link["ranks"] == 2 and link["machines"] == 1 and link["rate_bps"] > 0 and 0 < link["latency_s"] < 60
    for name in ("sparsesync", "machine", "Python", "NumPy", "torch", "Gloo", "network", "launcher", "link gloo"):
        assert said.row(name).state == "ok", said.row(name)
    assert said.row("mpirun") == Row("mpirun", "missing", "not on PATH")
    assert "install Open MPI" in said.todo
    assert said.row("UCX").state == "missing"
    if has_ucx():  # otherwise the build may be without it
        assert "SPARSESYNC_UCX_LIBRARY '/nonexistent'" in said.row("UCX").detail
        assert "Set SPARSESYNC_UCX_LIBRARY to libucp.so.0" in said.todo
    assert said.row("environment") == Row("environment", "unusable", "unknown: SPARSESYNC_LOGG, SPARSESYNC_OF_OTHERS")
    assert "Rename the environment variable SPARSESYNC_LOGG to SPARSESYNC_LOG, or unset it." in said.todo
    assert "Unset the variable SPARSESYNC_OF_OTHERS." in said.todo


def test_without_torch_and_mpi_nothing_is_usable(tmp_path: pathlib.Path) -> None:
    said = doctor(PYTHONPATH=with_code(tmp_path, sitecustomize=NO_TORCH), PATH=str(tmp_path))
    assert said.status == 1 and said.document["usable"] is False and said.document["links"] == []
    assert said.row("torch").state == "missing"
    assert said.row("Gloo") == Row("Gloo", "missing", "needs torch")
    assert "Install torch 2.6 or later" in said.todo
    assert said.row("sparsesync").state == "ok"
    done = run("doctor", "--timeout", LONG, PYTHONPATH=with_code(tmp_path), PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.endswith("\nTraining is not possible: no transport is usable.\n")


CRASHES = "import os, sys\nprint('first\\nthe driver is broken', file=sys.stderr, flush=True)\nos.abort()"


def test_a_part_that_crashes_is_unusable(tmp_path: pathlib.Path) -> None:
    said = doctor(PYTHONPATH=with_code(tmp_path, torch=CRASHES), PATH=str(tmp_path))
    assert said.status == 1
    assert said.row("torch") == Row("torch", "unusable", "the probe ended by SIGABRT: the driver is broken")
    assert said.row("NumPy").state == "ok"


def test_a_part_that_hangs_is_unusable(tmp_path: pathlib.Path) -> None:
    hangs = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\ntime.sleep(1000)"
    said = doctor("--timeout", "6", PYTHONPATH=with_code(tmp_path, torch=hangs), PATH=str(tmp_path))
    assert said.status == 1
    assert said.row("torch").state == "unusable" and "the probe did not end within" in said.row("torch").detail
    assert "repeat it with a longer --timeout" in said.todo


def copied(folder: pathlib.Path, without: str) -> str:
    """Makes a package without the files whose names begin with ``without``. Returns its PYTHONPATH."""
    package = folder / "sparsesync"
    package.mkdir()
    for entry in package_folder().iterdir():
        if not entry.name.startswith((without, "__pycache__")):
            (package / entry.name).symlink_to(entry.resolve())
    return str(folder)


def test_a_build_without_the_laboratory(tmp_path: pathlib.Path) -> None:
    said = doctor(PYTHONPATH=copied(tmp_path, "_analysis"), PATH=str(tmp_path))
    assert said.row("laboratory").state == "missing" and "SPARSESYNC_ANALYSIS=ON" in said.todo
    assert said.row("sparsesync").state == "ok"


def test_a_compiled_module_that_cannot_be_loaded(tmp_path: pathlib.Path) -> None:
    said = doctor(PYTHONPATH=copied(tmp_path, "_native"))
    assert said.status == 1
    assert said.row("sparsesync").state == "unusable" and "ImportError" in said.row("sparsesync").detail
    assert "Build and install sparsesync" in said.todo
    assert "UCX" not in said.names(), "its probe would fail for the same reason"


def measured(said: Said) -> list[tuple[str, int, int]]:
    """Returns transport, ranks and machines of the measured links."""
    return [(link["transport"], link["ranks"], link["machines"]) for link in said.document["links"] if "rate_bps" in link]


def has_ucx() -> bool:
    try:
        return bool(sparsesync.ucx_version())
    except sparsesync.Error:
        return False


def test_launched_by_torchrun_rank_0_prints_the_links_of_the_ranks() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    line = [*launching.torchrun(2, pathlib.Path("-m"), "sparsesync", "doctor", "--json", "--timeout", LONG)]
    done = launching.run(line)
    assert done.returncode == 0, done
    said = Said(0, json.loads(done.stdout))
    assert said.row("launcher").detail == "torchrun, 2 processes"
    assert measured(said) == [("gloo", 2, 1), *([("ucx", 2, 1)] if has_ucx() else [])]


def test_launched_as_one_rank_there_is_no_link() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    done = launching.run([*launching.torchrun(1, pathlib.Path("-m"), "sparsesync", "doctor", "--json", "--timeout", LONG)])
    assert done.returncode == 0, done
    said = Said(0, json.loads(done.stdout))
    assert said.document["links"][0] == {"transport": "gloo", "path": "", "ranks": 1, "machines": 1}
    assert said.row("link gloo") == Row("link gloo", "ok", "one rank: there is no link to measure")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_launched_by_mpirun_rank_0_prints_the_links_of_the_ranks() -> None:
    line = [str(ROOT / "cmake/mpirun.sh"), "-np", "3", "--mca", "btl", "tcp,self", sys.executable, "-m", "sparsesync", "doctor", "--json"]
    done = launching.run([*line, "--timeout", LONG])
    assert done.returncode == 0, done
    said = Said(0, json.loads(done.stdout))
    assert said.row("launcher").detail == "mpirun, 3 processes"
    assert said.row("MPI").state == "ok" and said.row("MPI").detail.startswith("Open MPI")
    assert measured(said) == [("mpi", 3, 1), *([("ucx", 3, 1)] if has_ucx() else [])]


def test_launched_on_two_machines_rank_0_prints_what_differs() -> None:
    """Both ranks are the first of their machines, and the second one lacks UCX."""
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    if not has_ucx():
        pytest.skip("UCX is not available")
    of_both = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launching.free_port())}
    line = [sys.executable, "-m", "sparsesync", "doctor", "--json", "--timeout", LONG]
    other = subprocess.Popen(
        line, env=variables(**of_both, RANK="1", SPARSESYNC_UCX_LIBRARY="/nonexistent"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said = doctor(**of_both, RANK="0")
        output, _ = other.communicate(timeout=300)
    finally:
        other.kill()
        other.wait()
    assert (said.status, other.returncode, output) == (0, 0, b""), "rank 1 prints nothing"
    host = socket.gethostname()
    rows = [row["detail"] for row in said.document["rows"] if row["name"] == "UCX"]
    assert any(row.startswith(f"rank 1 on {host}: cannot load UCX from SPARSESYNC_UCX_LIBRARY") for row in rows), rows
    assert f"On {host}: Set SPARSESYNC_UCX_LIBRARY" in said.todo
    assert measured(said) == [("gloo", 2, 1)]
    assert said.row("link ucx").state == "unusable", "connecting names the rank that lacks it"


def test_launched_alone_the_missing_rank_is_named() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    of_torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    said = doctor("--timeout", "30", MASTER_PORT=str(launching.free_port()), **of_torchrun)
    assert said.status == 1
    assert "worker 1 has not started `python -m sparsesync doctor` after" in said.row("link gloo").detail


def test_processes_of_another_launcher_are_not_measured(tmp_path: pathlib.Path) -> None:
    said = doctor(SLURM_NTASKS="4", PYTHONPATH=with_code(tmp_path, sitecustomize=NO_TORCH))
    assert said.status == 1 and said.document["links"] == []
    assert said.row("launcher") == Row("launcher", "unusable", "SLURM_NTASKS=4 shows other processes, which cannot be reached")
    assert "Start the program with torchrun" in said.todo


def test_the_command_loads_neither_torch_nor_the_compiled_module() -> None:
    heavy = "[each for each in ('torch', 'numpy', 'sparsesync._native') if each in sys.modules]"
    done = python(f"import sys; from sparsesync.doctor import command, probes, links; print({heavy})")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("arguments", [["nonsense"], ["doctor", "--nonsense"], ["doctor", "--timeout", "0"], ["--nonsense"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "error:" in done.stderr and done.stdout == ""


def test_without_a_command_the_help_is_printed() -> None:
    done = run()
    assert done.returncode == 0 and "doctor" in done.stdout


# ---- Documents


def test_the_list_of_variables_is_that_of_the_document() -> None:
    text = (ROOT / "docs/operations/environment.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bSPARSESYNC_[A-Z_]+\b(?!\*)", text)) == environment.KNOWN


def test_the_document_lists_the_options() -> None:
    listed = set(re.findall(r"^\| `(--\w+)", (ROOT / "docs/tools/doctor.md").read_text(encoding="utf-8"), re.MULTILINE))
    done = run("doctor", "--help")
    assert listed == set(re.findall(r"^  (?:-h, )?(--\w+)", done.stdout, re.MULTILINE)) - {"--help"}
    assert "example:" in done.stdout


# ---- Processes


def test_a_process_that_crashes_keeps_its_facts() -> None:
    program = (
        "import sys; from sparsesync.doctor.processes import Report; Report(sys.argv[-1]).add(version=3)\n"
        "open(sys.argv[-1], 'a').write('{half a li')\n" + CRASHES
    )
    outcome = processes.run([sys.executable, "-c", program], 100)
    assert outcome == Outcome([{"version": 3}], "ended by SIGABRT: the driver is broken")


def test_a_process_that_fails_or_cannot_be_started() -> None:
    assert processes.run([sys.executable, "-c", "raise SystemExit('no\\tluck')"], 100).problem == "ended with status 1: no?luck"
    assert processes.run(["/nonexistent"], 100).problem == "/nonexistent cannot be started: No such file or directory"


def test_a_process_that_hangs_is_killed_with_its_children(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "children"
    program = "import subprocess; child = subprocess.Popen(['sleep', '1000'])\n"
    program += f"with open({str(path)!r}, 'w') as file: file.write(str(child.pid))\nchild.wait()"
    limit = 0.5
    outcome = processes.run([sys.executable, "-c", program], limit)
    while not path.exists():  # the machine was too busy to start the child in time
        limit *= 2
        outcome = processes.run([sys.executable, "-c", program], limit)
    assert outcome.problem == f"did not end within {limit:.3g} s"
    with pytest.raises(ProcessLookupError):
        for _ in range(6000):
            os.kill(int(path.read_text()), 0)
            time.sleep(0.01)


def test_a_process_ends_itself_if_its_parent_is_gone() -> None:
    program = "import time; from sparsesync.doctor.processes import limit_this_process; limit_this_process(0.1); time.sleep(1000)"
    done = subprocess.run([sys.executable, "-c", program], timeout=100, check=False)
    assert done.returncode == -signal.SIGALRM


def test_the_command_ends_within_its_limit_if_every_probe_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "module", lambda *_: [sys.executable, "-c", "import time; time.sleep(1000)"])
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    findings = command.examine(2)
    assert not findings.usable
    assert [row.name for row in findings.rows if row.state == "unusable"][:1] == ["sparsesync"]


# ---- Findings


def found_by(add: Any, facts: dict[str, Any], *more: Any, problem: str = "") -> tuple[dict[str, Row], str]:
    findings = Findings()
    add(findings, Outcome([facts] if facts else [], problem), *more)
    return {row.name: row for row in findings.rows}, "\n".join(findings.todo)


@pytest.mark.parametrize(
    ("version", "gloo", "states", "todo"),
    [
        ("2.15.0+cu132", True, ["ok", "ok", "ok"], ""),
        ("2.14.1", True, ["ok", "missing", "ok"], "install torch 2.15 or later"),
        ("2.6.0a0", False, ["ok", "missing", "missing"], "Install a torch with Gloo"),
        ("2.5.1", True, ["unusable", "missing", "missing"], "Install torch 2.6 or later"),
        ("10.0", True, ["ok", "ok", "ok"], ""),
    ],
)
def test_versions_of_torch(version: str, gloo: bool, states: list[str], todo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    rows, said = found_by(found.add_torch, {"version": version, "gloo": gloo}, HOST)
    assert [rows[name].state for name in ("torch", "torch backend", "Gloo")] == states
    assert todo in said and bool(said) == bool(todo)


@pytest.mark.parametrize(
    ("interface", "resolved", "state", "detail", "todo"),
    [
        ("eth0", "10.0.0.7", "ok", "GLOO_SOCKET_IFNAME=eth0", ""),
        ("eth7", "10.0.0.7", "unusable", "names eth7", "Set GLOO_SOCKET_IFNAME to one of lo, eth0."),
        ("", "127.0.1.1", "ok", "on this machine only: the host name node is 127.0.1.1", "set GLOO_SOCKET_IFNAME on each"),
        ("", "", "ok", "unknown: Gloo uses the loopback interface", ""),
    ],
)
def test_interfaces_of_gloo(interface: str, resolved: str, state: str, detail: str, todo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    rows, said = found_by(found.add_torch, {"version": "2.15", "gloo": True}, dataclasses.replace(HOST, resolved=resolved))
    assert rows["Gloo"].state == state and detail in rows["Gloo"].detail
    assert todo in said and bool(said) == bool(todo)


NO_GPU = {
    "driver": [],
    "compiled_in": False,
    "emulated": False,
    "devices": 0,
    "problem": "no CUDA",
    "nccl": None,
    "nccl_problem": "no CUDA",
}
H200 = {**NO_GPU, "driver": ["NVIDIA H200, 580.1"]}


@pytest.mark.parametrize(
    ("facts", "states", "detail", "todo"),
    [
        (NO_GPU, ["missing", "missing"], "no NVIDIA driver; this build has no CUDA", ""),
        (H200, ["unusable", "missing"], "NVIDIA H200 (driver 580.1); this build has no CUDA", "SPARSESYNC_CUDA=ON"),
        ({**H200, "compiled_in": True, "problem": ""}, ["ok", "missing"], "driver 580.1); CUDA compiled in", "install NCCL 2.18"),
        ({**H200, "compiled_in": True, "problem": "", "nccl": "2.28.3"}, ["ok", "ok"], "NVIDIA H200", ""),
        ({**H200, "compiled_in": True, "problem": "old driver", "nccl": "2.28.3"}, ["unusable", "ok"], "old driver", "Repair the GPU"),
        ({**NO_GPU, "compiled_in": True, "emulated": True, "problem": "", "nccl": "2.28.3"}, ["ok", "ok"], "emulated on the host", ""),
    ],
)
def test_gpus(facts: dict[str, Any], states: list[str], detail: str, todo: str) -> None:
    rows, said = found_by(found.add_gpu, facts)
    assert [rows[name].state for name in ("GPU", "NCCL")] == states
    assert detail in rows["GPU"].detail
    assert todo in said and bool(said) == bool(todo)


def test_a_probe_of_gpus_that_crashes() -> None:
    rows, said = found_by(found.add_gpu, {}, problem="ended by SIGSEGV")
    assert rows["GPU"] == Row("GPU", "unusable", "the probe ended by SIGSEGV") and "Repair the NVIDIA driver" in said


def test_mpi_that_a_build_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = Findings()
    found.add_mpi(findings, {"problem": "this build has no MPI: configure it with -DSPARSESYNC_MPI=ON"})
    assert findings.rows[0].state == "missing"
    assert findings.todo[0] == "To train over MPI, install it: this build has no MPI: configure it with -DSPARSESYNC_MPI=ON."


GLOO = {"transport": "gloo", "path": "", "latency_s": 36.2e-6, "rate_bps": 9.41e9, "ranks": 4, "machines": 2}


def test_json_and_the_table_have_the_same_facts() -> None:
    findings = Findings()
    findings.add("torch", "ok", "2.15.0")
    findings.add("UCX", "missing", "cannot load it " * 12, "Install it.", "Install it.")
    found.add_links(findings, [GLOO, {"transport": "ucx", "path": "", "problem": "no answer"}])
    document = json.loads(command.as_json(findings))
    assert document["usable"] is True
    assert document["rows"] == [vars(row) for row in findings.rows]
    assert document["links"][0] == GLOO
    assert document["todo"] == ["Install it.", "Repair the links over ucx: no answer."]
    table, _, rest = command.as_text(findings).partition("\n\n")
    rows: list[list[str]] = []
    for line in table.splitlines()[2:]:
        if line.startswith(" "):
            rows[-1][2] += f" {line.strip()}"
        else:
            rows.append(re.split(r"  +", line, maxsplit=2))
    assert rows == [[row.name, row.state, row.detail.strip()] for row in findings.rows]
    assert rows[2] == ["link gloo", "ok", "36.2 µs, 9.41 Gbit/s"]
    assert all(len(line) <= 100 for line in command.as_text(findings).splitlines())
    assert "in a ring of 4 ranks on 2 machines" in rest and "- Install it.\n- Repair the links" in rest
    assert rest.endswith("\nTraining is possible.\n")


def test_a_terminal_without_greek_letters() -> None:
    of_doctor = "import sys; from sparsesync.doctor import command as c, findings as f\n"
    of_doctor += f"c.examine = lambda _: (made := f.Findings(), f.add_links(made, [{GLOO}]))[0]; sys.exit(c.main([]))"
    done = subprocess.run([sys.executable, "-c", of_doctor], env=variables(PYTHONIOENCODING="ascii"), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and rb"36.2 \xb5s" in done.stdout


def test_rows_of_other_machines_that_differ_are_added() -> None:
    findings = Findings()
    findings.add("UCX", "ok", "1.13.1")
    findings.add("network", "ok", "eth0 (10.0.0.1)")
    findings.add("GPU", "ok", "H200")
    others = Findings()
    others.add("UCX", "ok", "1.17.0")
    others.add("network", "ok", "eth0 (10.0.0.2)")
    others.add("GPU", "missing", "no NVIDIA driver", "Install it.")
    facts = {"rows": [vars(row) for row in others.rows], "todo": others.todo}
    gathered = [{"host": "a", "facts": None}, {"host": "a", "facts": None}, {"host": "b", "facts": facts}]
    found.merge(findings, gathered)
    assert findings.rows[3:] == [Row("UCX", "ok", "rank 2 on b: 1.17.0"), Row("GPU", "missing", "rank 2 on b: no NVIDIA driver")]
    assert findings.todo == ["Install the same version of UCX on all machines.", "On b: Install it."]


def test_a_link_whose_process_crashes_has_its_error() -> None:
    facts = [{"began": "gloo", "path": ""}, {"link": "gloo", **GLOO}, {"began": "ucx", "path": "TCP"}]
    of_gloo, of_ucx = command.links_in(Outcome(facts, "ended by SIGSEGV"))
    assert of_gloo["rate_bps"] == 9.41e9
    assert of_ucx == {"transport": "ucx", "path": "TCP", "problem": "the measurement ended by SIGSEGV"}
    assert command.links_in(Outcome([], "ended with status 1")) == [
        {"transport": "all", "path": "", "problem": "the measurement ended with status 1"}
    ]


def test_the_end_of_the_other_process_is_reported() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert links._end_of(other.pid) == "; the other process ended by SIGABRT"
    assert links._end_of(None) == ""
    other.returncode = 0  # it has been waited for
