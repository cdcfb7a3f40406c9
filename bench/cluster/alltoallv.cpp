// Compares a step of scheme `balanced` with MPI_Alltoallv of the same bytes between the same peers.
//
//   mpirun -np N alltoallv TRACE ROUNDS STEPS
//
// Each of ROUNDS rounds runs three measurements:
//
// - STEPS steps of `balanced` on the trace's step 0: push and pull with all computation
//
// - STEPS times MPI_Alltoallv with the bytes of the push, and again with those of the pull
//
// - STEPS times the transport `mpi` with the same bytes and no computation
//
// Rank 0 prints JSON with the seconds of each, from the first worker's start to the last worker's
// end.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "analysis/trace/trace.h"
#include "schemes/pattern.h"
#include "sparsesync/memory.h"
#include "sparsesync/session.h"
#include "sparsesync/transports/mpi.h"

namespace sparsesync {
namespace {

/// Bytes from this worker to each peer, and from each peer to this worker, in one exchange.
struct Bytes {
  std::vector<int> sent;
  std::vector<int> received;
};

/// A transport that records the bytes of each group that is posted.
class Recorder : public Transport {
 public:
  Recorder(std::unique_ptr<Transport> under, std::vector<Bytes>& groups)
      : under_(std::move(under)), groups_(groups) {}
  Rank rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  int node(Rank worker) const override { return under_->node(worker); }
  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    if (expected.channel != 0) {
      Bytes& bytes = groups_.emplace_back();
      bytes.sent.resize(static_cast<std::size_t>(size()));
      for (const Send& send : sends) {
        bytes.sent[static_cast<std::size_t>(send.to.value)] +=
            static_cast<int>(kHeaderBytes + send.bytes.resolve(context));
      }
    }
    return under_->post(context, expected, sends, receives, provider);
  }
  std::optional<Arrival> next(GroupId group, Clock::time_point deadline) override {
    return under_->next(group, deadline);
  }
  void finish(GroupId group, Clock::time_point deadline) override {
    under_->finish(group, deadline);
  }
  void abort(const std::string& reason) noexcept override { under_->abort(reason); }
  TransportCounters counters() const override { return under_->counters(); }

 private:
  std::unique_ptr<Transport> under_;
  std::vector<Bytes>& groups_;
};

/// Returns the seconds from the first worker's begin to the last worker's end. The workers run on
/// one machine and share a clock.
double span_of(Clock::time_point begin, Clock::time_point end) {
  double first = std::chrono::duration<double>(begin.time_since_epoch()).count();
  double last = std::chrono::duration<double>(end.time_since_epoch()).count();
  MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return last - first;
}

struct Interval {
  Clock::time_point begin;
  Clock::time_point end;
};

/// Runs `steps` steps after two warm-up steps; the scheme adapts after the first one. MPI belongs
/// to the world's thread meanwhile. Leaves the groups of the last step in `groups`.
std::vector<Interval> run_balanced(const Trace& trace, int steps, std::vector<Bytes>& groups) {
  std::vector<Interval> intervals;
  HostMemory memory;
  MpiWorld world;
  Session session(std::make_unique<Recorder>(world.join(), groups), memory);
  const BucketId bucket =
      session.register_bucket({"alltoallv", trace.header().tensors, "balanced"});
  const std::vector<TracePart> parts = trace.load(session.rank(), 0);
  std::vector<Gradient> gradients;
  for (const TracePart& part : parts) {
    gradients.push_back(Gradient::row_sparse(part.indices, part.values.data()));
  }
  session.synchronize(bucket, gradients);
  session.adapt(bucket);
  session.synchronize(bucket, gradients);
  for (int step = 0; step < steps; ++step) {
    groups.clear();
    session.barrier();
    Interval& interval = intervals.emplace_back();
    interval.begin = Clock::now();
    session.synchronize(bucket, gradients);
    interval.end = Clock::now();
  }
  session.barrier();
  return intervals;
}

std::vector<int> displacements(const std::vector<int>& counts) {
  std::vector<int> result(counts.size());
  for (std::size_t i = 1; i < counts.size(); ++i) result[i] = result[i - 1] + counts[i - 1];
  return result;
}

/// Runs all groups, one after another, each as one MPI_Alltoallv.
class Alltoallv {
 public:
  explicit Alltoallv(std::vector<Bytes> groups) : groups_(std::move(groups)) {
    std::size_t most = 1;
    for (Bytes& bytes : groups_) {
      bytes.received.resize(bytes.sent.size());
      MPI_Alltoall(bytes.sent.data(), 1, MPI_INT, bytes.received.data(), 1, MPI_INT,
                   MPI_COMM_WORLD);
      for (const std::vector<int>& counts : {bytes.sent, bytes.received}) {
        most = std::max(most, static_cast<std::size_t>(displacements(counts).back()) +
                                  static_cast<std::size_t>(counts.back()));
      }
    }
    from_.resize(most);
    to_.resize(most);
  }

  Interval run() {
    MPI_Barrier(MPI_COMM_WORLD);
    const Clock::time_point begin = Clock::now();
    for (const Bytes& bytes : groups_) {
      MPI_Alltoallv(from_.data(), bytes.sent.data(), displacements(bytes.sent).data(), MPI_BYTE,
                    to_.data(), bytes.received.data(), displacements(bytes.received).data(),
                    MPI_BYTE, MPI_COMM_WORLD);
    }
    return {begin, Clock::now()};
  }

  const std::vector<Bytes>& groups() const { return groups_; }

  double bytes_sent() const {
    double sum = 0;
    for (const Bytes& bytes : groups_) {
      for (const int count : bytes.sent) sum += count;
    }
    return sum;
  }

 private:
  std::vector<Bytes> groups_;
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
};

/// Receives each payload into a separate buffer.
class Places : public ReceiveProvider {
 public:
  explicit Places(const Bytes& bytes) {
    for (const int count : bytes.received) {
      if (count > 0) places_.emplace_back(static_cast<std::size_t>(count));
    }
  }
  std::byte* provide(std::size_t receive, const Header&) override {
    return places_[receive].data();
  }

 private:
  std::vector<std::vector<std::byte>> places_;
};

/// Runs all groups over the transport `mpi`, `steps` times after one warm-up step.
std::vector<Interval> run_transport(const std::vector<Bytes>& groups, int steps) {
  HostMemory memory;
  const Context context(memory);
  std::vector<Places> places(groups.begin(), groups.end());
  std::vector<std::byte> from;
  MpiWorld world;
  const std::unique_ptr<Transport> transport = world.join();
  std::uint64_t sequence = 0;
  const auto exchange = [&](const Bytes& bytes, ReceiveProvider& provider) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (std::size_t peer = 0; peer < bytes.sent.size(); ++peer) {
      if (bytes.received[peer] > 0) receives.push_back({Rank{static_cast<int>(peer)}});
    }
    for (const Rank peer : peers_after(transport->rank(), transport->size())) {
      const int count = bytes.sent[static_cast<std::size_t>(peer.value)];
      if (count == 0) continue;
      const std::int64_t payload = count - kHeaderBytes;
      from.resize(std::max(from.size(), static_cast<std::size_t>(payload)));
      sends.push_back({peer, nullptr, payload});
    }
    for (Send& send : sends) send.data = from.data();
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(60);
    const GroupId group = transport->post(context, {1, 0, sequence++}, sends, receives, provider);
    while (transport->next(group, deadline)) {
    }
    transport->finish(group, deadline);
  };
  // A barrier: each worker sends a header to every peer.
  Bytes headers;
  for (int peer = 0; peer < transport->size(); ++peer) {
    const bool other = peer != transport->rank().value;
    headers.sent.push_back(other ? static_cast<int>(kHeaderBytes) : 0);
  }
  headers.received = headers.sent;
  Places nowhere(headers);
  std::vector<Interval> intervals;
  for (int step = 0; step <= steps; ++step) {
    exchange(headers, nowhere);
    Interval interval{Clock::now(), {}};
    for (std::size_t i = 0; i < groups.size(); ++i) exchange(groups[i], places[i]);
    interval.end = Clock::now();
    if (step > 0) intervals.push_back(interval);
  }
  return intervals;
}

std::string json_list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

int run(const Trace& trace, int rounds, int steps) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<double> balanced;
  std::vector<double> alltoallv;
  std::vector<double> transport;
  double bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Bytes> groups;
    for (const Interval& each : run_balanced(trace, steps, groups)) {
      balanced.push_back(span_of(each.begin, each.end));
    }
    Alltoallv other(groups);
    bytes = other.bytes_sent();
    other.run();  // warms up
    for (int step = 0; step < steps; ++step) {
      const Interval each = other.run();
      alltoallv.push_back(span_of(each.begin, each.end));
    }
    for (const Interval& each : run_transport(other.groups(), steps)) {
      transport.push_back(span_of(each.begin, each.end));
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf(
        "{\"bytes_sent_max\": %.0f, \"balanced_seconds\": %s, \"alltoallv_seconds\": %s, "
        "\"transport_seconds\": %s}\n",
        bytes, json_list(balanced).c_str(), json_list(alltoallv).c_str(),
        json_list(transport).c_str());
  }
  return 0;
}

}  // namespace
}  // namespace sparsesync

int main(int count, char** words) {
  // Serialized: the world's thread and this one never call MPI at the same time.
  int level = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_SERIALIZED, &level);
  try {
    if (count != 4)
      throw sparsesync::InputError("usage: mpirun -np N alltoallv TRACE ROUNDS STEPS");
    sparsesync::run(sparsesync::Trace::open(words[1]), std::stoi(words[2]), std::stoi(words[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "alltoallv: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
