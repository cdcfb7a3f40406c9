"""Tests docs/tools/traces.md: its Python example runs and writes a trace with the given rows and values."""
# ctest: LABELS quick

import json
import pathlib
import re

import pytest

numpy = pytest.importorskip("numpy")
pytest.importorskip("safetensors")

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools" / "traces.md"


def the_lines():
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return code


def gradient_of(worker, step):
    """Returns rows in random order with one duplicate; for worker 1 in step 1 there are none."""
    if (worker, step) == (1, 1):
        return numpy.array([], int), numpy.zeros((0, 64))
    random = numpy.random.default_rng([worker, step])
    rows = random.integers(0, 50_000, 30)
    rows[-1] = rows[0]
    return rows, random.integers(1, 9, (30, 64))


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(the_lines(), str(DOCUMENT), "exec"), {"gradient_of": gradient_of})
    return "mine.trace"


def test_the_example_is_short():
    imports_and_constants = 4
    lines = [line for line in the_lines().splitlines() if line.strip()]
    assert len(lines) <= 10 + imports_and_constants


def test_the_trace_has_what_was_given(run, trace):
    result = run("profile", trace, "--json", "-")
    assert result.returncode == 0, result.stderr
    (tensor,) = json.loads(result.stdout)["tensors"]
    assert (tensor["name"], tensor["workers"], tensor["steps"]) == ("embedding", 4, 3)
    touched = [len(set(gradient_of(worker, step)[0].tolist())) for worker in range(4) for step in range(3)]
    assert tensor["row_density"]["mean"] == pytest.approx(numpy.mean(touched) / 50_000, rel=1e-12)
    assert tensor["row_density"]["min"] == 0


def test_its_sums_are_correct(run, trace, tmp_path):
    result = run("compare", trace, "--schemes", "balanced", "--repeat", 1, "--result", "R", "--json", "-")
    assert result.returncode == 0, result.stderr
    (scheme,) = json.loads(result.stdout)["schemes"]
    assert scheme["correct"]
    from safetensors.numpy import load_file

    for step in range(3):
        expected = numpy.zeros((50_000, 64))
        for worker in range(4):
            rows, values = gradient_of(worker, step)
            numpy.add.at(expected, rows, values)
        got = load_file(tmp_path / "R" / "balanced" / f"w0000.s{step:04}.safetensors")
        assert (got["embedding.values"] == expected[got["embedding.indices"]]).all()
        assert numpy.count_nonzero(expected) == numpy.count_nonzero(got["embedding.values"])
