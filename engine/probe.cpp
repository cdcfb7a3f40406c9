#include "engine/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "analysis/median.h"
#include "engine/control_channel.h"
#include "engine/host_probe.h"
#include "engine/log.h"
#include "engine/memory.h"

namespace sparsesync {
namespace {

constexpr int kStream = 4;                      // messages in a row
constexpr std::int64_t kStreamFrom = 64 << 10;  // smaller ones say nothing of a rate

/// Takes payloads of one size.
class Sink : public ReceiveProvider {
 public:
  std::byte* provide(std::size_t, const Header& header) override {
    if (header.bytes != bytes_.size()) {
      throw ProtocolError(
          fmt::format("a probe of {} bytes where {} were to come", header.bytes, bytes_.size()));
    }
    return bytes_.data();
  }
  void expect(std::int64_t bytes) { bytes_.resize(static_cast<std::size_t>(bytes)); }

 private:
  std::vector<std::byte> bytes_;
};

/// One worker's part of the probe of one pair.
class PairProbe {
 public:
  PairProbe(Transport& transport, const Context& context, Rank peer, const ProbeOptions& options)
      : transport_(transport), context_(context), peer_(peer), options_(options) {}

  bool leads() const { return transport_.rank() == Rank{0}; }

  /// All timings of one size. @return how long a message took that nothing delayed
  double time_size(std::int64_t bytes, std::vector<TimedTransfer>& samples) {
    payload_.resize(static_cast<std::size_t>(bytes));
    there_and_back(bytes);  // nobody's first time counts
    std::vector<double> one_way;
    for (int i = 0; i < options_.repeat; ++i) one_way.push_back(there_and_back(bytes) / 2);
    const auto on_wire = static_cast<double>(bytes + kHeaderBytes);
    for (const double seconds : one_way) add(samples, on_wire, seconds);
    if (bytes == 0) back_ = median(one_way);
    for (int i = 0; bytes >= kStreamFrom && i < options_.repeat; ++i) {
      add(samples, kStream * on_wire, in_a_row(bytes) - back_);
    }
    return *std::min_element(one_way.begin(), one_way.end());
  }

 private:
  void add(std::vector<TimedTransfer>& samples, double bytes, double seconds) const {
    if (leads() && seconds > 0) samples.push_back({bytes, seconds});
  }

  /// Seconds from posting to the last arrival.
  double exchange(int sends, std::int64_t bytes_sent, int receives, std::int64_t bytes_received) {
    sends_.assign(static_cast<std::size_t>(sends), {peer_, payload_.data(), bytes_sent});
    receives_.assign(static_cast<std::size_t>(receives), {peer_});
    sink_.expect(bytes_received);
    const Clock::time_point begin = Clock::now();
    const Clock::time_point until = begin + options_.deadline;
    const GroupId group =
        transport_.post(context_, {1, 0, sequence_, 0, 0}, sends_, receives_, sink_);
    while (transport_.next(group, until)) {
    }
    const Clock::time_point end = Clock::now();
    transport_.finish(group, until);
    return std::chrono::duration<double>(end - begin).count();
  }

  double there_and_back(std::int64_t bytes) {
    ++sequence_;
    if (leads()) return exchange(1, bytes, 1, bytes);
    exchange(0, 0, 1, bytes);
    return exchange(1, bytes, 0, 0);
  }

  /// One way, and an empty message back.
  double in_a_row(std::int64_t bytes) {
    ++sequence_;
    if (leads()) return exchange(kStream, bytes, 1, 0);
    exchange(0, 0, kStream, bytes);
    return exchange(1, 0, 0, 0);
  }

  Transport& transport_;
  Context context_;
  Rank peer_;
  const ProbeOptions& options_;
  std::uint64_t sequence_ = 0;
  double back_ = 0;  // an empty message's way
  std::vector<std::byte> payload_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  Sink sink_;
};

}  // namespace

ProbePairs probe_pairs(const Transport& transport, const ProbeOptions& options) {
  constexpr std::size_t kOtherNodes = 3;
  ProbePairs pairs;
  std::vector<int> nodes;
  for (int rank = 1; rank < transport.size(); ++rank) {
    const int node = options.each_a_node ? rank : transport.node(Rank{rank});
    if (!options.each_a_node && node == transport.node(Rank{0})) {
      if (pairs.intra.empty()) pairs.intra.push_back(Rank{rank});
    } else if (pairs.inter.size() < kOtherNodes &&
               std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
      nodes.push_back(node);
      pairs.inter.push_back(Rank{rank});
    }
  }
  return pairs;
}

ProbedLinks probe_links(Transport& transport, const Context& context, const ProbeOptions& options) {
  constexpr std::size_t kFewestSizes = 3;
  ControlChannel control(transport, context, options.deadline);
  const bool leads = transport.rank() == Rank{0};
  ProbedLinks found;
  const auto probe = [&](Rank peer, std::vector<TimedTransfer>& samples) {
    std::optional<PairProbe> pair;
    if (leads) pair.emplace(transport, context, peer, options);
    if (transport.rank() == peer) pair.emplace(transport, context, Rank{0}, options);
    bool stopped = false;
    for (std::size_t i = 0; i < kProbeSizes.size(); ++i) {
      if (!stopped) {
        const double seconds = pair ? pair->time_size(kProbeSizes[i], samples) : 0;
        // The next size is four times this one. Worker 0 decides, and all wait for it.
        const bool last = i + 1 >= kFewestSizes && seconds * 4 > options.longest_s;
        stopped = !control.all_gather(leads && last ? "last" : "").front().empty();
      }
      if (leads) options.size_done();
    }
  };
  const ProbePairs pairs = probe_pairs(transport, options);
  for (const Rank peer : pairs.inter) probe(peer, found.inter);
  for (const Rank peer : pairs.intra) probe(peer, found.intra);
  return found;
}

namespace {

/// What a plan needs to know of a link: a line where one can be fitted; else, on a machine too busy
/// for that, through the fastest transfers of the smallest and of the largest size.
FittedLink link_for_a_plan(std::span<const TimedTransfer> samples) {
  try {
    return fit_link(samples);
  } catch (const Error& unfit) {
    log(LogLevel::warning, fmt::format("links are planned with as they seem: {}", unfit.what()));
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
  // Alone nothing crosses: any link will do.
  if (transport.size() == 1) return {0, 1, 0, 0};
  // A plan needs orders of magnitude, and a user waits.
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

NetworkFile calibrate(Workers& workers, ProbeOptions options,
                      const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (workers.size() < 2) {
    throw InputError("one worker alone has no link: start 2 or more");
  }
  std::vector<std::unique_ptr<Transport>> ends = workers.connect();
  const ProbePairs pairs = probe_pairs(*ends.front(), options);
  const auto in_all =
      static_cast<std::int64_t>((pairs.inter.size() + pairs.intra.size()) * kProbeSizes.size());
  std::atomic<std::int64_t> done = 0;
  options.size_done = [&] { ++done; };
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
    const ProbedLinks& links = found.front();
    if (!links.inter.empty()) network.inter = fit_link(links.inter);
    if (!links.intra.empty()) network.intra = fit_link(links.intra);
    network.host = probe_host(std::min(options.repeat, 5));
  });
  return network;
}

}  // namespace sparsesync
