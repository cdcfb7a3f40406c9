// Parts that all commands share: options, and the output of JSON and text.
#pragma once

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/support/output_file.h"
#include "kernels/base/dtype.h"
#include "schemes/cost.h"
#include "sparsesync/network_file.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {

/// @{

/// Adds its command to the program.
/// A command does its work in its CLI11 callback and reports errors by throwing: InputError ends
/// the program with 2, anything else with 1.
void add_trace_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);
void add_profile_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_simulate_command(CLI::App& app);
void add_info_command(CLI::App& app);
/// @}

/// @{

/// Adds an option whose value is a number in [minimum, maximum], has a unit (units.h), or is a
/// dtype. A name is such as "--workers". A value keeps its default if the option is not given, and
/// outlives the command. InputError is thrown, later, if the program is called with something else.
CLI::Option* add_count(CLI::App& command, const std::string& name, std::int64_t& value,
                       std::int64_t minimum, std::int64_t maximum, const std::string& help);
CLI::Option* add_count(CLI::App& command, const std::string& name, int& value, int minimum,
                       int maximum, const std::string& help);
CLI::Option* add_number(CLI::App& command, const std::string& name, double& value, double minimum,
                        double maximum, const std::string& help);
CLI::Option* add_rate(CLI::App& command, const std::string& name, double& bits_per_second,
                      const std::string& help);
CLI::Option* add_bytes(CLI::App& command, const std::string& name, std::int64_t& bytes,
                       const std::string& help);
CLI::Option* add_seconds(CLI::App& command, const std::string& name, double& seconds,
                         const std::string& help);
CLI::Option* add_dtype(CLI::App& command, const std::string& name, DType& dtype,
                       const std::string& help);
/// @}
/// The parts of an option's list: what is between commas, none of it empty.
/// @param option  its name, for the error
/// @throws InputError
std::vector<std::string> between_commas(std::string_view option, const std::string& list);

/// `--json FILE`, '-' for standard output.
CLI::Option* add_json(CLI::App& command, std::string& target);

/// How a command's workers are connected, as its options say.
struct TransportArguments {
  std::string transport = "local";  // or mpi, or nccl
  double rate_bps = 0;              // of each local link; 0: unshaped
  double latency_s = 0;
  double deadline_s = 60;  // of each wait for another worker

  bool is_local() const { return transport == "local"; }
  /// Whether workers are processes of an mpirun: with nccl where there is one.
  bool over_mpi() const;
  LocalLink link() const;
  std::chrono::milliseconds deadline() const;
  /// @throws InputError if there is no such transport, or it has no links to shape
  void check() const;
};
/// `--transport local|mpi`.
CLI::Option* add_transport(CLI::App& command, TransportArguments& given);

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

/// Where a command's JSON goes. Made before the work begins, so that a path that cannot be written
/// to is said at once.
class JsonOutput {
 public:
  /// @param target  a file, which is replaced; '-' for standard output; empty for none
  /// @throws InputError, IoError if the file cannot be written to
  explicit JsonOutput(std::string target);

  /// Where tables for people go: standard output, or standard error if the JSON takes that.
  std::FILE* tables() const { return target_ == "-" ? stderr : stdout; }
  /// Writes a line end after it too; does nothing if no JSON is wanted. Once at most.
  /// @param json  the whole text
  /// @throws IoError if that fails
  void write(std::string_view json);

 private:
  std::string target_;
  std::unique_ptr<OutputFile> file_;
};

/// Prints a text for people, made printable but for its line ends, and flushes.
/// @throws IoError if the stream cannot be written to
void print(std::FILE* stream, std::string_view text);

/// The name that is nearest to another: the one with the fewest letters changed.
/// @return one of `known`; empty if none is near
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace sparsesync
