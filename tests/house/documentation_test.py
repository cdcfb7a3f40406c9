"""scripts/check-documentation: a header that follows the template is good, and each way of leaving it is found."""

import shutil

import pytest
from trees import ROOT, check, expect_good, tree

SCRIPT = "check-documentation"

pytestmark = pytest.mark.skipif(shutil.which("doxygen") is None, reason="no doxygen here")

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

/// Adds up. Does not synchronize the stream.
/// @param count  how many, at least 1
void add(const Context& context, int count);

}  // namespace sparsesync
"""


def headers(root, text):
    files = {"kernels/a.h": text, "docs/Doxyfile": (ROOT / "docs/Doxyfile").read_text(encoding="utf-8")}
    return tree(root, files | {f"{floor}/empty.h": "" for floor in ("schemes", "analysis", "engine")})


def test_a_good_header(tmp_path):
    assert "0 faults" in expect_good(SCRIPT, headers(tmp_path, HEADER))
    assert (tmp_path / "build/documentation/html/index.html").is_file()


@pytest.mark.parametrize(
    ("was", "becomes", "fault"),
    [
        ("/// Where work runs.\n", "", "kernels/a.h:3: sparsesync::Context has no comment"),
        ("  int number() const;", "  int next(int by) const;", "kernels/a.h:7: sparsesync::Context::next() has no comment"),
        ("/// Adds up. Does not synchronize the stream.\n/// @param count  how many, at least 1\n", "", "add() has no comment"),
        (" Does not synchronize the stream.", "", "add() does not say whether it synchronizes the stream"),
        ("@param count", "@param number", "argument 'number' of command @param is not found"),
        ("Adds up.", "Adds up @nonsense.", "Found unknown command '@nonsense'"),
    ],
)
def test_finds_a_fault(tmp_path, was, becomes, fault):
    assert was in HEADER
    status, output = check(SCRIPT, headers(tmp_path, HEADER.replace(was, becomes)))
    assert status == 1
    assert fault in output


def test_nothing_to_read_is_a_fault(tmp_path):
    status, _ = check(SCRIPT, headers(tmp_path, ""))
    assert status == 1
