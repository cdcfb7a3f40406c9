#include "analysis/calibrate/calibrate.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/planner/calibration/measure.h"
#include "engine/transport/worker_threads.h"
#include "sparsesync/memory.h"

namespace sparsesync {

NetworkFile calibrate(Workers& workers, ProbeOptions options,
                      const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (workers.size() < 2) {
    throw InputError("a single worker has no link to measure: start 2 or more");
  }
  std::vector<std::unique_ptr<Transport>> ends = workers.connect();
  const auto in_all = static_cast<std::int64_t>(probed_workers(*ends.front(), options).probes()) *
                      (options.repeat + 1);
  std::atomic<std::int64_t> done = 0;
  options.probe_done = [&] { ++done; };
  std::vector<ProbedLinks> found(ends.size());
  const auto probe = [&](std::unique_ptr<Transport>& end, std::size_t place) {
    HostMemory memory;
    try {
      found[place] = probe_links(*end, Context(memory), options);
    } catch (const std::exception& error) {
      end->abort(error.what());
      throw;
    }
  };
  const auto errors = run_in_threads(std::move(ends), probe, [&] { progress(done, in_all); });
  if (const std::exception_ptr cause = first_cause(errors)) std::rethrow_exception(cause);
  NetworkFile network;
  workers.together([&] {
    if (!workers.leads()) return;
    const auto fitted = [](const std::vector<TimedTransfer>& samples) {
      return samples.empty() ? std::nullopt : std::optional(fit_link(samples));
    };
    const ProbedLinks& links = found.front();
    network.inter = fitted(links.inter);
    network.intra = fitted(links.intra);
    network.inter_loaded = fitted(links.inter_loaded);
    network.intra_loaded = fitted(links.intra_loaded);
    network.host = probe_host(std::min(options.repeat, 5));
  });
  return network;
}

}  // namespace sparsesync
