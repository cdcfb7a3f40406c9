"""Traces, the results of profile, plan and compare, and the class hierarchy of errors."""
# ctest: SLOW compare_tries_all plan_is

import gc
import json
import pathlib
import pickle
import struct

import numpy as np
import pytest
import sparsesync
from bindings_support import DTYPES, one_line, python, same_bits, stored
from sparsesync import InputError, _native

BEYOND_24 = 2**24 + 3
BEYOND_31 = 2**31 + 5
BEYOND_32 = 2**32 + 7


# Traces


def mix64(x):
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def made_values(seed, place, rows, spec):
    """Returns the values that docs/tools/traces.md defines for values that are not recorded. `place` is (worker, step, tensor)."""
    with np.errstate(over="ignore"):
        key = np.uint64(seed)
        for part in place:
            key = mix64(key) + np.uint64(part)
        key = mix64(key)
        hashes = mix64(key + rows.astype(np.uint64))
        columns = np.arange(spec.width, dtype=np.uint64)
        drawn = mix64(hashes[:, None] + columns // np.uint64(32)) >> (np.uint64(2) * (columns % np.uint64(32)))
    return stored((drawn % np.uint64(4) + np.uint64(1)).astype(np.int64), spec.dtype)


def spec_tuple(spec):
    return spec.name, spec.rows, spec.width, spec.dtype


TENSORS = [sparsesync.TensorSpec(f"of {dtype}", 500 + i, 1 + 20 * i, dtype) for i, dtype in enumerate(DTYPES)]


def write_trace(path, random, tensors=TENSORS, workers=3, steps=2, **options):
    """Writes a random trace. Returns the drawn rows by worker and step."""
    writer = sparsesync.TraceWriter(path, tensors, workers, steps, **options)
    drawn = {}
    for worker in range(workers):
        for step in range(steps):
            rows = [random.integers(0, each.rows, int(random.integers(0, 60))) for each in tensors]
            writer.write(worker, step, rows)
            drawn[worker, step] = rows
    assert not pathlib.Path(path).exists(), "nothing is there before commit()"
    writer.commit()
    return drawn


def test_a_trace_comes_back(random, tmp_path):
    drawn = write_trace(tmp_path / "T", random, source="a test", seed=17)
    for path in (tmp_path / "T", str(tmp_path / "T")):
        trace = sparsesync.Trace(path)
        assert (trace.workers, trace.steps, trace.source, trace.seed) == (3, 2, "a test", 17)
        assert [spec_tuple(each) for each in trace.tensors] == [spec_tuple(each) for each in TENSORS]
        for (worker, step), rows in drawn.items():
            loaded = trace.load(worker, step)
            assert list(loaded) == [each.name for each in TENSORS]
            for number, spec in enumerate(TENSORS):
                indices, values = loaded[spec.name]
                assert np.array_equal(indices, np.unique(rows[number]))
                expected = made_values(17, (worker, step, number), indices, spec)
                assert same_bits(values, expected.reshape(-1, spec.width)), spec.name


def test_recorded_values_come_as_they_stand(tmp_path):
    """Reads a trace that was not written by the library: any order, duplicates, bf16."""
    (tmp_path / "T").mkdir()
    header = {"format": 1, "workers": 1, "steps": 1, "source": "", "seed": 0}
    header["tensors"] = [{"name": "t", "rows": 9, "width": 2, "dtype": "bf16"}]
    (tmp_path / "T" / "trace.json").write_text(json.dumps(header))
    rows, values = np.array([5, 0, 5], np.int32), stored(np.arange(6).reshape(3, 2) / 3, "bf16")
    of_file = {
        "t.indices": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]},
        "t.values": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [12, 24]},
    }
    text = json.dumps(of_file).encode()
    file = struct.pack("<Q", len(text)) + text + rows.tobytes() + values.tobytes()
    (tmp_path / "T" / "w0000.s0000.safetensors").write_bytes(file)
    indices, loaded = sparsesync.Trace(tmp_path / "T").load(0, 0)["t"]
    assert indices.tolist() == [5, 0, 5] and same_bits(loaded, values)


def test_a_writer_refuses_bad_input(random, tmp_path):
    tensors = [sparsesync.TensorSpec("t", 10, 2)]
    rows = np.array([1, 2])
    make = lambda **options: sparsesync.TraceWriter(tmp_path / "T", tensors, 2, 1, **options)  # noqa: E731
    writer = make()
    refused = [
        (lambda: writer.write(2, 0, [rows]), "worker 2 at step 0: the trace has 2 workers"),
        (lambda: writer.write(-1, 0, [rows]), "worker -1"),
        (lambda: writer.write(0, 1, [rows]), "step 1"),
        (lambda: writer.write(0, 0, []), "0 arrays for 1 tensors"),
        (lambda: writer.write(0, 0, [rows, rows]), "2 arrays for 1 tensors"),
        (lambda: writer.write(0, 0, [np.array([10])]), "10"),
        (lambda: writer.write(0, 0, [np.array([-1])]), "-1"),
        (lambda: writer.write(0, 0, [rows.astype(np.int32)]), "tensor 't'"),
        (writer.commit, "worker 0 at step 0 is not written yet"),
    ]
    for call, part in refused:
        with pytest.raises(InputError) as told:
            call()
        assert part in one_line(told.value)
    writer.write(0, 0, [rows])
    with pytest.raises(InputError, match="was written already"):
        writer.write(0, 0, [rows])
    with pytest.raises(InputError, match="worker 1 at step 0 is not written yet"):
        writer.commit()
    writer.write(1, 0, [rows])
    writer.commit()
    for call in (lambda: writer.write(0, 0, [rows]), writer.commit):
        with pytest.raises(sparsesync.ClosedError):
            call()
    with pytest.raises(InputError, match="exist"):
        make()
    write_trace(tmp_path / "other", random)
    assert make(force=True)
    assert sparsesync.Trace(tmp_path / "T").workers == 2, "an uncommitted trace replaces nothing"


@pytest.mark.parametrize(
    ("tensors", "workers", "steps"),
    [
        ([], 1, 1),
        ([("t", 0, 1)], 1, 1),
        ([("t", 1, 0)], 1, 1),
        ([("t", -1, 1)], 1, 1),
        ([("", 1, 1)], 1, 1),
        ([("t", 1, 1), ("t", 1, 1)], 1, 1),
        ([("t", 1, 1)], 0, 1),
        ([("t", 1, 1)], 1, 0),
        ([("t", 1, 1)], -1, 1),
        ([("t", 1, 1)], 2**30, 2**30),
    ],
)
def test_impossible_traces(tmp_path, tensors, workers, steps):
    with pytest.raises(InputError) as told:
        sparsesync.TraceWriter(tmp_path / "T", [sparsesync.TensorSpec(*each) for each in tensors], workers, steps)
    one_line(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path):
    writer = sparsesync.TraceWriter(tmp_path / "T", [sparsesync.TensorSpec("t", 10, 2)], 1, 1)
    writer.write(0, 0, [np.array([1])])
    del writer
    gc.collect()
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
import numpy as np, sparsesync
writer = sparsesync.TraceWriter(sys.argv[1] + "/T", [sparsesync.TensorSpec("t", 10**6, 2)], 1, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    writer.write(0, 0, [np.arange(10**5)])
except sparsesync.IoError as error:
    assert isinstance(error, OSError) and "\\n" not in str(error)
    print(error)
"""


def test_a_full_disk_is_reported(tmp_path):
    done = python(FULL, tmp_path)
    assert done.returncode == 0 and "w0000.s0000" in done.stdout, done
    assert list(tmp_path.iterdir()) == [], "no files are left"


def test_loading_a_missing_part(random, tmp_path):
    write_trace(tmp_path / "T", random)
    trace = sparsesync.Trace(tmp_path / "T")
    for worker, step in ((3, 0), (0, 2), (-1, 0), (0, -1)):
        with pytest.raises(InputError, match=f"worker {worker} at step {step}: the trace has 3 workers and 2 steps"):
            trace.load(worker, step)


def test_file_names_that_are_not_text(tmp_path):
    path = str(tmp_path).encode() + b"/\xff\xfe"
    with pytest.raises(InputError) as told:
        sparsesync.Trace(path.decode(errors="surrogateescape"))
    assert "\\xff" in one_line(told.value)


# Results are those of the command line

# The module and the program may come from builds of different commits.
MADE = ("date", "commit", "build")
TIMES = (*MADE, "seconds_median", "seconds_min", "memory_bytes")


@pytest.fixture
def trace(tmp_path, random):
    shapes = [("table", 3000, 8), ("small", 40, 8), ("n", 900, 2, "f64")]
    tensors = [sparsesync.TensorSpec(*each) for each in shapes]
    write_trace(tmp_path / "T", random, tensors, workers=4, steps=3, seed=5)
    return tmp_path / "T"


def without(report, *keys):
    """Removes entries that differ between runs."""
    if isinstance(report, list):
        return [without(each, *keys) for each in report]
    if isinstance(report, dict):
        return {key: without(value, *keys) for key, value in report.items() if key not in keys}
    return report


def told_by_program(run_program, *arguments):
    return json.loads(run_program(*arguments, "--json", "-"))


def test_profile_is_that_of_the_command_line(run_program, trace):
    ours = sparsesync.profile(trace)
    assert len(ours["tensors"]) == 3 and ours["tensors"][0]["workers"] == 4
    assert without(ours, *MADE) == without(told_by_program(run_program, "profile", trace), *MADE)
    ours = sparsesync.profile(str(trace), partitions=[5, 2])
    theirs = told_by_program(run_program, "profile", trace, "--partitions", "2,5")
    assert list(ours["tensors"][0]["skewness"]) == ["2", "5"]
    assert without(ours, *MADE) == without(theirs, *MADE)


def test_plan_is_that_of_the_command_line(run_program, trace, tmp_path):
    ours = sparsesync.plan(trace, workers=[8, 2, 2], rate_bps=1e9, latency_s=5e-5)
    assert [each["n"] for each in ours["workers"]] == [2, 8] and ours["network"] == {"rate_bps": 1e9, "latency_s": 5e-5}
    link = ("--rate", "1gbit", "--latency", "50us")
    assert without(ours, *MADE) == without(
        told_by_program(run_program, "plan", trace, "--workers", "2,8", *link), *MADE
    )
    network = tmp_path / "NETWORK.json"
    slow = ("--rate", "1mbit", "--latency", "1ms")  # a slow link, so that other load on the machine does not affect the measurement
    run_program("calibrate", "--transport", "local", "--workers", 2, "--repeat", 3, *slow, "--out", network)
    ours = sparsesync.plan(trace, workers=[4], network=network, memory_bytes=1 << 16)
    told = ("plan", trace, "--workers", "4", "--network", network, "--memory", "64KiB")
    assert without(ours, *MADE) == without(told_by_program(run_program, *told), *MADE)


@pytest.mark.parametrize(
    "options", [{}, {"wire": "bf16"}, {"announce": True}, {"rate_bps": 1e9, "latency_s": 2e-5, "clock": "virtual"}]
)
def test_compare_is_that_of_the_command_line(run_program, trace, options):
    names = [name for name, _ in sparsesync.schemes()]
    ours = sparsesync.compare(trace, schemes=names, repeat=2, **options)
    assert [each["name"] for each in ours["schemes"]] == names
    for each in ours["schemes"]:
        assert ("skipped" in each) == (each["name"] == "dense_native")
        assert "skipped" in each or each["correct"] is True, each
    told = ["compare", trace, "--schemes", ",".join(names), "--repeat", 2]
    spelled = {
        "wire": ["--wire", "bf16"],
        "announce": ["--announce"],
        "rate_bps": ["--rate", "1gbit"],
        "latency_s": ["--latency", "20us"],
        "clock": ["--clock", "virtual"],
    }
    for name in options:
        told += spelled[name]
    theirs = told_by_program(run_program, *told)
    assert without(ours, *TIMES) == without(theirs, *TIMES)


def test_compare_tries_all_if_none_are_named(trace):
    names = {each["name"] for each in sparsesync.compare(trace, repeat=1)["schemes"]}
    assert names == {*(name for name, _ in sparsesync.schemes()), "auto"}


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda t: sparsesync.Trace("/not/there"), "'/not/there' is not a trace: it does not exist"),
        (lambda t: sparsesync.profile("/not/there"), "/not/there"),
        (lambda t: sparsesync.compare("/not/there"), "/not/there"),
        (lambda t: sparsesync.plan("/not/there", workers=[2], rate_bps=1e9), "/not/there"),
        (lambda t: sparsesync.plan(t, workers=[2], network="/not/there"), "/not/there"),
        (lambda t: sparsesync.plan(t, workers=[2], network=t / "trace.json"), "trace.json"),
        (lambda t: sparsesync.plan(t, workers=[2]), "no network is given"),
        (lambda t: sparsesync.plan(t, workers=[], rate_bps=1e9), "from 2 to 65536"),
        (lambda t: sparsesync.plan(t, workers=[1], rate_bps=1e9), "from 2 to 65536"),
        (lambda t: sparsesync.plan(t, workers=[70000], rate_bps=1e9), "from 2 to 65536"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=0), "a rate of 0"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=float("nan")), "a rate of nan"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=1e9, latency_s=-1), "a latency of -1"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=1e9, memory_bytes=-1), "-1"),
        (lambda t: sparsesync.profile(t, partitions=[0]), "0 partitions"),
        (lambda t: sparsesync.compare(t, schemes=["fast"]), "unknown scheme 'fast'"),
        (lambda t: sparsesync.compare(t, repeat=0), "repeat"),
        (lambda t: sparsesync.compare(t, clock="sun"), "no clock 'sun'"),
        (lambda t: sparsesync.compare(t, wire="f8"), "f8"),
        (lambda t: sparsesync.compare(t, wire="i32"), "i32"),
        (lambda t: sparsesync.compare(t, rate_bps=-1), "a rate of -1"),
        (lambda t: sparsesync.compare(t, rate_bps=float("inf")), "a rate of inf"),
        (lambda t: sparsesync.compare(t, rate_bps=1e9, latency_s=float("nan")), "a latency of nan"),
    ],
)
def test_tools_report_unusable_input(trace, call, part):
    with pytest.raises(InputError) as told:
        call(trace)
    assert part in one_line(told.value)


def test_a_damaged_trace_is_reported(trace):
    file = trace / "w0001.s0001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="w0001.s0001"):
        sparsesync.Trace(trace).load(1, 1)
    with pytest.raises(InputError, match="w0001.s0001"):
        sparsesync.profile(trace)
    file.unlink()
    with pytest.raises(InputError, match="w0001.s0001"):
        sparsesync.Trace(trace)


def test_deep_json_is_refused_and_python_lives_on(trace):
    text = (trace / "trace.json").read_text()
    for format in ("[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000):
        (trace / "trace.json").write_text(text.replace('"format": 1', f'"format": {format}'))
        with pytest.raises(InputError, match="trace.json.*nests values more than 64 deep"):
            sparsesync.profile(trace)


def test_names_of_tensors_are_shown_without_control_characters(trace):
    described = json.loads((trace / "trace.json").read_text())
    described["tensors"][0]["name"] = "\x1b[31m/\u202e"
    (trace / "trace.json").write_text(json.dumps(described))
    with pytest.raises(InputError) as told:
        sparsesync.profile(trace)
    assert r"'\x1b[31m/\u202e'" in one_line(told.value)


def test_errors_of_a_session_are_shown_without_control_characters():
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session, pytest.raises(InputError) as told:
        session.register_bucket("\x1b[31m\u202e", [])
    assert str(told.value).startswith(r"bucket '\x1b[31m\u202e' has no tensors")


def test_schemes_are_those_of_the_program(run_program):
    names = [name for name, summary in sparsesync.schemes() if summary]
    assert len(names) == len(sparsesync.schemes()) and names == sorted(names)
    listed = run_program("info", "--schemes")
    assert all(name in listed for name in names)


def test_provenance_names_the_origin_of_a_result():
    provenance = sparsesync.provenance()
    assert {"version", "commit", "compiler", "cpu", "date"} <= set(provenance)
    assert all(isinstance(value, str) and value for value in provenance.values())


# Errors

FAMILY = {
    "AbortedError": ("PeerError", Exception),
    "AgreementError": ("Error", Exception),
    "BudgetError": ("Error", MemoryError),
    "ClosedError": ("Error", Exception),
    "ContractError": ("Error", RuntimeError),
    "CorruptDataError": ("Error", Exception),
    "DeadlineError": ("Error", TimeoutError),
    "DeviceError": ("Error", Exception),
    "DeviceMemoryError": ("Error", MemoryError),
    "Error": ("Error", Exception),
    "InputError": ("Error", ValueError),
    "IoError": ("Error", OSError),
    "OrderError": ("Error", Exception),
    "PeerError": ("Error", Exception),
    "PeerLostError": ("PeerError", ConnectionError),
    "ProtocolError": ("Error", Exception),
    "RefusedError": ("PeerError", Exception),
    "UnsupportedError": ("Error", Exception),
}


def test_the_family_of_errors():
    assert {name for name in sparsesync.__all__ if name.endswith("Error")} == set(FAMILY)
    for name, (base, beside) in FAMILY.items():
        error = getattr(sparsesync, name)
        assert issubclass(error, getattr(sparsesync, base)) and issubclass(error, sparsesync.Error), name
        assert issubclass(error, beside), name
        assert error is getattr(_native, name)
        assert (error.__module__, error.__qualname__) == ("sparsesync", name), "the text as users write it"
        assert error.__doc__
        again = pickle.loads(pickle.dumps(error("a text")))
        assert type(again) is error and str(again) == "a text"


def test_an_error_goes_to_another_process_with_its_worker():
    error = sparsesync.PeerLostError("worker 3 is gone")
    error.rank = 3
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank) == ("worker 3 is gone", 3)
