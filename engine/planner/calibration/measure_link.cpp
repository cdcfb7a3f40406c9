#include "engine/planner/calibration/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "engine/planner/calibration/timed_exchange.h"
#include "engine/session/control_channel.h"
#include "engine/support/log.h"
#include "schemes/pattern.h"

namespace sparsesync {
namespace {

constexpr int kStream = 4;                      // back-to-back messages
constexpr std::int64_t kStreamFrom = 64 << 10;  // smaller messages do not show the rate
constexpr std::size_t kFewestSizes = 3;         // timed even if they take long

/// One worker's side of a probe. Worker 0 collects the timings.
class Probe {
 public:
  Probe() = default;
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  virtual ~Probe() = default;

  /// Times messages of one size. All workers call this function together.
  /// @param samples  receives the transfers, on worker 0
  /// @return seconds of a message, on worker 0
  virtual double time(std::int64_t bytes, std::vector<TimedTransfer>& samples) = 0;
};

/// A round trip between worker 0 and another worker, and four back-to-back messages one way. The
/// other workers wait.
class PairProbe : public Probe {
 public:
  PairProbe(Transport& transport, const Context& context, Rank with, const ProbeOptions& options)
      : exchange_(transport, context, options.deadline), own_(transport.rank()), with_(with) {}

  double time(std::int64_t bytes, std::vector<TimedTransfer>& samples) override {
    if (own_ != Rank{0} && own_ != with_) return 0;
    if (bytes == 0) there_and_back(bytes);  // warm-up, while the other workers begin to sleep
    const double one_way = there_and_back(bytes) / 2;
    if (bytes == 0) empty_way_ = one_way;
    const auto on_wire = static_cast<double>(bytes + kHeaderBytes);
    add(samples, on_wire, one_way);
    if (bytes >= kStreamFrom) add(samples, kStream * on_wire, in_a_row(bytes) - empty_way_);
    return one_way;
  }

 private:
  void add(std::vector<TimedTransfer>& samples, double bytes, double seconds) const {
    if (own_ == Rank{0} && seconds > 0) samples.push_back({bytes, seconds});
  }

  double there_and_back(std::int64_t bytes) {
    ++sequence_;
    if (own_ == Rank{0}) return exchange_.run(sequence_, {&with_, 1}, bytes, {&with_, 1}, bytes);
    exchange_.run(sequence_, {}, 0, {&kFirst, 1}, bytes);
    return exchange_.run(sequence_, {&kFirst, 1}, bytes, {}, 0);
  }

  /// Times back-to-back messages one way, and an empty reply.
  double in_a_row(std::int64_t bytes) {
    ++sequence_;
    const std::vector<Rank> peer(kStream, own_ == Rank{0} ? with_ : kFirst);
    if (own_ == Rank{0}) return exchange_.run(sequence_, peer, bytes, {&with_, 1}, 0);
    exchange_.run(sequence_, {}, 0, peer, bytes);
    return exchange_.run(sequence_, {&kFirst, 1}, 0, {}, 0);
  }

  static constexpr Rank kFirst{0};

  TimedExchange exchange_;
  Rank own_;
  Rank with_;
  std::uint64_t sequence_ = 0;
  double empty_way_ = 0;  // one-way time of this pass's empty message, which comes first
};

/// Returns the longest time of some workers.
/// @param times  [rank] each worker's time
double slowest(const std::vector<std::string>& times, const std::vector<Rank>& workers) {
  double most = 0;
  for (const Rank worker : workers) {
    double seconds = 0;
    const std::string& bytes = times[worker.index()];
    if (bytes.size() != sizeof(seconds)) throw ProtocolError("received a malformed time");
    std::memcpy(&seconds, bytes.data(), sizeof(seconds));
    most = std::max(most, seconds);
  }
  return most;
}

/// All-to-all messages between all workers, or inside each node. Each worker receives the given
/// bytes in total, whatever the number of workers. The slowest worker's time counts.
class LoadProbe : public Probe {
 public:
  LoadProbe(Transport& transport, const Context& context, bool between_nodes,
            const ProbeOptions& options)
      : exchange_(transport, context, options.deadline),
        control_(transport, context, options.deadline),
        own_(transport.rank()),
        peers_(peers_after(own_, transport.size())) {
    if (between_nodes) return;
    std::erase_if(peers_, [&](Rank peer) {
      return options.each_a_node || transport.node(peer) != transport.node(own_);
    });
  }

  double time(std::int64_t bytes, std::vector<TimedTransfer>& samples) override {
    const std::int64_t each = bytes / std::max<std::int64_t>(std::ssize(peers_), 1);
    control_.all_gather("");  // all begin together
    const double own = exchange_.run(++sequence_, peers_, each, peers_, each);
    const std::vector<std::string> times =
        control_.all_gather({reinterpret_cast<const char*>(&own), sizeof(own)});
    if (own_ != Rank{0}) return 0;
    std::vector<Rank> group = peers_;
    group.push_back(own_);
    const double seconds = slowest(times, group);
    samples.push_back({static_cast<double>(std::ssize(peers_) * (each + kHeaderBytes)), seconds});
    return seconds;
  }

 private:
  TimedExchange exchange_;
  ControlChannel control_;
  Rank own_;
  std::vector<Rank> peers_;
  std::uint64_t sequence_ = 0;
};

/// A probe, and the member of ProbedLinks for its samples.
struct PlannedProbe {
  std::unique_ptr<Probe> probe;
  std::vector<TimedTransfer> ProbedLinks::*samples = nullptr;
  std::size_t sizes = kProbeSizes.size();  // number of sizes to time, from the smallest on
};

/// Returns the probes, in the order in which all workers run them.
std::vector<PlannedProbe> planned_probes(Transport& transport, const Context& context,
                                         const ProbeOptions& options) {
  std::vector<PlannedProbe> probes;
  const auto pairs = [&](const std::vector<Rank>& peers,
                         std::vector<TimedTransfer> ProbedLinks::*samples) {
    for (const Rank peer : peers) {
      probes.push_back({std::make_unique<PairProbe>(transport, context, peer, options), samples});
    }
  };
  const auto load = [&](bool between_nodes, std::vector<TimedTransfer> ProbedLinks::*samples) {
    probes.push_back(
        {std::make_unique<LoadProbe>(transport, context, between_nodes, options), samples});
  };
  const ProbedWorkers workers = probed_workers(transport, options);
  pairs(workers.inter, &ProbedLinks::inter);
  pairs(workers.intra, &ProbedLinks::intra);
  if (workers.all_between_nodes) load(true, &ProbedLinks::inter_loaded);
  if (workers.all_inside_nodes) load(false, &ProbedLinks::intra_loaded);
  return probes;
}

}  // namespace

std::size_t ProbedWorkers::probes() const {
  return inter.size() + intra.size() + (all_between_nodes ? 1U : 0U) + (all_inside_nodes ? 1U : 0U);
}

ProbedWorkers probed_workers(const Transport& transport, const ProbeOptions& options) {
  constexpr std::size_t kOtherNodes = 3;
  ProbedWorkers probed;
  std::set<int> other_nodes;
  int on_first_node = 1;
  for (int rank = 1; rank < transport.size(); ++rank) {
    const int node = options.each_a_node ? rank : transport.node(Rank{rank});
    if (!options.each_a_node && node == transport.node(Rank{0})) {
      ++on_first_node;
      if (probed.intra.empty()) probed.intra.push_back(Rank{rank});
    } else if (other_nodes.insert(node).second && other_nodes.size() <= kOtherNodes) {
      probed.inter.push_back(Rank{rank});
    }
  }
  if (options.under_load) {
    probed.all_between_nodes = !other_nodes.empty() && transport.size() > 2;
    probed.all_inside_nodes = on_first_node > 2;
  }
  return probed;
}

ProbedLinks probe_links(Transport& transport, const Context& context, const ProbeOptions& options) {
  ControlChannel control(transport, context, options.deadline);
  const bool leads = transport.rank() == Rank{0};
  std::vector<PlannedProbe> probes = planned_probes(transport, context, options);
  ProbedLinks found;
  const auto time = [&](PlannedProbe& planned, std::size_t size, int pass) {
    std::vector<TimedTransfer> timed;
    const double seconds = planned.probe->time(kProbeSizes[size], timed);
    for (TimedTransfer& transfer : timed) {
      transfer.pass = pass;
      if (pass > 0) (found.*planned.samples).push_back(transfer);
    }
    return seconds;
  };
  // The first pass is a warm-up, and finds the largest size to time: worker 0 decides it for all.
  for (PlannedProbe& planned : probes) {
    for (std::size_t size = 0; size < planned.sizes; ++size) {
      // The next size is four times this one.
      const bool next_is_long = time(planned, size, 0) * 4 > options.longest_s;
      const bool last = next_is_long && size + 1 >= kFewestSizes;
      if (!control.all_gather(leads && last ? "last" : "").front().empty()) {
        planned.sizes = size + 1;
      }
    }
    if (leads) options.probe_done();
  }
  for (int pass = 1; pass <= options.repeat; ++pass) {
    for (PlannedProbe& planned : probes) {
      control.all_gather("");
      for (std::size_t size = 0; size < planned.sizes; ++size) time(planned, size, pass);
      if (leads) options.probe_done();
    }
  }
  return found;
}

namespace {

/// Returns a link for the planner: the fitted line if possible. On a machine too busy for a fit, it
/// uses the fastest transfers of the smallest and the largest size.
FittedLink link_for_a_plan(std::span<const TimedTransfer> samples) {
  try {
    return fit_link(samples);
  } catch (const Error& unfit) {
    log(LogLevel::warning,
        fmt::format("a link cannot be fitted, and the plan uses its fastest transfers: {}",
                    unfit.what()));
  }
  const auto smallest = std::min_element(
      samples.begin(), samples.end(), [](const TimedTransfer& a, const TimedTransfer& b) {
        return std::pair(a.bytes, a.seconds) < std::pair(b.bytes, b.seconds);
      });
  const auto largest = std::max_element(
      samples.begin(), samples.end(), [](const TimedTransfer& a, const TimedTransfer& b) {
        return std::pair(a.bytes, -a.seconds) < std::pair(b.bytes, -b.seconds);
      });
  FittedLink link;
  link.latency_s = smallest->seconds;
  link.rate_bps = largest->bytes * 8 / std::max(largest->seconds, 1e-9);
  return link;
}

}  // namespace

Network measure_network(Transport& transport, const Context& context,
                        std::chrono::milliseconds deadline) {
  // A single worker sends nothing, so any link will do.
  if (transport.size() == 1) return {0, 1};
  // A plan needs only orders of magnitude, and the user is waiting.
  ProbeOptions options;
  options.repeat = 3;
  options.longest_s = 0.03;
  options.deadline = deadline;
  const ProbedLinks links = probe_links(transport, context, options);
  if (transport.rank() != Rank{0}) return {};
  const FittedLink link = link_for_a_plan(links.inter.empty() ? links.intra : links.inter);
  const HostCosts host = probe_host(1);
  return {link.latency_s, link.rate_bps, host};
}

}  // namespace sparsesync
