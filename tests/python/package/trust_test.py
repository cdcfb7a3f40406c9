"""Data from other workers is never unpickled: otherwise a process that can join a group could run programs on all its workers."""
# ctest: LABELS quick

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "python"
# Modules that execute what they read, and calls that unpickle: torch's collectives of objects, and functions for files.
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {
    *("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list", "send_object_list", "recv_object_list"),
    *("eval", "exec", "_tensor_to_object", "_object_to_tensor", "Unpickler", "read_pickle", "rpc_sync", "rpc_async"),
}


def unpickling_in(source: str) -> list[str]:
    """Returns the names in a source by which it may unpickle or execute its input."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0]
            found += [f"{module}.{each.name}" for each in node.names if module in MODULES or each.name in CALLS]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            owner = node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
            pickles = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
            is_load = (owner, name) == ("torch", "load") and pickles.get("weights_only") is not True
            is_numpys = owner in ("np", "numpy") and name == "load" and pickles.get("allow_pickle", False) is not False
            if name in CALLS or is_load or is_numpys:
                found.append(f"{owner}.{name}" if owner else name)
    return found


SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))


def test_the_package_unpickles_nothing() -> None:
    assert len(SOURCES) > 30
    found = {str(path.relative_to(PACKAGE)): unpickling_in(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import torch, _pickle",
        "from pickle import loads",
        "from torch.distributed import all_gather_object",
        "dist.all_gather_object(machines, name)",
        "torch.distributed.broadcast_object_list(given)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_unpickling_is_found(source: str) -> None:
    assert unpickling_in(source)


def test_other_code_is_not_reported() -> None:
    assert unpickling_in("torch.load(path, weights_only=True); json.loads(text); np.load(path); module.eval_steps()") == []
