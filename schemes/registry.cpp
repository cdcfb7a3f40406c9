#include "schemes/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/error.h"

namespace sparsesync {

namespace {

std::vector<SchemeEntry>& registry() {
  static std::vector<SchemeEntry> entries;
  return entries;
}

}  // namespace

std::string_view name_of(SchemeOption option) {
  constexpr std::array<std::string_view, kSchemeOptions.size()> kNames{
      "pattern", "block", "workers-per-node", "between-nodes", "announce"};
  return kNames[static_cast<std::size_t>(option)];
}

bool heeds(const SchemeEntry& entry, SchemeOption option, const SchemeOptions& options) {
  if (entry.heeds.has(option)) return true;
  // The scheme between nodes does not announce.
  if (option == SchemeOption::announce || !entry.heeds.has(SchemeOption::between_nodes)) {
    return false;
  }
  return scheme_named(options.between_nodes).heeds.has(option);
}

SchemeRegistration::SchemeRegistration(const SchemeEntry& entry) {
  std::vector<SchemeEntry>& entries = registry();
  const auto place = std::find_if(entries.begin(), entries.end(), [&](const SchemeEntry& other) {
    return other.name >= entry.name;
  });
  if (place != entries.end() && place->name == entry.name) {
    throw ContractError(fmt::format("two schemes named '{}'", entry.name));
  }
  entries.insert(place, entry);
}

std::vector<SchemeEntry> all_schemes() {
  return registry();
}

SchemeEntry scheme_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const SchemeEntry& entry : registry()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw InputError(fmt::format("unknown scheme '{}': use one of {}", name, fmt::join(names, ", ")));
}

std::vector<SchemeInfo> schemes() {
  std::vector<SchemeInfo> found;
  for (const SchemeEntry& entry : all_schemes()) found.push_back({entry.name, entry.summary});
  return found;
}

std::string SchemeVariant::label() const {
  return pattern ? fmt::format("{} ({})", scheme, name_of(*pattern)) : scheme;
}

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
