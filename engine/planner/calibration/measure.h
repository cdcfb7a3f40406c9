// Measurements for a calibration: links between workers, and a worker's CPU.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/planner/calibration/fit.h"
#include "kernels/base/context.h"
#include "schemes/cost.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Payload bytes of timed messages. Under load: bytes that a worker receives in total.
inline constexpr std::array<std::int64_t, 8> kProbeSizes{0,        1 << 10,   4 << 10, 16 << 10,
                                                         64 << 10, 256 << 10, 1 << 20, 4 << 20};

/// Options for probing links.
struct ProbeOptions {
  // Passes over all sizes and all probes, after one warm-up pass. Because passes interleave the
  // sizes, a temporary disturbance affects one timing of each size, not all timings of one size.
  int repeat = 9;
  // Limit for a message's seconds. Larger sizes that would exceed it are skipped, but at least
  // three sizes are timed.
  double longest_s = 0.1;
  std::chrono::milliseconds deadline{60'000};  // timeout of each wait
  // Whether each worker counts as a separate node, whatever the transport reports.
  bool each_a_node = false;
  // Whether links are also timed while all workers send.
  bool under_load = false;
  // Called by worker 0's measuring thread after each pass over the sizes of one probe.
  std::function<void()> probe_done = [] {};
};

/// Workers of the probes. Worker 0 is probed with one worker of its node, and with one worker of
/// each of up to three other nodes. Under load, all workers are probed together.
struct ProbedWorkers {
  std::vector<Rank> intra;
  std::vector<Rank> inter;
  // With only two workers, a link under load carries the same messages as an idle one.
  bool all_between_nodes = false;  // three workers or more, on several nodes
  bool all_inside_nodes = false;   // three workers or more on worker 0's node

  std::size_t probes() const;  // number of probes; each one times all sizes
};
/// Returns the workers that probe_links() probes. The same on all workers.
ProbedWorkers probed_workers(const Transport& transport, const ProbeOptions& options);

/// Timed transfers between nodes and inside a node. Idle transfers are single messages. Loaded ones
/// are all-to-all exchanges, where `bytes` is what one worker receives.
struct ProbedLinks {
  std::vector<TimedTransfer> inter;
  std::vector<TimedTransfer> intra;
  std::vector<TimedTransfer> inter_loaded;
  std::vector<TimedTransfer> intra_loaded;
};

/// Measures links. Each pair times a round trip, and four back-to-back messages one way, while the
/// other workers wait. Under load, all workers send to all others, and the slowest worker's time
/// counts. All workers call this function together. Synchronizes the stream.
/// @return worker 0's measurements; empty on other workers
/// @throws what Transport throws
ProbedLinks probe_links(Transport& transport, const Context& context, const ProbeOptions& options);

/// Measures the network for the planner within about two seconds: the link between nodes if there
/// are several, and the CPU. All workers call this function together. Synchronizes the stream.
/// @param deadline  timeout of each wait
/// @return worker 0's measurements; empty on other workers
/// @throws what Transport throws
Network measure_network(Transport& transport, const Context& context,
                        std::chrono::milliseconds deadline);

/// Measures CPU costs: seconds for each count of Work. It runs steps of several schemes between
/// threads of this process, one worker at a time, with narrow and wide rows, and few and many. It
/// records their CPU times (Recording) and fits costs to them. Each `repeat` takes about half a
/// second.
/// @param repeat  recorded steps of each case, at least 1; the median counts
/// @throws what Session throws
HostCosts probe_host(int repeat);

}  // namespace sparsesync
