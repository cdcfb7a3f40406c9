#include "engine/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
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
constexpr std::size_t kFewestSizes = 3;         // that are timed, however long they take

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

/// Those that `self` shares a node with, or all others.
std::vector<Rank> loaded_peers(const Transport& transport, const ProbeOptions& options,
                               bool between_nodes) {
  std::vector<Rank> peers = peers_after(transport.rank(), transport.size());
  if (between_nodes) return peers;
  std::erase_if(peers, [&](Rank peer) {
    return options.each_a_node || transport.node(peer) != transport.node(transport.rank());
  });
  return peers;
}

/// One worker's part of rounds in which it and its peers all send each other a message.
class LoadProbe {
 public:
  LoadProbe(Transport& transport, const Context& context, std::vector<Rank> peers,
            const ProbeOptions& options)
      : transport_(transport), context_(context), peers_(std::move(peers)), options_(options) {}

  /// Seconds from posting to the last arrival.
  double round(std::int64_t bytes, std::uint64_t sequence) {
    payload_.resize(static_cast<std::size_t>(bytes));
    sends_.clear();
    receives_.clear();
    for (const Rank peer : peers_) {
      sends_.push_back({peer, payload_.data(), bytes});
      receives_.push_back({peer});
    }
    Payloads payloads(peers_.size(), bytes);
    const Clock::time_point begin = Clock::now();
    const Clock::time_point until = begin + options_.deadline;
    const GroupId group =
        transport_.post(context_, {2, 0, sequence, 0, 0}, sends_, receives_, payloads);
    while (transport_.next(group, until)) {
    }
    const Clock::time_point end = Clock::now();
    transport_.finish(group, until);
    return std::chrono::duration<double>(end - begin).count();
  }

  double bytes_received(std::int64_t bytes) const {
    return static_cast<double>(std::ssize(peers_) * (bytes + kHeaderBytes));
  }

 private:
  /// Takes a payload of one size from each peer.
  class Payloads : public ReceiveProvider {
   public:
    Payloads(std::size_t peers, std::int64_t bytes)
        : each_(static_cast<std::size_t>(bytes)), bytes_(peers * each_) {}
    std::byte* provide(std::size_t receive, const Header& header) override {
      if (header.bytes != each_) {
        throw ProtocolError(
            fmt::format("a probe of {} bytes where {} were to come", header.bytes, each_));
      }
      return bytes_.data() + receive * each_;
    }

   private:
    std::size_t each_;
    std::vector<std::byte> bytes_;
  };

  Transport& transport_;
  Context context_;
  std::vector<Rank> peers_;
  const ProbeOptions& options_;
  std::vector<std::byte> payload_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

/// What the slowest of some workers took.
/// @param told  by rank: what each says that it took
double slowest(const std::vector<std::string>& told, const std::vector<Rank>& workers) {
  double most = 0;
  for (const Rank worker : workers) {
    double seconds = 0;
    const std::string& bytes = told[worker.index()];
    if (bytes.size() != sizeof(seconds)) throw ProtocolError("a time that is no number");
    std::memcpy(&seconds, bytes.data(), sizeof(seconds));
    most = std::max(most, seconds);
  }
  return most;
}

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

LoadedGroups loaded_groups(const Transport& transport, const ProbeOptions& options) {
  int of_first_node = 0;
  for (const Rank worker : Ranks(transport.size())) {
    const bool is_there =
        options.each_a_node ? worker == Rank{0} : transport.node(worker) == transport.node(Rank{0});
    of_first_node += is_there ? 1 : 0;
  }
  return {transport.size() > 2 && of_first_node<transport.size(), of_first_node> 2};
}

ProbedLinks probe_links(Transport& transport, const Context& context, const ProbeOptions& options) {
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

void probe_load(Transport& transport, const Context& context, const ProbeOptions& options,
                ProbedLinks& found) {
  ControlChannel control(transport, context, options.deadline);
  const bool leads = transport.rank() == Rank{0};
  std::uint64_t sequence = 0;
  const auto probe = [&](bool between_nodes, std::vector<TimedTransfer>& samples) {
    std::vector<Rank> group = loaded_peers(transport, options, between_nodes);
    LoadProbe load(transport, context, group, options);
    group.push_back(transport.rank());
    bool stopped = false;
    for (std::size_t i = 0; i < kProbeSizes.size(); ++i) {
      double quickest = std::numeric_limits<double>::infinity();
      // The first round counts for nobody.
      for (int round = 0; round <= options.repeat && !stopped; ++round) {
        control.all_gather("");  // all begin together
        const double own = load.round(kProbeSizes[i], ++sequence);
        const std::vector<std::string> told =
            control.all_gather({reinterpret_cast<const char*>(&own), sizeof(own)});
        const double seconds = slowest(told, group);
        if (round == 0) continue;
        quickest = std::min(quickest, seconds);
        if (leads) samples.push_back({load.bytes_received(kProbeSizes[i]), seconds});
      }
      const bool last = i + 1 >= kFewestSizes && quickest * 4 > options.longest_s;
      stopped = stopped || !control.all_gather(leads && last ? "last" : "").front().empty();
      if (leads) options.size_done();
    }
  };
  const LoadedGroups groups = loaded_groups(transport, options);
  if (groups.inter) probe(true, found.inter_loaded);
  if (groups.intra) probe(false, found.intra_loaded);
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
  const LoadedGroups groups = loaded_groups(*ends.front(), options);
  const std::size_t probes =
      pairs.inter.size() + pairs.intra.size() + (groups.inter ? 1U : 0U) + (groups.intra ? 1U : 0U);
  const auto in_all = static_cast<std::int64_t>(probes * kProbeSizes.size());
  std::atomic<std::int64_t> done = 0;
  options.size_done = [&] { ++done; };
  std::vector<ProbedLinks> found(ends.size());
  const auto probe = [&](std::unique_ptr<Transport>& end, std::size_t place) {
    HostMemory memory;
    try {
      found[place] = probe_links(*end, Context(memory), options);
      probe_load(*end, Context(memory), options, found[place]);
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
    if (!links.inter_loaded.empty()) network.inter_loaded = fit_link(links.inter_loaded);
    if (!links.intra_loaded.empty()) network.intra_loaded = fit_link(links.intra_loaded);
    network.host = probe_host(std::min(options.repeat, 5));
  });
  return network;
}

}  // namespace sparsesync
