"""The examples in the docstrings of the public modules: each runs, and each public class has one."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (some examples need torch)

# Examples that run only if the machine has a GPU and the build supports it.
NEED_A_GPU = {"sparsesync.Device", "sparsesync.nccl_over"}
# Modules for frameworks that may not be installed.
OPTIONAL = {"sparsesync.lightning": "lightning", "sparsesync.ray": "ray"}
# Documents mark output that varies, such as the text of an error, with "...".
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_modules():
    """Returns the modules of the package, by name. A module is private if a part of its name begins with an underscore."""
    found = {sparsesync.__name__: sparsesync}
    for each in pkgutil.walk_packages(sparsesync.__path__, "sparsesync."):
        if each.name in OPTIONAL and not importlib.util.find_spec(OPTIONAL[each.name]):
            continue
        if not any(part.startswith("_") for part in each.name.split(".")):
            found[each.name] = importlib.import_module(each.name)
    return found


def public_objects():
    """Returns the classes and functions that ``__all__`` of some module lists, by the names of the module and the object."""
    return {
        f"{name}.{listed}": getattr(module, listed)
        for name, module in public_modules().items()
        for listed in getattr(module, "__all__", ())
    }


def examples_of(thing, name):
    """Returns the docstrings with examples of an object and of its members, those of compiled classes included."""
    tests = doctest.DocTestFinder(exclude_empty=True).find(thing, name, module=False, globs={})
    return [each for each in tests if each.examples]


def failures_of(tests):
    """Runs examples, and returns a report of those that fail."""
    reports = []
    for each in tests:
        doctest.DocTestRunner(optionflags=OPTIONS).run(each, out=reports.append)
    return "".join(reports)


OBJECTS = public_objects()
CLASSES = {name: each for name, each in OBJECTS.items() if inspect.isclass(each)}
MODULES = public_modules()


def has_gpu():
    facts = sparsesync.device_facts()
    return bool(facts["compiled_in"]) and not facts["problem"]


@pytest.mark.parametrize("name", [name for name, each in OBJECTS.items() if examples_of(each, name)])
def test_an_example_runs(name, tmp_path, monkeypatch):
    if name in NEED_A_GPU and not has_gpu():
        pytest.skip("needs a GPU")
    monkeypatch.chdir(tmp_path)  # examples write files
    assert failures_of(examples_of(OBJECTS[name], name)) == ""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    public = tuple(f"{each.__module__}.{each.__qualname__}" for each in OBJECTS.values() if hasattr(each, "__qualname__"))
    tests = doctest.DocTestFinder().find(MODULES[name], name)
    assert failures_of(each for each in tests if not each.name.startswith(public)) == ""


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_an_example(name):
    assert any(each.name == name for each in examples_of(CLASSES[name], name)), f"{name}: no example in its docstring"


def test_the_modules_are_found():
    assert {"sparsesync", "sparsesync.torch", "sparsesync.analysis", "sparsesync.errors", "sparsesync.report"} <= {*public_modules()}
    compiled = [name for name, each in CLASSES.items() if each.__module__ in ("sparsesync._native", "sparsesync._analysis")]
    assert "sparsesync.Session" in compiled and "sparsesync.Trace" in compiled
    assert {"sparsesync.torch.DistributedDataParallel", "sparsesync.InputError"} <= {*CLASSES}
    assert {*OBJECTS} > NEED_A_GPU


class Broken:
    """A class whose example is wrong.

    Example:
        >>> 1 + 1
        3
    """

    def method(self):
        """Raises.

        >>> {}["missing"]
        1
        """


def test_a_broken_example_is_found():
    tests = examples_of(Broken, "Broken")
    assert [each.name for each in tests] == ["Broken", "Broken.method"]
    found = failures_of(tests)
    assert "Expected:\n    3\nGot:\n    2" in found
    assert "KeyError" in found


def test_members_of_compiled_classes_are_looked_into():
    found = doctest.DocTestFinder(exclude_empty=False).find(sparsesync.Session, "sparsesync.Session", module=False)
    documented = {each.name for each in found if each.docstring}
    assert {"sparsesync.Session", "sparsesync.Session.__init__", "sparsesync.Session.reduce", "sparsesync.Session.size"} <= documented


def test_a_class_without_an_example_is_found():
    class Silent:
        """A class without an example."""

        def method(self):
            """Has one, which does not count for the class.

            >>> 1 + 1
            2
            """

    names = [each.name for each in examples_of(Silent, "Silent")]
    assert names == ["Silent.method"]
