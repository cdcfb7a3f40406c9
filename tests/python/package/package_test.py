"""What tools read of the package: documentation, lists of names, types."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import types

import pytest
import sparsesync
from bindings_support import package_folder, python
from sparsesync import _native

BEYOND_24 = 2**24 + 3
BEYOND_31 = 2**31 + 5
BEYOND_32 = 2**32 + 7


# What tools read of the package


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
    """(name, its text, without the signature that stands at its beginning)"""
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
    # What is made without arguments has nothing to say of them.
    missing = [name for name, _, text in seen if len(text) < 10 and name != "SupportsDLPack.__init__"]
    assert missing == []


def test_documentation_has_shapes_and_units():
    units = {"_s": "second", "_bps": "bits", "_bytes": "bytes|budget|workspace"}
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
    """Reports need none of it."""
    done = python(
        "import sys, sparsesync; print([each for each in ('numpy', 'sparsesync._native') if each in sys.modules])"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_package_is_typed():
    assert (package_folder() / "py.typed").exists()


def stub():
    return ast.parse((package_folder() / "_native.pyi").read_text())


def names_in(body):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def test_the_stubs_name_every_public_name():
    top = set(names_in(stub().body))
    for name, value in public_objects():
        if name in vars(_native):
            assert name in top, name
        else:
            module = importlib.import_module(value.__module__)
            assert module.__file__.endswith(".py"), f"{name} is typed where it is defined"
    classes = {node.name: set(names_in(node.body)) for node in stub().body if isinstance(node, ast.ClassDef)}
    for name, value in vars(_native).items():
        if inspect.isclass(value) and value.__module__ == "sparsesync._native":
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
