// Parts shared by all commands: options, and the output of JSON and text.
#include "analysis/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "analysis/cli/units.h"
#include "analysis/launcher.h"
#include "analysis/plan/scale_plan.h"
#include "analysis/trace/trace.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

/// Adds an option whose text is parsed by a function.
/// @param parse  called with the option's name and text; returns the value
template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, const std::string& type,
                        Value& value, const std::string& help, Parse parse) {
  const std::function<void(const std::string&)> read = [&value, name,
                                                        parse](const std::string& text) {
    value = static_cast<Value>(parse(name, text));
  };
  return command.add_option_function<std::string>(name, read, help)->type_name(type);
}

/// @throws IoError
void write_all(std::FILE* stream, std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (!written || std::fflush(stream) != 0) {
    throw IoError(fmt::format("cannot write to standard {}: {}",
                              stream == stderr ? "error" : "output",
                              std::generic_category().message(errno)));
  }
}

}  // namespace

CLI::Option* add_count(CLI::App& command, const std::string& name, std::int64_t& value,
                       std::int64_t minimum, std::int64_t maximum, const std::string& help) {
  return add_parsed(command, name, "N", value, help,
                    [=](const auto&... words) { return parse_count(words..., minimum, maximum); });
}

CLI::Option* add_count(CLI::App& command, const std::string& name, int& value, int minimum,
                       int maximum, const std::string& help) {
  return add_parsed(command, name, "N", value, help,
                    [=](const auto&... words) { return parse_count(words..., minimum, maximum); });
}

CLI::Option* add_number(CLI::App& command, const std::string& name, double& value, double minimum,
                        double maximum, const std::string& help) {
  return add_parsed(command, name, "X", value, help,
                    [=](const auto&... words) { return parse_number(words..., minimum, maximum); });
}

CLI::Option* add_rate(CLI::App& command, const std::string& name, double& bits_per_second,
                      const std::string& help) {
  return add_parsed(command, name, "RATE", bits_per_second, help, parse_rate);
}

CLI::Option* add_bytes(CLI::App& command, const std::string& name, std::int64_t& bytes,
                       const std::string& help) {
  return add_parsed(command, name, "SIZE", bytes, help, parse_bytes);
}

CLI::Option* add_seconds(CLI::App& command, const std::string& name, double& seconds,
                         const std::string& help) {
  return add_parsed(command, name, "TIME", seconds, help, parse_seconds);
}

CLI::Option* add_dtype(CLI::App& command, const std::string& name, DType& dtype,
                       const std::string& help) {
  return add_parsed(command, name, dtype_names("|"), dtype, help,
                    [](const std::string& option, const std::string& text) {
                      try {
                        return dtype_named(text);
                      } catch (const InputError& error) {
                        throw InputError(fmt::format("{}: {}", option, error.what()));
                      }
                    });
}

std::vector<std::string> between_commas(std::string_view option, const std::string& list) {
  std::vector<std::string> parts{""};
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (const std::string& part : parts) {
    if (part.empty()) {
      throw InputError(fmt::format(
          "{} '{}': an item is empty: write one or more items, separated by commas", option, list));
    }
  }
  return parts;
}

CLI::Option* add_json(CLI::App& command, std::string& target) {
  return command
      .add_option("--json", target,
                  "Write the result as JSON to FILE; '-' is standard output, and tables then go to "
                  "standard error")
      ->type_name("FILE");
}

std::vector<int> workers_from(const std::string& text, int minimum) {
  const auto number = [&](const std::string& part) {
    return static_cast<int>(parse_count("--workers", part, minimum, kMaxTraceWorkers));
  };
  if (const std::size_t dots = text.find(".."); dots != std::string::npos) {
    const int first = number(text.substr(0, dots));
    const int last = number(text.substr(dots + 2));
    if (first > last) {
      throw InputError(
          fmt::format("--workers {}: give the smaller number first, such as 2..1024", text));
    }
    return doublings(first, last);
  }
  std::vector<int> workers;
  for (const std::string& part : between_commas("--workers", text)) workers.push_back(number(part));
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  return workers;
}

void add_network(CLI::App& command, NetworkArguments& given) {
  add_rate(command, "--rate", given.rate_bps,
           "Rate of each worker's link, per direction, such as 25gbit; overrides --network");
  add_seconds(command, "--latency", given.latency_s,
              "Latency of each worker's link, such as 10us; overrides --network (default: 0)");
  command
      .add_option("--network", given.file,
                  "Network file from 'sparsesync calibrate': measured links and CPU costs")
      ->type_name("NETWORK.json");
}

GivenNetwork network_from(const std::string& command, const NetworkArguments& given) {
  GivenNetwork found;
  if (!given.file.empty()) found.measured = read_network(given.file);
  if (!found.measured && given.rate_bps <= 0) {
    throw InputError(fmt::format(
        "{} needs a network: pass --rate (and --latency), or --network with a file from calibrate",
        command));
  }
  if (found.measured) found.network = found.measured->network();
  if (given.rate_bps > 0) found.network.rate_bps = given.rate_bps;
  if (given.rate_bps > 0 || given.latency_s > 0) found.network.latency_s = given.latency_s;
  found.is_inside_a_node = found.measured && !found.measured->inter && given.rate_bps <= 0;
  return found;
}

LocalLink TransportArguments::link() const {
  return {rate_bps > 0 ? std::optional(rate_bps) : std::nullopt, latency_s};
}

std::chrono::milliseconds TransportArguments::deadline() const {
  return std::chrono::milliseconds(static_cast<std::int64_t>(deadline_s * 1000));
}

bool TransportArguments::has_processes() const {
  // Open MPI sets the first variable, MPI libraries with PMI set the second.
  const bool is_started_by_mpirun =
      std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ||  // NOLINT(concurrency-mt-unsafe)
      std::getenv("PMI_SIZE") != nullptr;                // NOLINT(concurrency-mt-unsafe)
  return transport == "mpi" || transport == "ucx" || (transport == "nccl" && is_started_by_mpirun);
}

std::unique_ptr<Workers> TransportArguments::processes(Chunks chunks) const {
  return transport == "ucx" ? workers_over_ucx(deadline(), chunks)
                            : workers_over_mpi(deadline(), chunks);
}

void TransportArguments::check() const {
  if (!is_local() && transport != "mpi" && transport != "ucx" && transport != "nccl") {
    throw InputError(fmt::format("--transport '{}': use local, mpi, ucx or nccl", transport));
  }
  if (!is_local() && (rate_bps > 0 || latency_s > 0)) {
    throw InputError(
        "--rate and --latency apply only to local links: remove them, or use --transport local");
  }
}

JsonOutput::JsonOutput(std::string target) : target_(std::move(target)) {
  if (!target_.empty() && target_ != "-") file_ = std::make_unique<OutputFile>(target_, true);
}

void JsonOutput::write(std::string_view json) {
  if (file_) {
    file_->write(json);
    file_->write("\n");
    file_->commit();
  } else if (!target_.empty()) {
    write_all(stdout, json);
    write_all(stdout, "\n");
  }
}

void print(std::FILE* stream, std::string_view text) {
  write_all(stream, printable(text, {.keeps_line_ends = true}));
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::string nearest;
  std::size_t fewest = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const std::string& candidate : known) {
    // Levenshtein distance, computed one table row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i + 1);
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t changed = diagonal + (name[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
      }
    }
    if (row.back() < fewest) {
      fewest = row.back();
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace sparsesync
