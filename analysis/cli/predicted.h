// What commands that predict have in common: numbers of workers, and the network between them.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "schemes/cost.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// "2..1024" is its powers of two; "8,12,64" these. Increasing.
/// @param minimum  1 or more
/// @throws InputError, also for more than kMaxTraceWorkers
std::vector<int> workers_from(const std::string& text, int minimum);

/// The options that say what a network is like.
struct NetworkArguments {
  std::string file;  // what calibrate has measured
  double rate_bps = 0;
  double latency_s = 0;

  /// Whether any of them is given.
  bool is_given() const { return !file.empty() || rate_bps > 0 || latency_s > 0; }
};
/// `--rate`, `--latency` and `--network NETWORK.json`.
void add_network(CLI::App& command, NetworkArguments& given);

/// The network that was asked for, as far as it is known.
struct GivenNetwork {
  Network network;                      // between nodes, or the only one
  std::optional<NetworkFile> measured;  // of the file, where one is given
  bool is_inside_a_node = false;        // no other is known
};
/// @param command  its name, for the message
/// @throws InputError if nothing is known, or the file is not what it should be
GivenNetwork network_from(const std::string& command, const NetworkArguments& given);

}  // namespace sparsesync
