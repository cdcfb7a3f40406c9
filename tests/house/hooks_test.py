""".pre-commit-config.yaml: every hook is local, and starts a script of ours that is there and can be run."""

import os
import re

import pytest
from trees import ROOT, tree

CONFIGURATION = ".pre-commit-config.yaml"
HOOK = re.compile(r"^ *- id: *(\S+)$(.*?)(?=^ *- |\Z)", re.MULTILINE | re.DOTALL)
OUR_CHECKS = {"scripts/format", "scripts/check-floors", "scripts/check-includes", "scripts/check-registered"}


def value_of(text, key):
    """Of `key: value`; nothing if there is no such line. As much of YAML as our file needs."""
    found = re.search(rf"^ *(?:- )?{key}: *(.*?) *$", text, re.MULTILINE)
    return found.group(1) if found else None


def hooks_of(root):
    """(what is wrong, the scripts that hooks start)"""
    text = (root / CONFIGURATION).read_text(encoding="utf-8")
    faults = [f"{repo} is not local" for repo in re.findall(r"^ *- repo: *(\S+)", text, re.MULTILINE) if repo != "local"]
    entries = []
    for hook, body in HOOK.findall(text):
        entry = value_of(body, "entry")
        if value_of(body, "language") != "script":
            faults.append(f"{hook}: its language is not script")
        if entry is None or not (root / entry).is_file():
            faults.append(f"{hook}: {entry} does not exist")
        elif not os.access(root / entry, os.X_OK):
            faults.append(f"{hook}: {entry} is not executable")
        entries.append(entry)
    return faults, entries


def test_our_hooks():
    faults, entries = hooks_of(ROOT)
    assert faults == []
    assert sorted(entries) == sorted(OUR_CHECKS)


GOOD = "repos:\n  - repo: local\n    hooks:\n      - id: a\n        language: script\n        entry: scripts/a\n"


def with_script(root, text, mode=0o755):
    tree(root, {CONFIGURATION: text, "scripts/a": ""})
    (root / "scripts/a").chmod(mode)
    return root


def test_good_hooks(tmp_path):
    two = GOOD + "      - id: b\n        entry: scripts/a\n        language: script\n"
    assert hooks_of(with_script(tmp_path, two)) == ([], ["scripts/a", "scripts/a"])


@pytest.mark.parametrize(
    ("was", "becomes", "mode", "fault"),
    [
        ("scripts/a", "scripts/gone", 0o755, "a: scripts/gone does not exist"),
        ("scripts/a", "scripts", 0o755, "a: scripts does not exist"),
        ("        entry: scripts/a\n", "", 0o755, "a: None does not exist"),
        ("", "", 0o644, "a: scripts/a is not executable"),
        ("language: script", "language: python", 0o755, "a: its language is not script"),
        ("repo: local", "repo: https://example.org/hooks", 0o755, "https://example.org/hooks is not local"),
    ],
)
def test_finds_a_wrong_hook(tmp_path, was, becomes, mode, fault):
    faults, _ = hooks_of(with_script(tmp_path, GOOD.replace(was, becomes), mode))
    assert faults == [fault]
