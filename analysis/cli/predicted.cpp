#include "analysis/cli/predicted.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/cli/command.h"
#include "analysis/cli/units.h"
#include "analysis/plan/scale_plan.h"
#include "analysis/trace/trace.h"
#include "kernels/base/error.h"

namespace sparsesync {

std::vector<int> workers_from(const std::string& text, int minimum) {
  const auto number = [&](const std::string& part) {
    return static_cast<int>(parse_count("--workers", part, minimum, kMaxTraceWorkers));
  };
  if (const std::size_t dots = text.find(".."); dots != std::string::npos) {
    const int first = number(text.substr(0, dots));
    const int last = number(text.substr(dots + 2));
    if (first > last) {
      throw InputError(
          fmt::format("--workers {}: from the fewer to the more, such as 2..1024", text));
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
           "Of each worker's link, in each direction, such as 25gbit");
  add_seconds(command, "--latency", given.latency_s,
              "Of each worker's link, such as 10us (0 if not given)");
  command.add_option("--network", given.file, "What calibrate has measured: links and processors")
      ->type_name("NETWORK.json");
}

GivenNetwork network_from(const std::string& command, const NetworkArguments& given) {
  GivenNetwork found;
  if (!given.file.empty()) found.measured = read_network(given.file);
  if (!found.measured && given.rate_bps <= 0) {
    throw InputError(fmt::format(
        "{}: nothing is known of the network: give --rate (and --latency), or --network from "
        "calibrate",
        command));
  }
  if (found.measured) found.network = found.measured->network();
  if (given.rate_bps > 0) found.network.rate_bps = given.rate_bps;
  if (given.rate_bps > 0 || given.latency_s > 0) found.network.latency_s = given.latency_s;
  found.is_inside_a_node = found.measured && !found.measured->inter && given.rate_bps <= 0;
  return found;
}

}  // namespace sparsesync
