"""A scheme is one file: the registry lists each scheme of tests/toys/, and `compare` counts its bytes."""

import json
import os
import pathlib

import pytest
from compare_support import compare, write_trace

ROOT = pathlib.Path(os.environ["SPARSESYNC_SOURCE_DIR"])
PRODUCT = pathlib.Path(os.environ["SPARSESYNC_PROGRAM"])
RECIPES = ROOT / "docs/developers/recipes.md"  # shows a toy as an example
TOYS = sorted((ROOT / "tests/toys").glob("*.cpp"))


@pytest.fixture(scope="session")
def program():
    """Returns the program that also contains the toy schemes."""
    return pathlib.Path(os.environ["SPARSESYNC_WITH_TOYS"])


def files_that_name(word):
    folders = ["kernels", "schemes", "analysis", "engine", "bench", "tests", "cmake", "scripts", "docs"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path for path in paths if path.suffix in {".h", ".cpp", ".py", ".txt", ".cmake", ".md", ".sh", ""}]
    return {path for path in texts if word in path.read_text(encoding="utf-8", errors="replace")}


@pytest.mark.parametrize("toy", TOYS, ids=lambda path: path.stem)
def test_is_one_short_file_that_no_other_names(toy):
    assert len(toy.read_text(encoding="utf-8").splitlines()) <= 60
    assert files_that_name(toy.stem) <= {toy, pathlib.Path(__file__).resolve(), RECIPES}


def names_in(run):
    told = run("info", "--schemes", "--json", "-")
    assert told.returncode == 0, told
    return {scheme["name"] for scheme in json.loads(told.stdout)["schemes"]}


def test_the_registry_knows_them(run):
    assert TOYS
    assert {toy.stem for toy in TOYS} <= names_in(run)


def test_the_released_program_does_not_know_them(run):
    names = names_in(lambda *words: run(*words, executable=str(PRODUCT)))
    assert "balanced" in names
    assert not {toy.stem for toy in TOYS} & names


def test_compare_counts_one_server(run, tmp_path):
    # Each worker touches 8 rows of 16 bytes, 4 rows after the previous worker's: 16 distinct rows.
    tensors = [{"name": "t", "rows": 1000, "width": 4, "dtype": "f32"}]
    trace = write_trace(tmp_path / "T", tensors, 3, 1, lambda worker, *_: (range(4 * worker, 4 * worker + 8), None))
    report, figures = compare(run, trace)
    assert {toy.stem for toy in TOYS} <= set(figures)
    assert all(scheme["correct"] for scheme in figures.values())
    toy = figures["one_server"]
    assert toy["tensors"] == [{"index_code": "coo", "row_groups": 3, "column_slices": 1}]
    assert toy["seconds_predicted"] is None or toy["seconds_predicted"] > 0
    empty = 32 + 16  # a header and two numbers
    push, pull = empty + 8 * (4 + 16), empty + 16 * (4 + 16)
    # Worker 0 sends all sums to the other two workers, and pushes nothing to them.
    assert toy["bytes_sent_max"] == 2 * pull + 2 * empty
    # Worker 0 receives their pushes. They receive its pull, and only headers from each other.
    assert toy["bytes_received_max"] == max(2 * push + 2 * empty, pull + 3 * empty)
    assert toy["bytes_total"] == 2 * push + 2 * pull + 8 * empty
