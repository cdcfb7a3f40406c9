// NETWORK.json: what was measured of a network and of its hosts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/calibrate.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// Links and hosts as they were found. One link at least is known.
struct NetworkFile {
  std::optional<FittedLink> inter;  // between workers of different nodes
  std::optional<FittedLink> intra;  // between workers of one node
  HostCosts host;

  /// Its links as a model: the one between nodes where it is known and asked for, else the other.
  Network network(bool between_nodes = true) const;
};

/// The text of the file: {"links": {"inter": {"latency_s", "rate_bps", "ci": [[low, high] of the
/// latency, [low, high] of the rate]} or null, "intra": the same}, "host": {"encode_s_per_byte",
/// "aggregate_s_per_byte", and the rest of HostCosts}, "provenance": {...}}.
std::string network_json(const NetworkFile& network,
                         const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads such a file; it is not trusted. What it says beyond the above is not looked at.
/// @throws InputError naming the file and what is missing or makes no sense in it
NetworkFile read_network(const std::filesystem::path& path);

}  // namespace sparsesync
