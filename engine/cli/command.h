// What all commands of the program share: how they are added, read their options and give out JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/output_file.h"
#include "kernels/dtype.h"

namespace sparsesync {

/// Each adds its command to the program. A command does its work in its CLI11 callback and reports
/// what is wrong by throwing: InputError ends the program with 2, anything else with 1.
void add_trace_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);
void add_info_command(CLI::App& app);

/// An option whose value is a whole number in [minimum, maximum]; `value` keeps its default if it
/// is not given.
/// @throws InputError, later, when the program is called with something else
CLI::Option* add_count(CLI::App& command, const std::string& name, std::int64_t& value,
                       std::int64_t minimum, std::int64_t maximum, const std::string& help);
CLI::Option* add_count(CLI::App& command, const std::string& name, int& value, int minimum,
                       int maximum, const std::string& help);
/// The same for numbers, units (units.h) and dtypes.
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
/// `--json FILE`, '-' for standard output.
CLI::Option* add_json(CLI::App& command, std::string& target);

/// Where a command's JSON goes. Made before the work begins, so that a path that cannot be written
/// to is said at once.
class JsonOutput {
 public:
  /// @param target  a file, which is replaced; '-' for standard output; empty for none
  /// @throws InputError, IoError
  explicit JsonOutput(std::string target);

  bool wanted() const { return !target_.empty(); }
  /// Where tables for people go: standard output, or standard error if the JSON takes that.
  std::FILE* tables() const { return target_ == "-" ? stderr : stdout; }
  /// Writes the whole text and a line end; does nothing if no JSON is wanted. Once at most.
  /// @throws IoError
  void write(std::string_view json);

 private:
  std::string target_;
  std::unique_ptr<OutputFile> file_;
};

/// Prints a text for people.
/// @throws IoError if the stream cannot be written to
void print(std::FILE* stream, std::string_view text);

/// Of `known`, the name nearest to `name` (the fewest letters changed), or empty if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace sparsesync
