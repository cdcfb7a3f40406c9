"""scripts/lint: sources that are analyzed together are found good, and bad, as each alone is."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from trees import ROOT, tree

CONFIGURATION = "Checks: '-*,modernize-use-using,readability-duplicate-include'\nWarningsAsErrors: '*'\n"
GOOD = """#include <cstdint>

namespace {{
{more}
}}  // namespace

std::int32_t {name}() {{ return 1; }}
"""


@pytest.fixture
def lint(tmp_path):
    """Runs our scripts/lint on sources, {name: text}, of a tree of their own: (exit status, output)."""
    if not shutil.which("clang-tidy-14") or not shutil.which("shellcheck"):
        pytest.skip("clang-tidy-14 or shellcheck is not installed; run scripts/setup")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(sources, checkout="checkout"):
        root = tmp_path / checkout
        (root / "scripts").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "scripts/lint", root / "scripts")
        commands = [{"directory": str(root), "file": name, "command": f"c++ -std=c++20 -o x.o -c {root / name}"} for name in sources]
        more = {".clang-tidy": CONFIGURATION, "build/dev/compile_commands.json": json.dumps(commands)}
        tree(root, sources | more)
        program = [sys.executable, str(root / "scripts/lint")]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run


def good(name, more="constexpr int kOne = 1;"):
    return GOOD.format(name=name, more=more)


def sources():
    return {f"kernels/{name}.cpp": good(name, f"constexpr int k{name} = 1;") for name in "abcd"}


def test_what_is_good_is_analyzed_once(lint):
    status, output = lint(sources())
    assert status == 0 and "clang-tidy: 4 files, 0 of them known to be good, 0 bad" in output
    assert "kernels/a.cpp kernels/b.cpp kernels/c.cpp kernels/d.cpp" in output, "not together"
    status, output = lint(sources() | {"kernels/c.cpp": good("c", "constexpr int kTwo = 2;")})
    assert status == 0 and "clang-tidy: 4 files, 3 of them known to be good, 0 bad" in output


def test_another_checkout_of_the_same_sources_is_known_to_be_good(lint):
    assert lint(sources())[0] == 0
    status, output = lint(sources() | {"kernels/c.cpp": good("c", "typedef int Number;")}, "another")
    assert status == 1 and "clang-tidy: 4 files, 3 of them known to be good, 1 bad" in output


def test_one_that_is_bad_among_others_is_named_with_its_line(lint):
    status, output = lint(sources() | {"kernels/c.cpp": good("c", "typedef int Number;")})
    assert status == 1
    assert "kernels/c.cpp:4:1: error" in output and "[modernize-use-using" in output
    assert "lint: these files are bad:\n  kernels/c.cpp\n" in output
    assert "4 files, 0 of them known to be good, 1 bad" in output
    assert "together.cpp" not in output


def test_what_is_included_twice_by_one_is_found(lint):
    status, output = lint(sources() | {"kernels/b.cpp": "#include <cstdint>\n" + good("b")})
    assert status == 1 and "readability-duplicate-include" in output and "  kernels/b.cpp\n" in output


@pytest.mark.parametrize("more", ["constexpr int kSame = 1;", "}\nstatic int same() { return 1; }\nint use(int = same());\nnamespace {"])
def test_names_of_their_own_may_be_the_same(lint, more):
    status, output = lint({name: good(name[-5], more) for name in sources()})
    assert status == 0, output
    assert "4 files, 0 of them known to be good, 0 bad" in output


def test_what_does_not_compile_is_bad(lint):
    status, output = lint(sources() | {"kernels/a.cpp": "int f( {\n"})
    assert status == 1 and "lint: these files are bad:\n  kernels/a.cpp\n" in output
