// Names of schemes and provenance, for Python.
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

void bind_facts(nb::module_& module) {
  module.def("schemes", scheme_list,
             "The schemes that exist, by name: (name, what it does). 'auto' chooses among them.",
             nb::sig("def schemes() -> list[tuple[str, str]]"));
  module.def(
      "provenance",
      [] {
        nb::dict dict;
        for (const auto& [name, value] : provenance()) dict[name.c_str()] = value;
        return dict;
      },
      "Version, commit, compiler, processor, date: what a result needs to be measured again.",
      nb::sig("def provenance() -> dict[str, str]"));
}

}  // namespace sparsesync::python
