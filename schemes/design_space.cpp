#include "schemes/design_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "kernels/base/error.h"

namespace sparsesync {
namespace {

template <std::size_t kCount, typename Value>
constexpr std::string_view name_in(const std::array<std::string_view, kCount>& names, Value value) {
  return names[static_cast<std::size_t>(value)];
}

}  // namespace

std::string_view name_of(Communication communication) {
  return name_in<3>({"ring", "hierarchy", "point_to_point"}, communication);
}

std::string_view name_of(Aggregation aggregation) {
  return name_in<2>({"incremental", "one_shot"}, aggregation);
}

std::string_view name_of(Partition partition) {
  return name_in<2>({"centralization", "parallelism"}, partition);
}

std::string_view name_of(Balance balance) {
  return name_in<3>({"balanced", "imbalanced", "-"}, balance);
}

std::string_view name_of(Format format) {
  return name_in<8>(
      {"dense", "COO", "COO, then dense", "non-zero blocks", "COO push, hash-bitmap pull",
       "cheapest of COO, Elias-Fano and bitmap", "index sets first, then values alone",
       "dense in a node, sparse between nodes"},
      format);
}

Communication communication_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Communication communication : kCommunications) {
    if (name_of(communication) == name) return communication;
    names.push_back(name_of(communication));
  }
  throw InputError(
      fmt::format("unknown pattern '{}': use one of {}", name, fmt::join(names, ", ")));
}

}  // namespace sparsesync
