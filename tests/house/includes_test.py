"""scripts/check-includes: our headers include each other in no circle, and nothing includes what it does not use."""

import pytest
from trees import ROOT, check, expect_good, tree

SCRIPT = "check-includes"
EVERYTHING = """#pragma once
namespace sparsesync {
#define SPARSESYNC_TWICE(x) \\
  ((x) + (x))
inline constexpr int kFirst = 1;
enum class Code : unsigned char { coo, bitmap = 2 };
template <typename T, typename U>
class Shelf final : public Board<T> {
 public:
  Shelf() { int local = 0; use(local); }
  Shelf take(int of, int and_by) const { return inner.call(of); }
  struct Plank { int length = 0; };
 private:
  T size_;
};
template <>
struct Trait<int> {};
struct Point {
  int x = 0, y = 0;
  int size() const;
};
class Elsewhere;
using Places = std::vector<Point>;
namespace cpu {
/// Not \\"declared\\": in_a_comment(), and neither "in_a_string()".
std::pair<int, Point> sum_of(const Places& all, int (*visit)(int argument) = nullptr);
}  // namespace cpu
inline constexpr Operation sum_of{cpu::sum_of};
}  // namespace sparsesync
"""
GOOD = {
    "kernels/everything.h": EVERYTHING,
    "kernels/list.h": '// A comment.\n#pragma once\n#include "kernels/everything.h"\n',
    "kernels/export.h": '#pragma once\n#include "kernels/everything.h"  // IWYU pragma: export\nint g();\n',
    "kernels/own.h": "int not_said_again();\n",
    "kernels/cpu/own.cpp": '#include "kernels/own.h"\nint other;\n',
    "tests/kept_test.cpp": '#include "kernels/own.h"  // IWYU pragma: keep\nint other;\n',
}


def user(text, header="everything"):
    """Our tree with a file that includes a header in its second line."""
    return GOOD | {"schemes/user.h": f'#pragma once\n#include "kernels/{header}.h"\n{text}\n'}


def test_our_tree():
    expect_good(SCRIPT, ROOT)


def test_a_good_tree(tmp_path):
    assert "4 includes of ours in 6 sources are used" in expect_good(SCRIPT, tree(tmp_path, GOOD))


@pytest.mark.parametrize(
    "text",
    [
        "int a = SPARSESYNC_TWICE(2);",
        "int a = kFirst;",
        "auto a = Code{};",
        "auto a = coo;",
        "auto a = bitmap;",
        "Shelf<int, int> a;",
        "Trait<int> a;",
        "Point* a = nullptr;",
        "void f(const Places& a);",
        "auto a = sum_of(b, c);",
        "int a = b.y;",
        "int a = b->length;",
        "auto a = b . take(1, 2);",
        "#define SPARSESYNC_A kFirst",
    ],
)
@pytest.mark.parametrize("header", ["everything", "list", "export"])
def test_a_name_that_is_used(tmp_path, header, text):
    expect_good(SCRIPT, tree(tmp_path, user(text, header)))


@pytest.mark.parametrize(
    "text",
    [
        "int a;",
        "// kFirst\nint a;",
        "/* Point */ int a;",
        'auto a = "Point";',
        "Elsewhere* a = nullptr;",  # declared forward
        "int x;",  # a member's name, but not a member
        "auto a = b.size();",  # a member of every container
        "int a = T + U;",  # parameters of a template
        "int of, and_by, argument, local;",
        "int in_a_comment(), in_a_string();",
        "namespace sparsesync::cpu {}",
        "int a = b.local;",
    ],
)
def test_finds_a_header_that_is_not_used(tmp_path, text):
    status, output = check(SCRIPT, tree(tmp_path, user(text)))
    assert status == 1
    assert output.splitlines() == ["schemes/user.h:2: uses no name of kernels/everything.h"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernels/cpu/more.cpp", '#include "kernels/own.h"\nint other;\n'),  # another's header
        ("kernels/cpu/own.h", '#include "kernels/own.h"\nint other;\n'),  # a header has none of its own
        ("tests/kept_test.cpp", '#include "kernels/own.h"  // pragma: keep\nint other;\n'),
    ],
)
def test_finds_what_nothing_excuses(tmp_path, name, text):
    status, output = check(SCRIPT, tree(tmp_path, GOOD | {name: text}))
    assert status == 1
    assert output.splitlines() == [f"{name}:1: uses no name of kernels/own.h"]


@pytest.mark.parametrize(
    "files",
    [
        {"kernels/a.h": '#include "kernels/a.h"\n'},
        {"kernels/a.h": '#include "kernels/e.h"\n', "kernels/e.h": '#include "a.h"\n'},
        {
            "kernels/a.h": '#include "kernels/e.h"\n',
            "kernels/e.h": '#include "kernels/f.h"\n',
            "kernels/f.h": '#include "kernels/a.h"\n',
        },
    ],
    ids=["itself", "two", "three"],
)
def test_finds_a_cycle(tmp_path, files):
    status, output = check(SCRIPT, tree(tmp_path, GOOD | files))
    assert status == 1
    assert "a cycle of includes: " in output
    assert output.count("cycle") == 1


def test_an_empty_tree_is_not_a_success(tmp_path):
    status, output = check(SCRIPT, tmp_path)
    assert status == 1
    assert "nothing was checked" in output
