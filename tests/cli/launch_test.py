"""Tests `sparsesync launch`: processes get their ranks, the first failure ends all, signals are forwarded, and UCX connects them."""
# ctest: NEEDS UCX

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import said

SHOW_RANK = 'echo "$SPARSESYNC_RANK of $SPARSESYNC_SIZE at $SPARSESYNC_ADDRESS"'
REST = "exec sleep 40"  # longer than any test may take


def test_each_process_gets_its_rank(run):
    result = run("launch", "-n", 3, "--", "sh", "-c", SHOW_RANK)
    assert result.returncode == 0 and not result.stderr, result
    lines = sorted(result.stdout.splitlines())
    (address,) = {line.split()[-1] for line in lines}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert lines == [f"{rank} of 3 at {address}" for rank in range(3)]


def test_the_variables_of_an_outer_launch_are_replaced(run):
    count = "import os; print(sum(name.startswith('SPARSESYNC_RANK') for name in os.environ), os.environ['SPARSESYNC_SIZE'])"
    result = run("launch", "-n", 1, "--", sys.executable, "-c", count, environment={"SPARSESYNC_RANK": "7", "SPARSESYNC_SIZE": "9"})
    assert result.stdout == "1 1\n", result


def test_the_first_failure_ends_all(run):
    began = time.monotonic()
    result = run("launch", "-n", 3, "--", "sh", "-c", f"[ $SPARSESYNC_RANK = 1 ] && exit 5; {REST}")
    assert result.returncode == 5 and result.stderr == "sparsesync: worker 1 ended with status 5\n"
    assert time.monotonic() - began < 20


def test_a_killed_worker_ends_all_even_if_they_ignore_sigterm(run):
    script = f"[ $SPARSESYNC_RANK = 1 ] && kill -9 $$; trap '' TERM; {REST}"
    result = run("launch", "-n", 2, "--", "sh", "-c", script)
    assert result.returncode == 128 + signal.SIGKILL and result.stderr == "sparsesync: worker 1 was ended by SIGKILL\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_all_processes(program, number, tmp_path):
    script = f"trap 'echo $SPARSESYNC_RANK >> got; exit 0' {number.value}; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen([program, "launch", "-n", "3", "--", "sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
        assert [job.stdout.readline() for _ in range(3)] == ["ready\n"] * 3
        job.send_signal(number)
        assert job.wait(30) == 0
    assert sorted((tmp_path / "got").read_text().split()) == ["0", "1", "2"]


def test_wrong_use(refused):
    refused("launch", "--", "true", parts=["-n is required"])
    refused("launch", "-n", 2, parts=["COMMAND is required"])
    refused("launch", "-n", 0, "--", "true", parts=["-n", "0"])
    refused("launch", "-n", 2, "--", "/absent/program", parts=["cannot start '/absent/program': No such file"])


def test_compare_finds_the_workers(run, program, make_trace):
    made = make_trace(3)
    command = ("compare", made, "--repeat", 1, "--json", "-", "--schemes", "balanced,owned,dense_ring")
    result = run("launch", "-n", 3, "--", program, *command, "--transport", "ucx")
    assert result.returncode == 0, result.stderr
    over_ucx, in_threads = json.loads(result.stdout), json.loads(run(*command).stdout)
    for one, other in zip(over_ucx["schemes"], in_threads["schemes"], strict=True):
        assert one["correct"]
        assert all(one[key] == other[key] for key in ("name", "bytes_total", "messages"))


def test_errors_of_compare_are_those_of_the_launcher(run, program, make_trace):
    result = run("launch", "-n", 3, "--", program, "compare", make_trace(2), "--transport", "ucx")
    assert result.returncode == 2 and not result.stdout
    assert sum("the trace has 2 workers, but this run has 3" in line for line in said(result)) == 3
    assert len(said(result)) == 4 and any("ended with status 2" in line for line in said(result))


@pytest.mark.parametrize(("environment", "parts"), [
    ({"SPARSESYNC_RANK": "1"}, ["has SPARSESYNC_RANK", "but not SPARSESYNC_SIZE SPARSESYNC_ADDRESS", "set all of them or none"]),
    ({"SPARSESYNC_RANK": "0", "SPARSESYNC_SIZE": "two", "SPARSESYNC_ADDRESS": "127.0.0.1:1"}, ["SPARSESYNC_SIZE is 'two'"]),
    ({"SPARSESYNC_RANK": "2", "SPARSESYNC_SIZE": "2", "SPARSESYNC_ADDRESS": "127.0.0.1:1"}, ["SPARSESYNC_RANK is '2'", "from 0 to 1"]),
    ({"SPARSESYNC_RANK": "0", "SPARSESYNC_SIZE": "2", "SPARSESYNC_ADDRESS": "nowhere"}, ["nowhere"]),
])  # fmt: skip
def test_wrong_variables(refused, make_trace, environment, parts):
    refused("compare", make_trace(2), "--transport", "ucx", parts=parts, environment=environment)
