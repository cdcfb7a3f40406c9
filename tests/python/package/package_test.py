"""The package as tools see it: documentation, lists of names, types."""
# ctest: COST 25 SLOW typed_program

import ast
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest
import sparsesync
from bindings_support import package_folder, python
from sparsesync import _analysis, _native

BEYOND_24 = 2**24 + 3
BEYOND_31 = 2**31 + 5
BEYOND_32 = 2**32 + 7


# The package as tools see it


def public_objects():
    for name in sparsesync.__all__:
        yield name, getattr(sparsesync, name)


def members(name, value):
    if not inspect.isclass(value) or name.endswith("Error"):
        return
    for member, of_class in vars(value).items():
        is_made_here = member == "__init__" and not isinstance(of_class, types.WrapperDescriptorType)
        if not member.startswith("_") or is_made_here:
            yield f"{name}.{member}", of_class


def documented():
    """Yields (name, signature, documentation without the signature)."""
    for name, value in public_objects():
        for each, of in [(name, value), *members(name, value)]:
            text = inspect.getdoc(of) or ""
            signature = text.split("\n", 1)[0] if re.match(r"\w+\(.*\) -> ", text) else ""
            if not signature and inspect.isfunction(of):
                signature = str(inspect.signature(of))
            yield each, signature, text.removeprefix(signature).strip()


def test_every_public_name_is_documented():
    seen = list(documented())
    assert len(seen) > 80
    # A constructor without arguments needs no documentation.
    missing = [name for name, _, text in seen if len(text) < 10 and name != "SupportsDLPack.__init__"]
    assert missing == []


def test_documentation_has_shapes_and_units():
    units = {"_s": "second", "_bps": "bits|bit/s", "_bytes": "bytes|budget|workspace"}
    checked = 0
    faults = []
    classes = {name: text for name, _, text in documented()}
    for name, signature, text in documented():
        told = text + (classes[name.split(".")[0]] if name.endswith("__init__") else "")
        arguments = re.findall(r"\b(\w+): ", signature)
        for ending, word in units.items():
            for argument in arguments:
                if argument.endswith(ending):
                    checked += 1
                    faults += [(name, argument)] if not re.search(word, told) else []
        if "SupportsDLPack" in signature or "NDArray" in signature:
            checked += 1
            faults += [(name, "no shape")] if not re.search(r"\[\w*.*\]|any .*shape", told) else []
    assert faults == [] and checked > 15


def test_every_public_name_is_listed():
    assert sparsesync.__all__ == sorted(sparsesync.__all__)
    assert set(sparsesync.__all__) <= set(dir(sparsesync))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sparsesync.nothing  # noqa: B018
    star = {}
    exec("from sparsesync import *", star)
    assert set(sparsesync.__all__) <= set(star)


def test_nothing_compiled_is_loaded_before_it_is_asked_for():
    """Reports need neither."""
    done = python(
        "import sys, sparsesync; print([each for each in ('numpy', 'sparsesync._native') if each in sys.modules])"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


# Prints the modules that the second import adds to those of the first, except those of this package.
ADDED_MODULES = """
import sys
import {first}
before = set(sys.modules)
import {second}
added = set(sys.modules) - before
assert "{second}" in added
print(sorted(name for name in added if name.split(".")[0] != "sparsesync"))
"""


OF_STATISTICS = {"statistics", "_statistics", "decimal", "_decimal", "fractions"}  # 2 ms


def test_importing_the_torch_package_adds_hardly_more_than_its_own_modules():
    """So that its import is quick; bench/python/import_times.py measures it."""
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    done = python(ADDED_MODULES.format(first="torch, torch.distributed", second="sparsesync.torch"))
    assert (done.returncode, done.stderr) == (0, "")
    assert set(ast.literal_eval(done.stdout)) <= OF_STATISTICS


def test_an_added_module_is_found():
    done = python(ADDED_MODULES.format(first="sys", second="sparsesync._native"))
    assert "'typing'" in done.stdout, done


def test_training_loads_nothing_of_the_laboratory():
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    laboratory = ["sparsesync._analysis", "sparsesync.analysis", "sparsesync.report"]
    loaded = f"print([name for name in {laboratory} if name in sys.modules])"
    done = python(f"import sys, sparsesync.torch; {loaded}; sparsesync.plan; import sparsesync.report; {loaded}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[]", str(laboratory)], "the names exist in the analysis part"


# Error texts of the analysis part.
OF_THE_LABORATORY = [b"trace.json", b"no network is given", b"make one with 'sparsesync trace'"]


def test_the_library_holds_nothing_of_the_laboratory():
    library, laboratory = (pathlib.Path(module.__file__).read_bytes() for module in (_native, _analysis))
    for text in OF_THE_LABORATORY:
        assert text in laboratory, "the analysis part contains the text"
        assert text not in library, text
    assert len(library) < len(laboratory), "the analysis part contains a copy of the library"


WITHOUT_LABORATORY = """
import sparsesync

def problem(use):
    try:
        use()
    except ImportError as error:
        return str(error)

names = ["Trace", "TraceWriter", "write_model", "profile", "plan", "compare"]
said = {name: problem(lambda: getattr(sparsesync, name)) for name in names}
said["analysis"] = problem(lambda: __import__("sparsesync.analysis"))
for name, text in said.items():
    assert text and text.startswith(f"sparsesync.{name}: "), (name, text)
    assert "SPARSESYNC_ANALYSIS=ON" in text and "\\n" not in text, text
assert len(sparsesync.schemes()) > 5
"""

RECORDS_WITHOUT_LABORATORY = """
import sparsesync.torch
import torch

def problem(use):
    try:
        use()
    except sparsesync.InputError as error:
        return str(error)

module = torch.nn.Embedding(4, 4, sparse=True)
with sparsesync.torch.DistributedDataParallel(module, process_group="alone") as ddp:
    ddp(torch.tensor([1])).sum().backward()
    for name in ("record_trace", "record_model"):
        text = problem(lambda: getattr(sparsesync.torch, name)(ddp, "file"))
        assert text and text.startswith(f"{name}: ") and "SPARSESYNC_ANALYSIS=ON" in text, text
    ddp(torch.tensor([1])).sum().backward()
"""


@pytest.fixture
def without_laboratory(tmp_path):
    """Returns a function that runs a script with a package without _analysis, like a build with SPARSESYNC_ANALYSIS=OFF."""
    package = tmp_path / "sparsesync"
    package.mkdir()
    for entry in package_folder().iterdir():
        if not entry.name.startswith(("_analysis", "__pycache__")):
            (package / entry.name).symlink_to(entry.resolve())

    def run(script):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    return run


def test_a_build_without_the_laboratory_says_how_to_get_it(without_laboratory):
    without_laboratory(WITHOUT_LABORATORY)


def test_a_build_without_the_laboratory_trains_and_refuses_to_record(without_laboratory):
    pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    without_laboratory(RECORDS_WITHOUT_LABORATORY)


def test_the_package_is_typed():
    assert (package_folder() / "py.typed").exists()


def stub(module):
    return ast.parse((package_folder() / f"{module.__name__.split('.')[1]}.pyi").read_text())


def names_in(body):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def test_the_stubs_name_every_public_name():
    tops = {module: set(names_in(stub(module).body)) for module in (_native, _analysis)}
    for name, value in public_objects():
        compiled = [module for module in tops if name in vars(module)]
        if compiled:
            assert all(name in tops[module] for module in compiled), name
        else:
            module = importlib.import_module(value.__module__)
            assert module.__file__.endswith(".py"), f"{name} is typed where it is defined"


@pytest.mark.parametrize(("module", "least"), [(_native, 10), (_analysis, 2)], ids=["library", "laboratory"])
def test_the_stubs_name_the_members_of_every_class(module, least):
    classes = {node.name: set(names_in(node.body)) for node in stub(module).body if isinstance(node, ast.ClassDef)}
    own = {name: value for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__}
    assert len(own) >= least
    for name, value in own.items():
        public = {each.split(".")[1] for each, _ in members(name, value)}
        assert public <= classes[name], name


SNIPPET = """
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import sparsesync


def kernels(rows: npt.NDArray[np.int64], values: npt.NDArray[np.float32]) -> int:
    found, sums = sparsesync.coalesce(rows, values, 10)
    again, _ = sparsesync.compact(sums)
    code, data = sparsesync.encode_indices(found, 10)
    decoded: npt.NDArray[np.int64] = sparsesync.decode_indices(code, data, rows=10, count=len(found))
    return len(again) + len(decoded)


def session(array: sparsesync.SupportsDLPack) -> dict[str, int]:
    network = sparsesync.LocalNetwork(1, rate_bps=1e9)
    with sparsesync.Session(network.join(0), memory_bytes=None) as session:
        spec = sparsesync.TensorSpec("t", 10, 2, "f32")
        bucket: int = session.register_bucket("b", [spec], scheme="owned", announce=True)
        told: sparsesync.Ticket = session.announce(bucket, [np.array([1])])
        session.wait(told)
        session.reduce(bucket, [(np.array([1]), np.ones((1, 2), np.float32))])
        session.reduce(bucket, [None])
        session.reduce(bucket, [np.zeros((10, 2), np.float32)])
        session.wait(session.gather(bucket))
        result = session.result(bucket, 0)
        if isinstance(result, tuple):
            print(result[0].shape, result[1].shape)
        else:
            print(result.shape)
        rows: int | None = session.result_rows(bucket, 0)
        session.broadcast(array, root=0)
        gathered: list[bytes] = session.all_gather(b"x")
        session.agree("it", [("name", "value")])
        session.set_order([(bucket, "announce"), (bucket, "reduce"), (bucket, "gather")], session.step)
        print(rows, gathered, session.use(bucket), session.choice(bucket), session.rank, session.size, session.closed)
        return session.counters()


def traces(path: pathlib.Path) -> dict[str, Any]:
    with_writer = sparsesync.TraceWriter(path, [sparsesync.TensorSpec("t", 10, 2)], workers=1, steps=1, force=True)
    with_writer.write(0, 0, [np.array([1, 2])])
    with_writer.commit()
    loaded: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] = sparsesync.Trace(path).load(0, 0)
    print(loaded, sparsesync.plan(path, workers=[2], rate_bps=1e9), sparsesync.compare(path, schemes=["owned"]))
    return sparsesync.profile(path)


def errors() -> int:
    try:
        print(sparsesync.provenance()["commit"].upper(), [name for name, summary in sparsesync.schemes() if summary])
    except sparsesync.PeerError as error:
        return error.rank
    except (sparsesync.Error, ValueError):
        raise
    world = sparsesync.MpiWorld(deadline_s=1)
    end: sparsesync.Transport = world.join()
    return end.rank
"""
WRONG = {
    "sparsesync.compact(3)": "arg-type",
    "sparsesync.encode_indices([1, 2], 4)": "arg-type",
    "sparsesync.decode_indices('coo', 'text', 4, 1)": "arg-type",
    "sparsesync.Session(sparsesync.LocalNetwork(1))": "arg-type",
    "sparsesync.LocalNetwork(1).join('0')": "arg-type",
    "sparsesync.schemes()[0][2]": "misc",
    "sparsesync.InputError.rank": "attr-defined",
    "sparsesync.nothing": "attr-defined",
}


def test_a_typed_program_is_checked(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(SNIPPET)
    wrong = ["import sparsesync", *WRONG]
    (tmp_path / "wrong.py").write_text("\n".join(wrong) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "right.py", "wrong.py"]
    environment = {"MYPYPATH": str(package_folder().parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    told = {
        int(line): kind
        for line, kind in re.findall(r"^wrong\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    }
    assert told == {2 + place: kind for place, kind in enumerate(WRONG.values())}, done.stdout
    assert "right.py" not in done.stdout and ".pyi" not in done.stdout, done.stdout
