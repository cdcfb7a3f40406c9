"""Tests the GPU lines of `sparsesync info`, with and without CUDA in the build or a GPU in the machine. Without a GPU, `compare` rejects
GPU workers.
"""
# ctest: LABELS quick device

import json
import re

import pytest


@pytest.fixture
def info(run):
    """Returns (the JSON, {name: text} of the lines on standard output)."""
    as_json = run("info", "--json", "-")
    assert as_json.returncode == 0, as_json
    as_text = run("info")
    assert as_text.returncode == 0, as_text
    return json.loads(as_json.stdout), dict(re.findall(r"^(\S+(?: \S+)*) {2,}(.*)$", as_text.stdout, flags=re.MULTILINE))


def test_compiled_in_and_found_devices(info):
    found, text = info
    cuda = found["cuda"]
    assert set(cuda) == {"compiled_in", "emulated", "runtime", "driver", "problem", "devices"}
    assert found["devices"] == ["cpu", *(f"cuda:{number}" for number in range(len(cuda["devices"])))]
    assert text["devices"] == ", ".join(found["devices"])
    assert ("nccl" in found["transports"]) == cuda["compiled_in"]
    for device in cuda["devices"]:
        assert 0 < device["memory_available_bytes"] <= device["memory_bytes"]
    # Either a reason or a device is reported.
    assert (cuda["problem"] is None) == bool(cuda["devices"])
    if not cuda["compiled_in"]:
        assert (cuda["problem"], cuda["runtime"], cuda["driver"]) == ("this build has no CUDA", None, None)
        assert text["cuda"] == "not compiled in" and text["nccl"] == found["nccl"] == "(this build has no CUDA)"
        return
    assert re.fullmatch(r"\d+\.\d", cuda["runtime"])
    assert text["cuda"].startswith("emulated on the host" if cuda["emulated"] else f"compiled in, {cuda['runtime']}")
    assert re.fullmatch(r"\d+\.\d+\.\d+|\(.+\)", found["nccl"]) and text["nccl"] == found["nccl"]
    if cuda["problem"]:
        assert cuda["problem"].startswith("no GPU: ") and text["cuda"].endswith("; " + cuda["problem"])
    if cuda["driver"] is None:
        assert cuda["problem"] == "no GPU: this machine has no CUDA driver"
    else:
        assert f"; driver {cuda['driver']}" in text["cuda"]


@pytest.fixture
def trace(run):
    shape = ["--rows", 1000, "--width", 4, "--density", 0.1, "--zipf", 1, "--workers", 2, "--steps", 1, "--seed", 1]
    made = run("trace", "synthetic", *shape, "--out", "T")
    assert made.returncode == 0, made
    return "T"


@pytest.mark.parametrize("options", [["--device", "cuda"], ["--device", "cuda:0"], ["--transport", "nccl"]])
def test_without_a_gpu_compare_refuses_in_one_line(info, refused, trace, options):
    cuda = info[0]["cuda"]
    if cuda["devices"]:
        pytest.skip("there is a GPU here")
    refused("compare", trace, *options, status=1, parts=[cuda["problem"]])


def test_a_missing_gpu_is_refused_in_one_line(info, refused, trace):
    devices = info[0]["cuda"]["devices"]
    if not devices:
        pytest.skip("there is no GPU here")
    number = len(devices)
    refused(
        "compare", trace, "--device", f"cuda:{number}", status=1, parts=[f"no GPU {number}: this machine has {number}, numbered from 0"]
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:0x", "cuda:99999999999"])
def test_an_invalid_device_is_refused_in_one_line(refused, trace, device):
    refused("compare", trace, "--device", device, parts=[f"--device '{device}'", "cuda:0"])
