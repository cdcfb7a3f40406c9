"""With few file descriptors a command succeeds, or reports the error and leaves no files."""
# ctest: LABELS quick counted

import json
import resource

import pytest

TRACE = ("trace", "synthetic", "--rows", 100, "--width", 2, "--density", 0.1, "--zipf", 1, "--workers", 2, "--steps", 2)
COMPARE = ("compare", "T", "--schemes", "balanced", "--repeat", 1)

# With fewer than 4 the program cannot be loaded.
FEWEST, MOST = 4, 24


def limited_to(files):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


@pytest.mark.parametrize(
    "command, made",
    [
        ((*TRACE, "--out", "U"), "U"),
        ((*TRACE, "--out", "U", "--json", "u.json"), "U"),
        ((*TRACE, "--seed", 2, "--out", "V", "--force"), "V"),
        (("profile", "T", "--json", "p.json"), "p.json"),
        ((*COMPARE, "--result", "R", "--json", "c.json"), "R"),
    ],
    ids=["trace", "trace_and_json", "force", "profile", "compare"],
)
def test_every_number_of_open_files(run, tmp_path, command, made):
    for name in ("T", "V"):
        assert run(*TRACE, "--out", name).returncode == 0
    before = sorted(path.name for path in tmp_path.iterdir())
    old = (tmp_path / "V" / "trace.json").read_text()
    refusals = 0
    for files in range(FEWEST, MOST):
        done = run(*command, preexec_fn=limited_to(files))
        if done.returncode == 0:
            break
        refusals += 1
        assert done.returncode == 1, (files, done)
        assert "Too many open files; raise the limit of this process (ulimit -n)" in done.stderr, (files, done)
        assert done.stderr.startswith("sparsesync: ") and done.stderr.count("\n") == 1, (files, done)
        assert sorted(path.name for path in tmp_path.iterdir()) == before, (files, done)
        assert (tmp_path / "V" / "trace.json").read_text() == old
    assert done.returncode == 0 and (tmp_path / made).exists()
    assert refusals >= 1
    assert not list(tmp_path.rglob(".*partial*"))
    if made == "V":
        assert json.loads((tmp_path / "V" / "trace.json").read_text())["seed"] == 2
