// Reads and writes NETWORK.json, the measured costs of a network and its hosts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/network.h"

namespace sparsesync {

/// A 95% confidence interval.
struct Interval {
  double low = 0;
  double high = 0;
};

/// The fitted α-β model of a link: a message takes `latency_s + bytes · 8 / rate_bps` seconds.
struct FittedLink {
  double latency_s = 0;  ///< seconds per message
  double rate_bps = 0;   ///< bits/s
  Interval latency_ci;   ///< interval of `latency_s`
  Interval rate_ci;      ///< interval of `rate_bps`
};

/// Holds the measured links and host costs. At least one link is known.
/// @code
/// SessionOptions options;
/// options.network = read_network("NETWORK.json").network();
/// @endcode
struct NetworkFile {
  std::optional<FittedLink> inter;  ///< link between workers of different nodes
  std::optional<FittedLink> intra;  ///< link between workers of one node
  /// CPU time per unit of work.
  HostCosts host;
  /// The link between nodes while all workers send to all others. Counts the bytes that one worker
  /// receives. Nothing if not measured, or if there are only two workers.
  std::optional<FittedLink> inter_loaded = std::nullopt;
  /// The link within a node, under the same load.
  std::optional<FittedLink> intra_loaded = std::nullopt;

  /// Returns the model of one link and its hosts. Its latency is that of a single message. Its rate
  /// is the rate under load if known, because schemes send to all workers at once.
  /// @param between_nodes  selects the link between nodes; false selects the link within a node. If
  ///     the selected link is unknown, the other link is used
  /// @pre at least one link is known
  Network network(bool between_nodes = true) const;
};

/// Returns the text of the file. Its format:
/// @code
/// {"links": {"inter": {"latency_s", "rate_bps", "ci": [[low, high], [low, high]],
///                      "loaded": {"latency_s", "rate_bps", "ci"} or null} or null,
///            "intra": the same or null},
///  "host": {"encode_s_per_byte", "aggregate_s_per_byte", and the other members of HostCosts},
///  "provenance": {...}}
/// @endcode
/// `ci` holds the intervals of the latency and of the rate, in this order.
/// @param network     the links and host costs
/// @param provenance  pairs of a key and its value, such as the date and the command
std::string network_json(const NetworkFile& network,
                         const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads the text of network_json() from a file. Unknown keys are ignored. Missing host costs are
/// 0.
/// @throws InputError if the file cannot be read, or if a key is missing or invalid; the message
///     names the key
NetworkFile read_network(const std::filesystem::path& path);

}  // namespace sparsesync
