// Runs a body as each of n workers, in threads of one process, and collects exceptions.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/transport/worker_threads.h"
#include "sparsesync/memory.h"
#include "sparsesync/session.h"
#include "sparsesync/transports/local.h"
#include "tests/support/devices.h"

namespace sparsesync::testing {

/// Long enough for a loaded machine. Tests that wait for a deadline use a shorter one.
inline constexpr std::chrono::milliseconds kDeadline{120'000};

/// The connection of the workers of a test.
struct WorkersUnderTest {
  using Body = std::function<void(std::unique_ptr<Transport>&)>;
  std::string name;
  /// Runs body(transport) as each of n workers. Returns the exception of each rank, or null.
  std::function<std::vector<std::exception_ptr>(int size, const Body& body)> run;
  /// Returns a counter that all workers share, whatever connects them. It is 0 when a run begins.
  std::function<std::atomic<int>&()> counter;
  /// Returns a number that a worker sets and all workers can read after a run.
  std::function<std::uint64_t&(int rank)> note;
  bool has_all_reduce = false;
  /// Whether an abort reaches only workers that wait for a worker that knows of it.
  bool relays_aborts = false;
};

/// Runs body(transport) in a thread for each worker. Returns the exception of each rank, or null. A
/// transport is destroyed when its body returns, unless the body moved from it.
inline std::vector<std::exception_ptr> run_transports(
    LocalNetwork& network, int size, const std::function<void(std::unique_ptr<Transport>&)>& body) {
  std::vector<std::unique_ptr<Transport>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(network.join(Rank{rank}));
  return run_in_threads(std::move(ends),
                        [&](std::unique_ptr<Transport>& end, std::size_t) { body(end); });
}

/// Returns workers that are threads of this process.
/// @param run  runs a body as each of n workers
inline WorkersUnderTest workers_in_threads(const std::string& name,
                                           const decltype(WorkersUnderTest::run)& run) {
  struct Shared {
    std::atomic<int> counter = 0;
    std::array<std::uint64_t, 64> notes{};
  };
  const auto shared = std::make_shared<Shared>();
  return {
      name,
      [=](int size, const WorkersUnderTest::Body& body) {
        shared->counter = 0;
        return run(size, body);
      },
      [=]() -> std::atomic<int>& { return shared->counter; },
      [=](int rank) -> std::uint64_t& { return shared->notes.at(static_cast<std::size_t>(rank)); }};
}

/// Returns workers that are threads of this process, connected by memory.
/// @param workers_per_node  node size that the network reports; none: all workers on one node
inline WorkersUnderTest local_workers(const std::string& name, LocalLink link,
                                      std::optional<int> workers_per_node = std::nullopt) {
  return workers_in_threads(name, [=](int size, const WorkersUnderTest::Body& body) {
    LocalNetwork network(size, link, workers_per_node);
    return run_transports(network, size, body);
  });
}

/// Options with which a worker starts its session.
struct SessionStart {
  SessionOptions options{kDeadline, 1};
  std::optional<std::int64_t> budget = std::nullopt;  // memory budget in bytes
};

/// Runs body(session, memory) as each worker, on the device under test. Each worker has separate
/// memory for its workspaces and starts with `start`(rank).
template <typename Start>
requires std::is_invocable_r_v<SessionStart, const Start&, Rank> std::vector<std::exception_ptr>
run_sessions(const WorkersUnderTest& workers, int size,
             const std::function<void(Session&, HostMemory&)>& body, const Start& start) {
  return workers.run(size, [&](std::unique_ptr<Transport>& transport) {
    SessionStart own = start(transport->rank());
    HostMemory words;  // memory on the host, because workspaces may be on the device
    TestMemory memory(own.budget);
    const DeviceUnderTest device(false, &memory);
    if (device.device_stream() != nullptr) {
      own.options.device = OnDevice{device.device_stream(), &memory, &words};
    }
    Session session(std::move(transport), on_cuda() ? words : memory, own.options);
    body(session, memory);
  });
}

/// Does the same with equal options for all workers.
inline std::vector<std::exception_ptr> run_sessions(
    const WorkersUnderTest& workers, int size,
    const std::function<void(Session&, HostMemory&)>& body, SessionOptions options = {kDeadline, 1},
    std::optional<std::int64_t> budget = std::nullopt) {
  return run_sessions(workers, size, body, [&](Rank) { return SessionStart{options, budget}; });
}

/// Does the same with a thread for each worker.
inline std::vector<std::exception_ptr> run_sessions(
    int size, const std::function<void(Session&, HostMemory&)>& body,
    SessionOptions options = {kDeadline, 1}, std::optional<std::int64_t> budget = std::nullopt) {
  return run_sessions(local_workers("local", {}), size, body, options, budget);
}

/// Returns the message of an error, or "" for none.
inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

/// Returns whether the error is an E or derived from it.
template <typename E>
bool is(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const E&) {
    return true;
  } catch (...) {
    return false;
  }
}

inline void expect_no_errors(const std::vector<std::exception_ptr>& errors) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_EQ(text_of(errors[rank]), "") << "worker " << rank;
  }
}

}  // namespace sparsesync::testing
