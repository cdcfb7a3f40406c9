"""Tests `sparsesync trace`: the content of valid traces, and one-line errors for bad input."""

import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import time

import pytest

numpy = pytest.importorskip("numpy")

TOKENS = ("trace", "from-tokens")
FIELDS = ("trace", "from-fields")
TEXT = ("trace", "from-text")
SYNTHETIC = ("trace", "synthetic")
SMALL = ("--width", 4, "--workers", 2, "--batch", 3, "--out", "T")
DRAWN = ("--rows", 1000, "--width", 4, "--density", 0.1, "--zipf", 1, "--workers", 2, "--out", "T")


def save(folder, name, array):
    numpy.save(folder / name, array)
    return folder / name


def without(arguments, *names):
    """Returns `arguments` without these options and their values."""
    kept = list(arguments)
    for name in names:
        at = kept.index(name)
        del kept[at : at + 2]
    return kept


def read_safetensors(path):
    """Reads the format independently of the program. Returns {name: array}."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    types = {"I32": "<i4", "I64": "<i8", "F32": "<f4"}
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        arrays[name] = numpy.frombuffer(raw, types[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def rows_of(trace, worker, step, tensor="embedding"):
    arrays = read_safetensors(trace / f"w{worker:04}.s{step:04}.safetensors")
    return arrays[f"{tensor}.indices"].tolist()


# Valid use


def test_from_tokens_wraps_around_with_a_warning(run, tmp_path):
    tokens = [5, 5, 1, 0, 7, 2, 2]
    save(tmp_path, "t.npy", numpy.array(tokens, numpy.int32))
    result = run(*TOKENS, "t.npy", "--rows", 10, *SMALL, "--steps", 3, "--json", "-")
    assert result.returncode == 0, result.stderr
    trace = tmp_path / "T"
    for step in range(3):
        for worker in range(2):
            begin = (step * 2 + worker) * 3
            expected = sorted({tokens[i % len(tokens)] for i in range(begin, begin + 3)})
            assert rows_of(trace, worker, step) == expected
    header = json.loads((trace / "trace.json").read_text())
    assert header == {
        "format": 1,
        "tensors": [{"name": "embedding", "rows": 10, "width": 4, "dtype": "f32"}],
        "workers": 2,
        "steps": 3,
        "source": "t.npy",
        "seed": 1,
    }
    said = json.loads(result.stdout)
    assert said["path"] == "T" and said["workers"] == 2 and said["steps"] == 3
    assert said["tensors"] == header["tensors"]
    touched = [len(rows_of(trace, w, s)) for s in range(3) for w in range(2)]
    assert said["touched_rows_mean"] == pytest.approx(sum(touched) / 6)
    assert said["row_density_mean"] == pytest.approx(sum(touched) / 60)
    assert "row density" in result.stderr and "row density" not in result.stdout
    assert "warning: t.npy has 7 tokens, and all batches together read 18" in result.stderr


def test_summary_goes_to_standard_output_and_json_to_a_file(run, tmp_path):
    (tmp_path / "j.json").write_text("old")
    result = run(*SYNTHETIC, *DRAWN, "--json", "j.json")
    assert result.returncode == 0 and result.stderr == ""
    for part in ("embedding", "1,000", "100.0", "10%", "16.0 kB", "T"):
        assert part in result.stdout
    assert json.loads((tmp_path / "j.json").read_text())["touched_rows_mean"] == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["T", "j.json"]


def test_from_fields_offsets_and_split(run, tmp_path):
    fields = numpy.array([[0, 2, 1], [0, 4, 1], [3, 0, 0]])
    save(tmp_path, "f.npy", fields)
    save(tmp_path, "fortran.npy", numpy.asfortranarray(fields))
    for name in ("f.npy", "fortran.npy"):
        result = run(*FIELDS, name, *SMALL[:4], "--batch", 2, "--out", name + ".T")
        assert result.returncode == 0, result.stderr
        assert rows_of(tmp_path / (name + ".T"), 0, 0) == [0, 6, 8, 10]
        assert rows_of(tmp_path / (name + ".T"), 1, 0) == [0, 3, 4, 6, 9, 10]
    result = run(*FIELDS, "f.npy", *SMALL[:4], "--batch", 2, "--split", "--out", "S", "--json", "-")
    assert [(t["name"], t["rows"]) for t in json.loads(result.stdout)["tensors"]] == [
        ("field00", 4),
        ("field01", 5),
        ("field02", 2),
    ]
    assert rows_of(tmp_path / "S", 1, 0, "field01") == [0, 2]


def test_from_text(run, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "b.py").write_text("b a a")
    (folder / "c.md").write_text("c a b")
    (folder / "skipped.bin").write_text("zzz")
    arguments = (*TEXT, "text", "--width", 1, "--workers", 2, "--batch", 3, "--seed", 9)
    assert run(*arguments, "--out", "T").returncode == 0
    assert rows_of(tmp_path / "T", 0, 0) == [0, 1]
    assert rows_of(tmp_path / "T", 1, 0) == [0, 1, 2]
    assert run(*arguments, "--vocabulary", 2, "--out", "V").returncode == 0
    assert json.loads((tmp_path / "V" / "trace.json").read_text())["tensors"][0]["rows"] == 2
    assert run(*TEXT, "text/b.py", "text/c.md", *arguments[3:], "--out", "W").returncode == 0
    assert rows_of(tmp_path / "W", 1, 0) == rows_of(tmp_path / "T", 1, 0)


def test_synthetic_repeats_from_its_seed(run, tmp_path):
    for name, seed in (("A", 3), ("B", 3), ("C", 4)):
        result = run(*SYNTHETIC, *DRAWN[:-2], "--seed", seed, "--out", name, "--dtype", "bf16")
        assert result.returncode == 0, result.stderr
    assert rows_of(tmp_path / "A", 1, 0) == rows_of(tmp_path / "B", 1, 0)
    assert rows_of(tmp_path / "A", 1, 0) != rows_of(tmp_path / "C", 1, 0)
    for density, count in ((0, 0), (1, 1000)):
        arguments = without(DRAWN, "--density", "--out")
        run(*SYNTHETIC, *arguments, "--density", density, "--out", f"D{density}")
        assert len(rows_of(tmp_path / f"D{density}", 0, 0)) == count


def test_more_rows_than_32_bits(run, tmp_path):
    arguments = without(DRAWN, "--rows", "--density")
    result = run(*SYNTHETIC, *arguments, "--rows", 2**40, "--density", 1e-9)
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "T", 0, 0)
    assert len(rows) == round(2**40 * 1e-9) and max(rows) > 2**31


def test_force_replaces(run, tmp_path):
    assert run(*SYNTHETIC, *DRAWN).returncode == 0
    first = rows_of(tmp_path / "T", 0, 0)
    assert run(*SYNTHETIC, *DRAWN, "--seed", 2, "--force").returncode == 0
    assert rows_of(tmp_path / "T", 0, 0) != first
    assert [path.name for path in tmp_path.iterdir()] == ["T"]


def test_real_data(run, real_data, tmp_path):
    result = run(*TOKENS, real_data / "lm1b_tokens.npy", "--rows", 793471, "--width", 128,
                 "--workers", 16, "--batch", 2560, "--out", "L", "--json", "-")
    assert json.loads(result.stdout)["row_density_mean"] == pytest.approx(0.001495, abs=5e-7)
    result = run(*FIELDS, real_data / "criteo_fields.npy", "--width", 16, "--workers", 16,
                 "--batch", 1024, "--split", "--out", "C", "--json", "-")
    said = json.loads(result.stdout)
    assert said["row_density_mean"] == pytest.approx(0.0305, abs=5e-5)
    assert len(said["tensors"]) == 26


# Help


@pytest.mark.parametrize(
    "command", [(), ("trace",), TEXT, TOKENS, FIELDS, SYNTHETIC], ids=" ".join
)
def test_help_has_an_example(run, command):
    result = run(*command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    assert "Example:\n  " + " ".join(("sparsesync", *command)) in result.stdout


def test_no_argument_is_a_short_help(run):
    result = run()
    assert result.returncode == 2 and result.stdout == ""
    assert "trace" in result.stderr and len(result.stderr.splitlines()) < 12


# Invalid use


def test_unknown_names_are_refused_with_the_known(refused):
    refused("trase", parts=["'trase'", "did you mean trace", "compare", "--help"])
    refused("trace", parts=["from-text, from-tokens, from-fields, synthetic"])
    refused("trace", "synthetik", parts=["'synthetik'", "synthetic", "from-text"])
    refused(*SYNTHETIC, "--rowz", 5, parts=["'--rowz'", "did you mean --rows", "--help"])
    refused(*SYNTHETIC, *DRAWN, "--bogus", parts=["'--bogus'", "--help"])
    refused(*SYNTHETIC, *DRAWN, "--bogus=3", parts=["'--bogus'"])
    refused("--bogus", parts=["'--bogus'"])
    refused("trace", "--bogus", "synthetic", parts=["'--bogus'"])
    refused(*SYNTHETIC, *DRAWN, "extra", parts=["'extra'"])
    refused(*SYNTHETIC, *DRAWN, "--width", parts=["--width"])
    refused(*SYNTHETIC, *DRAWN, "--width", 5, parts=["--width", "more than once"])
    refused(*SYNTHETIC, "--split", parts=["'--split'"])


@pytest.mark.parametrize("name", ["--rows", "--density", "--zipf", "--width", "--workers", "--out"])
def test_a_missing_option_is_named(refused, name):
    refused(*SYNTHETIC, *without(DRAWN, name), parts=[name, "required", "--help"])


@pytest.mark.parametrize(
    "name, value",
    [
        ("--workers", "-1"),
        ("--workers", "0"),
        ("--workers", "65537"),
        ("--workers", "two"),
        ("--workers", "1.5"),
        ("--workers", ""),
        ("--width", "0"),
        ("--width", "-4"),
        ("--width", "99999999999999999999"),
        ("--rows", "0"),
        ("--rows", "1e3"),
        ("--density", "1.5"),
        ("--density", "-0.5"),
        ("--density", "nan"),
        ("--zipf", "-1"),
        ("--zipf", "inf"),
    ],
)
def test_values_outside_their_range(refused, name, value):
    refused(*SYNTHETIC, *without(DRAWN, name), name, value, parts=[name, value, "give a"])


@pytest.mark.parametrize(
    "name, value", [("--steps", "0"), ("--seed", "-1"), ("--dtype", "f31"), ("--batch", "0"), ("--sampled", "-1")]
)
def test_optional_values_outside_their_range(refused, tmp_path, name, value):
    save(tmp_path, "t.npy", numpy.array([1]))
    arguments = without(SMALL, name) if name in SMALL else SMALL
    parts = [name, value] + (["f32", "f64", "f16", "bf16", "i32", "i64"] if name == "--dtype" else [])
    refused(*TOKENS, "t.npy", "--rows", 5, *arguments, name, value, parts=parts)


def test_sizes_that_cannot_be_counted(refused):
    arguments = without(DRAWN, "--rows", "--width")
    refused(*SYNTHETIC, *arguments, "--rows", 2**62, "--width", 4, parts=["at most"])
    arguments = without(arguments, "--density")
    refused(*SYNTHETIC, *arguments, "--rows", 2**62, "--width", 4, "--density", 0, parts=["counted"])


def test_log_level_unknown(refused):
    refused("trace", environment={"SPARSESYNC_LOG": "loud"}, parts=["SPARSESYNC_LOG", "debug, info or warning"])


# Bad input


def bad_npys():
    yield "not one", b"these are not the bytes", ["not an .npy"]
    yield "empty", b"", ["not an .npy"]
    yield "floats", numpy.array([1.0, 2.0]), ["floats"]
    yield "complex", numpy.array([1j]), ["floats"]
    yield "objects", numpy.array([{}], dtype=object), ["objects"]
    yield "records", numpy.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), ["records"]
    yield "booleans", numpy.array([True]), ["not integers"]
    yield "big-endian", numpy.array([1], ">i4"), ["big-endian"]
    yield "no numbers", numpy.array([], numpy.int64), ["no tokens"]
    yield "one number", numpy.array(3), ["0 dimensions"]
    yield "three dimensions", numpy.zeros((2, 2, 2), int), ["3 dimensions"]
    yield "two dimensions", numpy.zeros((2, 2), int), ["two dimensions"]
    yield "negative", numpy.array([1, 2, -3]), ["-3", "position 2", "negative"]
    yield "outside", numpy.array([1, 10]), ["10", "position 1", "10 rows"]


@pytest.mark.parametrize("content, parts", [case[1:] for case in bad_npys()], ids=[case[0] for case in bad_npys()])
def test_bad_npy(refused, tmp_path, content, parts):
    if isinstance(content, bytes):
        (tmp_path / "t.npy").write_bytes(content)
    else:
        save(tmp_path, "t.npy", content)
    refused(*TOKENS, "t.npy", "--rows", 10, *SMALL, parts=["t.npy", *parts])


def test_npy_cut_short_or_too_long(refused, tmp_path):
    path = save(tmp_path, "t.npy", numpy.arange(10))
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:100], whole[:8], whole + b"x"):
        path.write_bytes(data)
        refused(*TOKENS, "t.npy", "--rows", 10, *SMALL, parts=["t.npy", "numpy.save"])


def test_bad_fields(refused, tmp_path):
    save(tmp_path, "one.npy", numpy.array([1, 2]))
    refused(*FIELDS, "one.npy", *SMALL, parts=["one.npy", "one dimension"])
    save(tmp_path, "negative.npy", numpy.array([[1, 2], [3, -4]]))
    refused(*FIELDS, "negative.npy", *SMALL, parts=["-4", "sample 1", "field 1"])
    save(tmp_path, "large.npy", numpy.array([[2**62, 2**62]]))
    refused(*FIELDS, "large.npy", *SMALL, parts=["counted"])


def test_unreadable_input(refused, tmp_path):
    for command in (TOKENS, FIELDS, TEXT):
        rows = ("--rows", 5) if command == TOKENS else ()
        refused(*command, "none", *rows, *SMALL, parts=["'none'", "No such file"])
    refused(*TOKENS, ".", "--rows", 5, *SMALL, parts=["not a regular file"])
    refused(*TEXT, ".", *SMALL, parts=["no .py, .txt or .md files"])
    (tmp_path / "blank.txt").write_text(" \n")
    refused(*TEXT, "blank.txt", *SMALL, parts=["no words"])
    refused(*TEXT, *SMALL, parts=["required"])


# The output


def test_out_that_exists(run, refused, tmp_path):
    assert run(*SYNTHETIC, *DRAWN).returncode == 0
    first = rows_of(tmp_path / "T", 0, 0)
    refused(*SYNTHETIC, *DRAWN, "--seed", 2, parts=["'T'", "exists", "--force"])
    assert rows_of(tmp_path / "T", 0, 0) == first


def test_force_never_removes_what_is_not_a_trace(refused, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    (tmp_path / "file").write_text("kept")
    for name in ("home", "file"):
        refused(*SYNTHETIC, *without(DRAWN, "--out"), "--out", name, "--force", parts=[name, "--force"])
    assert (tmp_path / "home" / "letter").read_text() == "dear"
    assert (tmp_path / "file").read_text() == "kept"


def test_invalid_out(refused):
    arguments = without(DRAWN, "--out")
    for out in ("no/such/T", "n" * 300, "", "/proc/T"):
        refused(*SYNTHETIC, *arguments, "--out", out, parts=[out[:100]])


def test_json_that_cannot_be_written(refused):
    refused(*SYNTHETIC, *DRAWN, "--json", "no/such.json", parts=["no/such.json"])
    refused(*SYNTHETIC, *DRAWN, "--json", ".", parts=["folder"])


def test_full_disk(refused, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=False, capture_output=True
    ).returncode == 0
    if not mounted:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        arguments = without(DRAWN, "--rows", "--out")
        refused(*SYNTHETIC, *arguments, "--rows", 1000000, "--out", "disk/T", status=1, parts=["No space left"])
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_full_standard_output(program, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [program, "trace", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and "standard output" in result.stderr


def slow_arguments(program):
    """Returns the arguments of a trace that takes many seconds and has many files."""
    arguments = ["--rows", 10**6, "--width", 4, "--density", 0.2, "--zipf", 1, "--workers", 1000, "--out", "T"]
    return [str(program), *SYNTHETIC, *map(str, arguments)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(program, tmp_path, number):
    process = subprocess.Popen(slow_arguments(program), cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".T.*/w0001*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(tmp_path.glob(".T.*")), "the program ended before it could be interrupted"
    process.send_signal(number)
    assert process.wait(timeout=30) == -number
    assert list(tmp_path.iterdir()) == []


def test_progress_only_on_a_terminal_and_erased(program, tmp_path):
    ours, theirs = pty.openpty()
    start = time.monotonic()
    process = subprocess.Popen(
        slow_arguments(program), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    try:
        said = os.read(ours, 1000).decode()
        assert "writing [" in said and time.monotonic() - start > 1.5
    finally:
        process.terminate()
        process.wait(timeout=30)
        os.close(ours)
    assert list(tmp_path.iterdir()) == []
