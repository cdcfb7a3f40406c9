"""Shared by the tests of `sparsesync compare`: writes traces without the program, and reads its output."""

import json
import struct

import numpy

HEADER_BYTES = 32
SCHEMES = [
    "all_gather",
    "balanced",
    "balanced_hash",
    "block_ps",
    "dense_direct",
    "dense_ring",
    "dynamic_split",
    "owned",
    "recursive_doubling",
    "sparse_ps",
    "split_all_gather",
    "two_level",
]
WITHOUT_SERVERS = ["all_gather", "recursive_doubling"]
OVER_MPI_ALONE = ["dense_native"]
AUTO = "auto"  # a choice among the schemes, not a scheme itself

# The types that NumPy also has; bf16 is missing.
NUMPY_TYPES = {
    "f16": numpy.float16,
    "f32": numpy.float32,
    "f64": numpy.float64,
    "i32": numpy.int32,
    "i64": numpy.int64,
}


def write_safetensors(path, arrays):
    """Writes the format independently of the program."""
    names = {"int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64"}
    header, blob = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(blob), len(blob) + len(raw)],
        }
        blob += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def read_safetensors(path):
    """Reads the format independently of the program. Returns {name: array}."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    types = {"I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
    arrays = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        arrays[name] = numpy.frombuffer(raw, types[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def write_trace(folder, tensors, workers, steps, part):
    """Writes a trace without the program. part(worker, step, tensor) returns indices and values (or None)."""
    folder.mkdir()
    (folder / "trace.json").write_text(
        json.dumps(
            {"format": 1, "tensors": tensors, "workers": workers, "steps": steps, "source": "test", "seed": 7}
        )
    )
    for worker in range(workers):
        for step in range(steps):
            arrays = {}
            for tensor in tensors:
                indices, values = part(worker, step, tensor)
                arrays[tensor["name"] + ".indices"] = numpy.asarray(indices, numpy.int64)
                if values is not None:
                    arrays[tensor["name"] + ".values"] = numpy.asarray(values, NUMPY_TYPES[tensor["dtype"]])
            write_safetensors(folder / f"w{worker:04}.s{step:04}.safetensors", arrays)
    return folder


def compare(run, trace, *options, schemes="all", repeat=1):
    result = run("compare", trace, "--schemes", schemes, "--repeat", repeat, "--json", "-", *options)
    assert result.returncode == 0, result
    report = json.loads(result.stdout)
    figures = {scheme["name"]: scheme for scheme in report["schemes"]}
    if schemes == "all":
        for name in OVER_MPI_ALONE:
            assert set(figures.pop(name)) == {"name", "skipped"}
    return report, figures


def real_trace(run, real_data, kind, width, workers, *options):
    """Makes T and returns its path: LM1B with 2,560 tokens per worker, or Criteo with 1,024 samples per worker."""
    if kind == "lm1b":
        made = run(
            *("trace", "from-tokens", real_data / "lm1b_tokens.npy", "--rows", 793471, "--width", width),
            *("--workers", workers, "--batch", 2560, "--out", "T", "--force", *options),
        )
    else:
        made = run(
            *("trace", "from-fields", real_data / "criteo_fields.npy", "--width", width),
            *("--workers", workers, "--batch", 1024, "--out", "T", "--force", *options),
        )
    assert made.returncode == 0, made
    return "T"
