"""Tests `sparsesync compare` when the system has no more threads: it prints one line and exits with status 1; it does not abort."""
# ctest: LABELS quick counted

import resource
import subprocess

MEBIBYTE = 1 << 20


def test_workers_whose_threads_cannot_be_started_end_in_one_line(run, program, tmp_path):
    made = run(*"trace synthetic --rows 200 --width 2 --density 0.1 --zipf 1 --workers 24 --steps 1 --out T".split())
    assert made.returncode == 0, made
    refused = 0
    for limit in range(40, 360, 40):  # each thread has a stack of 8 MiB

        def lower(limit=limit):
            resource.setrlimit(resource.RLIMIT_AS, (limit * MEBIBYTE, limit * MEBIBYTE))

        ended = subprocess.run(
            [program, "compare", "T", "--schemes", "balanced"], cwd=tmp_path, preexec_fn=lower, capture_output=True, text=True
        )
        assert ended.returncode in (0, 1), (limit, ended)
        if "could not be started" in ended.stderr:
            refused += 1
            assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended
            assert "thread of a" in ended.stderr and "ulimit -u" in ended.stderr, ended
    assert refused >= 3, "the limit was reached"
