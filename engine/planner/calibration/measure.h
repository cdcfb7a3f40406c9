// Measurements that a calibration is made from: links between workers, and a worker's processor.
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

/// Payloads of the messages that are timed; under load, what a worker receives in all.
inline constexpr std::array<std::int64_t, 8> kProbeSizes{0,        1 << 10,   4 << 10, 16 << 10,
                                                         64 << 10, 256 << 10, 1 << 20, 4 << 20};

/// How links are probed.
struct ProbeOptions {
  // Passes over all sizes and all workers that are probed, after one that is nobody's: what a
  // machine does for a while is in one pass of each size, not in all timings of one.
  int repeat = 9;
  // No larger messages once the next size would take longer than this, three sizes at least.
  double longest_s = 0.1;
  std::chrono::milliseconds deadline{60'000};  // of each wait
  // Whether each worker stands for a node of its own, whatever the transport says.
  bool each_a_node = false;
  // Whether links are timed while all workers send, too.
  bool under_load = false;
  // Called from the measuring thread of worker 0: a pass over one probe's sizes is done.
  std::function<void()> probe_done = [] {};
};

/// Who is probed: worker 0 with one of its node, worker 0 with one of each of up to three other
/// nodes, and, under load, all with all.
struct ProbedWorkers {
  std::vector<Rank> intra;
  std::vector<Rank> inter;
  // Where there are two workers alone, a link is as loaded as when it was alone.
  bool all_between_nodes = false;  // three workers or more, on several nodes
  bool all_inside_nodes = false;   // three workers or more on worker 0's node

  std::size_t probes() const;  // how many times a pass goes over all sizes
};
/// Those that probe_links() times: the same on all workers.
ProbedWorkers probed_workers(const Transport& transport, const ProbeOptions& options);

/// What was timed, between nodes and inside of one: messages that were alone on the link, and
/// messages of all to all at once, whose bytes are what one worker receives.
struct ProbedLinks {
  std::vector<TimedTransfer> inter;
  std::vector<TimedTransfer> intra;
  std::vector<TimedTransfer> inter_loaded;
  std::vector<TimedTransfer> intra_loaded;
};

/// Times messages there and back, and four in a row one way, pair after pair while the other
/// workers wait; and, if so asked, what all send to all, of which the slowest worker's time counts.
/// Called by all workers alike. Synchronizes the stream.
/// @return what worker 0 saw; nothing on the others
/// @throws what Transport throws
ProbedLinks probe_links(Transport& transport, const Context& context, const ProbeOptions& options);

/// The network for a plan: between nodes where there are several; within a second or two. Called by
/// all workers alike. Synchronizes the stream.
/// @param deadline  of each wait
/// @return what worker 0 saw; nothing on the others
/// @throws what Transport throws
Network measure_network(Transport& transport, const Context& context,
                        std::chrono::milliseconds deadline);

/// Runs steps of several schemes, narrow and wide rows, few and many, between some workers that are
/// threads of this process, one at a time; records what their processors do (Recording), and fits
/// costs to it: seconds for each of what Work counts. Takes half a second or so for each `repeat`.
/// @param repeat  recorded steps of each, whose median counts; 1 or more
/// @throws what Session throws
HostCosts probe_host(int repeat);

}  // namespace sparsesync
