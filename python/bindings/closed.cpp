#include "python/bindings/closed.h"

#include <fmt/format.h>

namespace sparsesync::python {

void throw_closed(std::string_view what) {
  throw ClosedError(fmt::format("the {} is closed", what));
}

void Process::expect(std::string_view what) const {
  if (!forked()) return;
  throw ClosedError(fmt::format(
      "this process was forked from {}, which owns the {}: make a new one here", id_, what));
}

}  // namespace sparsesync::python
