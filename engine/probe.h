// Measures the links between workers: with host_probe.h what a calibration is made from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "analysis/calibrate.h"
#include "analysis/network_file.h"
#include "engine/workers.h"
#include "kernels/context.h"
#include "schemes/transport.h"

namespace sparsesync {

/// Payloads of the messages that are timed.
inline constexpr std::array<std::int64_t, 8> kProbeSizes{0,        1 << 10,   4 << 10, 16 << 10,
                                                         64 << 10, 256 << 10, 1 << 20, 4 << 20};

/// How links are probed.
struct ProbeOptions {
  int repeat = 9;  // timings of each size
  // No larger messages once the next size would take longer than this, three sizes at least.
  double longest_s = 0.1;
  std::chrono::milliseconds deadline{60'000};  // of each wait
  // Whether each worker stands for a node of its own, whatever the transport says.
  bool each_a_node = false;
  // Called from the measuring thread of worker 0: a size is done, or given up.
  std::function<void()> size_done = [] {};
};

/// Pairs of workers that are probed: worker 0 and one of its node, worker 0 and one of each of up
/// to three other nodes.
struct ProbePairs {
  std::vector<Rank> intra;
  std::vector<Rank> inter;
};
/// Those that probe_links() times.
ProbePairs probe_pairs(const Transport& transport, const ProbeOptions& options);

/// What was timed, between nodes and inside of one: a message alone, and messages of all to all at
/// once, whose bytes are what one worker receives.
struct ProbedLinks {
  std::vector<TimedTransfer> inter;
  std::vector<TimedTransfer> intra;
  std::vector<TimedTransfer> inter_loaded;
  std::vector<TimedTransfer> intra_loaded;
};

/// Times messages there and back, and four in a row one way, pair after pair; the other workers
/// wait. Called by all workers alike. Synchronizes the stream.
/// @return what worker 0 saw; nothing on the others
/// @throws what Transport throws
ProbedLinks probe_links(Transport& transport, const Context& context, const ProbeOptions& options);

/// Which loads there are to be timed: the same on all workers.
struct LoadedGroups {
  bool inter = false;  // three workers or more, on several nodes
  bool intra = false;  // three workers or more on each of some nodes, worker 0's among them
};
/// Those that probe_load() times.
LoadedGroups loaded_groups(const Transport& transport, const ProbeOptions& options);

/// Times what crosses while all workers send each other one a message, and then those of each node
/// among themselves; of a round the slowest worker's time counts. Where two workers are all there
/// are the link is as loaded as when it was alone, and nothing is timed. Called by all workers
/// alike. Synchronizes the stream.
/// @param found  what probe_links() saw: `inter_loaded` and `intra_loaded` are filled in on worker
/// 0
/// @throws what Transport throws
void probe_load(Transport& transport, const Context& context, const ProbeOptions& options,
                ProbedLinks& found);

/// The network for a plan: between nodes where there are several; within a second or two. Called by
/// all workers alike. Synchronizes the stream.
/// @param deadline  of each wait
/// @return what worker 0 saw; nothing on the others
/// @throws what Transport throws
Network measure_network(Transport& transport, const Context& context,
                        std::chrono::milliseconds deadline);

/// All of it: probes and fits. Called in every process of the workers.
/// @param progress  called from the calling thread: sizes done, sizes in all
/// @return what is known in the process that leads; elsewhere nothing is
/// @throws InputError if there is one worker alone, Error if a worker failed or nothing can be
///         fitted
NetworkFile calibrate(Workers& workers, ProbeOptions options,
                      const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace sparsesync
