"""Tests scripts/check-documentation: it accepts a header that follows the template, and finds each deviation."""

import shutil
import subprocess

import pytest
from trees import ROOT, tree

pytestmark = pytest.mark.skipif(shutil.which("doxygen") is None, reason="doxygen is not installed")

HEADER = """\
namespace sparsesync {

/// Where work runs.
class Context {
 public:
  explicit Context(int number);
  int number() const;

 private:
  void forget();
  struct Hidden {};
};

/// Adds up.
/// @param count  how many, at least 1
void add(const Context& context, int count);

}  // namespace sparsesync
"""


def check(root, text):
    tree(root, {f"{folder}/empty.h": "" for folder in ("include", "schemes", "engine", "analysis")})
    documents = {f"docs/{name}": (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("Doxyfile", "namespaces.h")}
    tree(root, documents | {"kernels/a.h": text})
    program = ROOT / "scripts/check-documentation"
    done = subprocess.run([program, root], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_good_header(tmp_path):
    assert check(tmp_path, HEADER)[0] == 0
    assert (tmp_path / "build/documentation/html/index.html").is_file()


@pytest.mark.parametrize(
    ("was", "becomes", "fault"),
    [
        ("/// Where work runs.\n", "", "kernels/a.h:3: warning: Compound sparsesync::Context is not documented"),
        ("  int number() const;", "  int next(int by) const;", "kernels/a.h:7: warning: Member next(int by) const (function)"),
        ("/// Adds up.\n/// @param count  how many, at least 1\n", "", "Member add(const Context &context, int count) (function)"),
        ("@param count", "@param number", "argument 'number' of command @param is not found"),
        ("Adds up.", "Adds up @nonsense.", "Found unknown command '@nonsense'"),
        (HEADER, "", "no class was found"),
    ],
)
def test_finds_a_fault(tmp_path, was, becomes, fault):
    assert was in HEADER
    status, output = check(tmp_path, HEADER.replace(was, becomes))
    assert status == 1
    assert fault in output
