"""Tests `sparsesync simulate`: its JSON, every schedule on every shipped model, timelines, and rejected input."""
# ctest: LABELS quick

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, program_path

SCHEDULES = ["sequential", "wfbp", "merge_all", "mg_wfbp", "mg_wfbp_exact", "lazy", "dear", "auto"]
MODELS = sorted((program_path().parents[1] / "models").glob("*.json"))
LINK = ("--rate", "10gbit", "--latency", "20us")
LAYERS = [{"name": f"l{i}", "forward_s": 0.001, "backward_s": 0.002, "bytes": 1_000_000} for i in range(4)]
TABLE = {"rows": 100_000, "width": 32, "nnz": 2000, "densification": {"2": 1.6, "8": 4}}


def model(tmp_path, layers, name="m.json"):
    (tmp_path / name).write_text(json.dumps({"name": "m", "layers": layers}))
    return name


def simulate(run, *arguments):
    result = run("simulate", *arguments, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_schedule_of_every_model(run, path):
    told = simulate(run, path, "--workers", "1,8,512", *LINK, "--schedules", "all")
    assert {"model", "network", "results", "provenance"} <= told.keys()
    assert told["network"]["rate_bps"] == 10e9 and told["network"]["latency_s"] == 20e-6
    layers = json.loads(path.read_text())["layers"]
    compute = sum(each["forward_s"] + each["backward_s"] for each in layers)
    assert [(each["workers"], each["schedule"]) for each in told["results"]] == [(n, s) for n in (1, 8, 512) for s in SCHEDULES]
    for each in told["results"]:
        assert {"scheme", "iteration_s", "compute_s", "communication_s", "exposed_s", "messages", "buckets"} <= each.keys()
        assert each["compute_s"] == pytest.approx(compute)
        assert each["iteration_s"] == pytest.approx(each["compute_s"] + each["exposed_s"])
        assert each["exposed_s"] <= each["communication_s"] * (1 + 1e-9) + 1e-12
        assert (each["communication_s"] == 0) == (each["workers"] == 1)
        in_buckets = sorted(layer for first, last in each["buckets"] for layer in range(first, last + 1))
        assert in_buckets == list(range(len(layers)))
    for workers in (8, 512):
        seconds = {each["schedule"]: each["iteration_s"] for each in told["results"] if each["workers"] == workers}
        assert seconds["auto"] <= min(seconds.values()) * (1 + 1e-9)
        assert seconds["mg_wfbp_exact"] <= min(seconds[s] for s in ("wfbp", "merge_all", "mg_wfbp")) * (1 + 1e-9)
        assert max(seconds.values()) == pytest.approx(max(seconds["sequential"], seconds["merge_all"]), rel=0.05)


def test_there_are_the_models_that_the_readme_names():
    assert [path.stem for path in MODELS] == [
        "alexnet", "bert_base", "bert_large", "deepfm", "densenet201", "inception_v4", "lstm", "resnet50",
    ]  # fmt: skip


def test_a_name_is_shown_without_control_characters(run, refused, tmp_path):
    name = "\x1b]0;pwned\x07 \x9b31m \u202eevil\u202c"
    (tmp_path / "m.json").write_text(json.dumps({"name": name, "layers": LAYERS}))
    result = run("simulate", "m.json", *LINK, "--json", "s.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(r"\x1b]0;pwned\x07 \u009b31m \u202eevil\u202c, 4 layers;")
    assert all(character.isprintable() or character == "\n" for character in result.stdout)
    assert json.loads((tmp_path / "s.json").read_text())["model"] == name
    refused("simulate", "m.json", *LINK, "--schedules", name, parts=[r"\u009b31m \u202eevil"])
    (tmp_path / "m.json").write_text(json.dumps({"name": "m", "layers": [LAYERS[0] | {"name": name}] * 2}))
    refused("simulate", "m.json", *LINK, parts=[r"'\x1b]0;pwned\x07 \u009b31m \u202eevil\u202c' of an earlier layer"])


def test_numbers_of_workers(run, tmp_path):
    of = model(tmp_path, LAYERS)

    def workers(text):
        return [each["workers"] for each in simulate(run, of, "--workers", text, *LINK, "--schedules", "wfbp")["results"]]

    assert workers("4..64") == [4, 8, 16, 32, 64]
    assert workers("3,5,65536") == [3, 5, 65536]


def test_an_affine_all_reduce_is_the_papers_recurrence(run, tmp_path):
    start, rate = 5.230e-4, 8.571e-10
    told = simulate(run, model(tmp_path, LAYERS), "--workers", "8", "--affine", f"{start},{rate}", "--schedules", "wfbp,merge_all")
    assert told["network"]["affine"] == [start, rate]
    ready = crossed = 0.004
    for _ in LAYERS:
        ready += 0.002
        crossed = max(crossed, ready) + start + rate * 1e6
    by_name = {each["schedule"]: each for each in told["results"]}
    assert by_name["wfbp"]["iteration_s"] == pytest.approx(crossed)
    assert by_name["merge_all"]["iteration_s"] == pytest.approx(0.012 + start + rate * 4e6)
    assert by_name["merge_all"]["messages"] < by_name["wfbp"]["messages"]


def test_buckets_are_full_with_what_is_asked_for(run, tmp_path):
    of = model(tmp_path, LAYERS)
    for size, expected in (("1MB", 4), ("2MB", 2), ("100MB", 1)):
        for each in simulate(run, of, "--workers", "8", *LINK, "--schedules", "lazy,dear", "--bucket", size)["results"]:
            assert len(each["buckets"]) == expected, (size, each)


def test_rows_cost_less_than_tables_and_can_be_announced(run, tmp_path):
    table = {"name": "table", "forward_s": 0.001, "backward_s": 0.002}
    dense = model(tmp_path, [{**table, "bytes": 100_000 * 32 * 4}, *LAYERS], "dense.json")
    sparse = model(tmp_path, [{**table, "sparse": TABLE}, *LAYERS], "sparse.json")

    def only(of, *options):
        (result,) = simulate(run, of, "--workers", "8", *LINK, "--schedules", "wfbp", *options)["results"]
        return result

    assert only(sparse)["communication_s"] < 0.7 * only(dense)["communication_s"]
    announced = only(sparse, "--scheme", "owned", "--announce")
    assert "owned" in announced["scheme"]
    assert announced["iteration_s"] < only(sparse, "--scheme", "owned")["iteration_s"]


def test_stragglers_are_drawn_of_a_seed(run, tmp_path):
    of = model(tmp_path, LAYERS)

    def seconds(*options):
        return simulate(run, of, "--workers", "16", *LINK, "--schedules", "dear", *options)["results"][0]["iteration_s"]

    assert seconds("--stragglers", "0.3", "--seed", "2") == seconds("--stragglers", "0.3", "--seed", "2") > seconds()
    assert seconds("--stragglers", "0.3", "--seed", "2") != seconds("--stragglers", "0.3", "--seed", "3")


def test_a_timeline_is_a_trace_that_adds_up(run, tmp_path):
    told = simulate(run, model(tmp_path, LAYERS), "--workers", "8", *LINK, "--schedules", "wfbp,dear", "--timeline", "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert processes == {0: "wfbp, 8 workers", 1: "dear, 8 workers"}
    for process, result in enumerate(told["results"]):
        spans = [each for each in events if each["ph"] == "X" and each["pid"] == process]
        passes = [each for each in spans if each["tid"] == 0]
        assert len(passes) == 3 * 2 * len(LAYERS)
        assert sum(each["dur"] for each in passes) / 3e6 == pytest.approx(result["compute_s"])
        for row in (1, 2):  # spans within a row do not overlap
            ends = 0.0
            for each in sorted((each for each in spans if each["tid"] == row), key=lambda each: each["ts"]):
                assert each["ts"] >= ends - 1e-6
                ends = each["ts"] + each["dur"]


def test_tables_and_files_that_cannot_be_written(run, refused, tmp_path):
    of = model(tmp_path, LAYERS)
    shown = run("simulate", of, "--workers", "8", *LINK)
    assert shown.returncode == 0 and "\x1b" not in shown.stdout
    for name in SCHEDULES:
        assert f"\n{name} " in shown.stdout
    refused("simulate", of, "--workers", "8", *LINK, "--timeline", "none/t.json", parts=["none/t.json"])
    refused("simulate", of, "--workers", "8", *LINK, "--json", "none/t.json", parts=["none/t.json"])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--workers", "8"), ["--rate"]),
        (("--workers", "0", *LINK), ["--workers"]),
        (("--workers", "65537", *LINK), ["--workers", "65536"]),
        (("--workers", "8..4", *LINK), ["--workers"]),
        (("--schedules", "wbfp", *LINK), ["wbfp", "mg_wfbp_exact"]),
        (("--schedules", "", *LINK), ["--schedules"]),
        (("--scheme", "none", *LINK), ["none"]),
        (("--scheme", "sparse_ps", *LINK), ["sparse_ps", "positions of rows"]),
        (("--scheme", "balanced_hash", "--announce", *LINK), ["--announce", "owned"]),
        (("--affine", "1"), ["--affine", "two numbers"]),
        (("--affine", "1,-1"), ["--affine"]),
        (("--affine", "1e-4,1e-9", *LINK), ["--affine", "--rate"]),
        (("--bucket", "0", *LINK), ["--bucket"]),
        (("--stragglers", "-1", *LINK), ["--stragglers"]),
        (("--workers-per-node", "4", *LINK), ["--workers-per-node", "--network"]),
    ],
    ids=str,
)
def test_bad_options_are_refused(refused, tmp_path, options, parts):
    refused("simulate", model(tmp_path, LAYERS), *options, parts=parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ["m.json"]),
        ("{", ["m.json"]),
        ("[]", ["m.json"]),
        ('{"name": "m"}', ["layers"]),
        ('{"name": "m", "layers": []}', ["no layer"]),
        (json.dumps({"name": "m", "layers": [{**LAYERS[0], "forward_s": -1}]}), ["forward_s", "docs/tools/simulate.md"]),
        (json.dumps({"name": "m", "layers": [{**LAYERS[0], "sparse": TABLE}]}), ["not both"]),
        (json.dumps({"name": "m", "layers": [LAYERS[0], LAYERS[0]]}), ["l0"]),
    ],
    ids=str,
)
def test_bad_models_are_refused(refused, tmp_path, text, parts):
    if text is not None:
        (tmp_path / "m.json").write_text(text)
    refused("simulate", "m.json", *LINK, parts=parts)


def test_models_with_measured_rows_are_what_their_program_makes(tmp_path):
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "models", folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, str(folder / "generate.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
    path = folder / "lstm.json"
    path.write_text(path.read_text().replace('"rows": 793471', '"rows": 793470', 1))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stderr == "lstm.json is not what generate.py makes: run models/generate.py\n"


def test_a_build_has_all_models(tmp_path):
    command = [sys.executable, str(ROOT / "models" / "generate.py"), "--out", str(tmp_path / "made")]
    assert subprocess.run(command, check=False).returncode == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert made == {path.name: path.read_bytes() for path in MODELS}
    measured = {path.name: path.read_bytes() for path in (ROOT / "models").glob("*.json")}
    assert sorted(measured) == ["deepfm.json", "lstm.json"] and measured.items() <= made.items()


def test_models_have_as_many_parameters_as_their_authors_count(tmp_path):
    spec = importlib.util.spec_from_file_location("generate", ROOT / "models" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = generate  # dataclasses look up their module here
    spec.loader.exec_module(generate)
    told = {each.file: each.parameters for each in generate.models()}
    assert sorted(told) == [path.stem for path in MODELS]
    for path in MODELS:
        layers = json.loads(path.read_text())["layers"]
        of_tables = sum(each["sparse"]["rows"] * each["sparse"]["width"] for each in layers if "sparse" in each)
        assert sum(each.get("bytes", 0) for each in layers) / 4 + of_tables == told[path.stem], path.stem


def test_narrow_values_and_chunks(run, tmp_path):
    of = model(tmp_path, LAYERS)
    common = ("--workers", "8", "--rate", "1gbit", "--schedules", "merge_all")

    def crossing(*words):
        told = simulate(run, of, *common, *words)
        return told, told["results"][0]["communication_s"]

    told, whole = crossing()
    assert told["wire"] == "f32" and told["coarse_grained"] is None
    told, half = crossing("--wire", "bf16")
    assert told["wire"] == "bf16" and half == pytest.approx(whole / 2, rel=0.01)
    told, chunks = crossing("--coarse-grained", "0.1", "--chunk", "1000", "--wire", "f16")
    assert told["coarse_grained"] == {"share": 0.1, "chunk": 1000}
    assert chunks == pytest.approx(whole * (0.05 + 0.002), rel=0.01)
    assert "; values are sent as f16; 0.1 of all chunks of 1,000 elements are sent" in run(
        "simulate", of, *common, "--coarse-grained", "0.1", "--chunk", "1000", "--wire", "f16"
    ).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--coarse-grained", "0"), "--coarse-grained 0: give a share above 0"),
        (("--coarse-grained", "1.5"), "--coarse-grained"),
        (("--chunk", "0", "--coarse-grained", "0.5"), "--chunk"),
        (("--chunk", "100"), "--chunk requires --coarse-grained"),
        (("--wire", "i32"), "--wire i32: f32, f16 or bf16"),
        (("--wire", "narrow"), "narrow"),
    ],
)
def test_unknown_wire_or_chunks(run, tmp_path, words, said):
    result = run("simulate", model(tmp_path, LAYERS), *LINK, *words)
    assert result.returncode == 2
    assert said in result.stderr and len(result.stderr.splitlines()) == 1
