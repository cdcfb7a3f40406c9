// Parts shared by all commands: options, and the output of JSON and text.
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
#include "sparsesync/transports/chunks.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {

class Workers;

/// @{

/// Adds a command to the program.
/// A command does its work in its CLI11 callback and reports errors by throwing. InputError ends
/// the program with status 2, every other exception with status 1.
void add_trace_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);
void add_profile_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_simulate_command(CLI::App& app);
void add_launch_command(CLI::App& app);
void add_info_command(CLI::App& app);
/// @}

/// @{

/// Adds an option whose value is a number in [minimum, maximum], a quantity with a unit (units.h),
/// or a dtype. `name` is the flag, such as "--workers". The referenced value must outlive the
/// command; it keeps its default if the option is not given. Parsing throws InputError for an
/// invalid value.
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
/// Splits a comma-separated list.
/// @param option  the option's name, for the error message
/// @throws InputError if an item is empty
std::vector<std::string> between_commas(std::string_view option, const std::string& list);

/// Adds `--json FILE`; '-' is standard output.
CLI::Option* add_json(CLI::App& command, std::string& target);

/// The options that select how a command's workers are connected.
struct TransportArguments {
  std::string transport = "local";  // local, mpi, ucx or nccl
  double rate_bps = 0;              // bits/s of each local link; 0: not limited
  double latency_s = 0;
  double deadline_s = 60;  // timeout of each wait for another worker

  bool is_local() const { return transport == "local"; }
  /// Returns whether workers are processes: always with mpi and ucx, and with nccl if mpirun
  /// started this process.
  bool has_processes() const;
  /// Connects the processes.
  /// @pre has_processes()
  /// @throws what workers_over_mpi() and workers_over_ucx() throw
  std::unique_ptr<Workers> processes(Chunks chunks) const;
  LocalLink link() const;
  std::chrono::milliseconds deadline() const;
  /// @throws InputError if the transport is unknown, or cannot shape its links as requested
  void check() const;
};

/// Parses numbers of workers. "2..1024" is both ends and the powers of two between them; "8,12,64"
/// is a list. The result increases and has no duplicates.
/// @param minimum  smallest number of workers to accept; 1 or more
/// @throws InputError, also for a number above kMaxTraceWorkers
std::vector<int> workers_from(const std::string& text, int minimum);

/// The options that describe a network.
struct NetworkArguments {
  std::string file;  // network file written by calibrate
  double rate_bps = 0;
  double latency_s = 0;

  /// Returns whether any of the options is given.
  bool is_given() const { return !file.empty() || rate_bps > 0 || latency_s > 0; }
};
/// Adds `--rate`, `--latency` and `--network NETWORK.json`.
void add_network(CLI::App& command, NetworkArguments& given);

/// The network described by the options.
struct GivenNetwork {
  Network network;                      // link between nodes, or the only link
  std::optional<NetworkFile> measured;  // contents of the network file, if one is given
  bool is_inside_a_node = false;        // `network` is a node's inner link: the file has no other
};
/// Combines the options and the network file. `--rate` and `--latency` override the file.
/// @param command  the command's name, for the error message
/// @throws InputError if no option describes the network, or the file is invalid
GivenNetwork network_from(const std::string& command, const NetworkArguments& given);

/// The destination of a command's JSON. Construct it before the work begins, so that a path that
/// cannot be written is reported at once.
class JsonOutput {
 public:
  /// @param target  a file, which is replaced; '-' for standard output; empty for no JSON
  /// @throws InputError, IoError if the file cannot be written
  explicit JsonOutput(std::string target);

  /// Returns the stream for tables: standard output, or standard error if the JSON goes to
  /// standard output.
  std::FILE* tables() const { return target_ == "-" ? stderr : stdout; }
  /// Writes `json` and a line end; does nothing without a target. Call it at most once.
  /// @param json  the complete text
  /// @throws IoError if writing fails
  void write(std::string_view json);

 private:
  std::string target_;
  std::unique_ptr<OutputFile> file_;
};

/// Prints a text and flushes. Non-printable characters other than line ends are escaped.
/// @throws IoError if the stream cannot be written
void print(std::FILE* stream, std::string_view text);

/// Returns the known name with the smallest edit distance to `name`.
/// @return one of `known`; empty if none is near
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace sparsesync
