// Python bindings of scheme names and provenance.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "engine/support/json.h"
#include "python/bindings/bindings.h"
#include "sparsesync/schemes.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

nb::list scheme_list() {
  nb::list list;
  for (const SchemeInfo& scheme : schemes()) {
    list.append(nb::make_tuple(std::string(scheme.name), std::string(scheme.summary)));
  }
  return list;
}

}  // namespace

constexpr const char* kSchemes =
    R"doc(Lists the schemes, sorted by name. `'auto'` chooses among them.

Returns:
    Pairs of a name and a one-line summary.

Example:
    >>> import sparsesync
    >>> "balanced" in dict(sparsesync.schemes())
    True)doc";

constexpr const char* kProvenance = R"doc(Returns the facts that are needed to repeat a measurement.

Returns:
    Version, commit, compiler, build type, processor, cores, operating system and date.)doc";

void bind_facts(nb::module_& module) {
  module.def("schemes", scheme_list, kSchemes, nb::sig("def schemes() -> list[tuple[str, str]]"));
  module.def(
      "provenance",
      [] {
        nb::dict dict;
        for (const auto& [name, value] : provenance()) dict[name.c_str()] = value;
        return dict;
      },
      kProvenance, nb::sig("def provenance() -> dict[str, str]"));
}

}  // namespace sparsesync::python
