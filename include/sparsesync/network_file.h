// NETWORK.json: what was measured of a network and of its hosts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/network.h"

namespace sparsesync {

/// An interval that holds a number with 95% confidence.
struct Interval {
  double low = 0;
  double high = 0;
};

/// The α-β model of a link: bytes take latency_s + bytes · 8 / rate_bps.
struct FittedLink {
  double latency_s = 0;
  double rate_bps = 0;
  Interval latency_ci;
  Interval rate_ci;
};

/// Links and hosts as they were found. One link at least is known.
struct NetworkFile {
  std::optional<FittedLink> inter;  // between workers of different nodes
  std::optional<FittedLink> intra;  // between workers of one node
  HostCosts host;
  // The same while all workers send to all: bytes are what one worker receives. Nothing where they
  // were not measured, or two workers are all there are.
  std::optional<FittedLink> inter_loaded = std::nullopt;
  std::optional<FittedLink> intra_loaded = std::nullopt;

  /// One of its links, and its hosts, as a model: the latency is that of a message alone, the rate
  /// that under load where it is known, as schemes send to all at once.
  /// @param between_nodes  whether the link between nodes is asked for; where the one that is asked
  ///                       for is not known, the other one stands for it
  /// @pre one link at least is known
  Network network(bool between_nodes = true) const;
};

/// The text of the file: {"links": {"inter": {"latency_s", "rate_bps", "ci": [[low, high] of the
/// latency, [low, high] of the rate], "loaded": {the same three} or null} or null, "intra": alike},
/// "host": {"encode_s_per_byte", "aggregate_s_per_byte", and the rest of HostCosts},
/// "provenance": {...}}.
std::string network_json(const NetworkFile& network,
                         const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads such a file. What it says beyond the above is not looked at; costs of a host that it does
/// not have are 0.
/// @throws InputError if the file cannot be read; if something is missing or makes no sense: the
///                    text names it
NetworkFile read_network(const std::filesystem::path& path);

}  // namespace sparsesync
