#include "schemes/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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
  // Nothing is announced between nodes.
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

std::string Way::label() const {
  return pattern ? fmt::format("{} ({})", scheme, name_of(*pattern)) : scheme;
}

}  // namespace sparsesync
