// The Python object of a session.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "python/bindings/arrays.h"
#include "python/bindings/closed.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_device.h"
#include "python/bindings/transports.h"
#include "sparsesync/memory.h"
#include "sparsesync/session.h"

namespace sparsesync::python {

/// Interval at which a wait checks for signals, such as control-C, and for a closed session.
inline constexpr std::chrono::milliseconds kSignals{100};

/// A Session::Ticket, and the number of its session.
struct PythonTicket {
  Session::Ticket ticket;
  std::uint64_t session = 0;
};

/// A Session, and the objects that must outlive its phases: the network, and the arrays that a
/// phase reads. The GIL guards all members except those below `calls_mutex_`. Calls that wait
/// release the GIL. The docstrings in session.cpp describe each call and its errors.
class PythonSession {
 public:
  /// @param device  device of gradients and results; null: the host
  PythonSession(TransportHandle& transport, double deadline_s, std::uint64_t seed, int threads,
                int trials, std::optional<std::int64_t> memory_bytes,
                std::shared_ptr<PythonDevice> device, bool as_submitted);
  ~PythonSession();
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  void close();
  bool closed() const { return closing_; }

  int rank() { return use().rank().value; }
  int size() { return use().size(); }
  std::int64_t step() { return use().step(); }

  std::size_t register_bucket(const BucketSpec& spec);
  void release_bucket(Index bucket);
  /// @param order  pairs of bucket and phase: "announce", "reduce" or "gather"
  void set_order(const std::vector<std::pair<Index, std::string>>& order, std::int64_t from_step);

  // Streams are the program's streams that write the arguments or use the results. The host ignores
  // them.

  /// @param rows  for each tensor None, or indices
  PythonTicket announce(Index bucket, const nanobind::sequence& rows,
                        const std::vector<StreamNumber>& streams);
  /// @param gradients  for each tensor None, a dense array, or (indices, values)
  PythonTicket reduce(Index bucket, const nanobind::sequence& gradients,
                      const std::vector<StreamNumber>& streams);
  /// Verifies that a bucket was registered with these tensors.
  /// @throws InputError if it was not
  void expect_tensors(Index bucket, const std::vector<TensorSpec>& tensors);
  /// Submits a reduce whose gradients a source computes.
  /// @param arrays  arrays that the source reads
  PythonTicket reduce_from(Index bucket, std::shared_ptr<GradientSource> source,
                           std::vector<ConstArray> arrays);
  PythonTicket gather(Index bucket) { return submit(bucket, Phase::gather, {}, {}); }
  void wait(const PythonTicket& ticket);

  /// Returns the number of rows of the result; nothing if it is dense.
  std::optional<Index> result_rows(Index bucket, Index tensor);
  nanobind::object result(Index bucket, Index tensor);
  void copy_result(Index bucket, Index tensor, nanobind::handle indices_given,
                   nanobind::handle values_given, StreamNumber stream);
  void write_dense(Index bucket, Index tensor, nanobind::handle given, StreamNumber stream);

  void barrier();
  void agree(const std::string& subject,
             const std::vector<std::pair<std::string, std::string>>& statement);
  nanobind::list all_gather(const nanobind::bytes& own);
  void broadcast(nanobind::handle given, int root);

  /// @param sum  one f64, in the memory of the session's device
  void keep_squares(Index bucket, Index tensors, nanobind::handle sum);
  bool has_squares(Index bucket);
  /// Returns for each row space the rows that this worker, and that all workers, touched in the
  /// last step.
  std::vector<std::pair<Index, Index>> observed(Index bucket);

  nanobind::dict counters();
  nanobind::dict bucket_use(Index bucket);
  std::int64_t non_finite(Index bucket) { return look_at(bucket).non_finite; }
  /// Returns the current scheme, whether it is final, and the predictions of `auto`.
  nanobind::dict choice(Index bucket);
  std::string device() const { return device_ == nullptr ? "cpu" : device_->name(); }
  std::int64_t memory_in_use() const { return workspaces().in_use(); }
  std::int64_t memory_high_water() const { return workspaces().high_water(); }
  std::int64_t allocations() const { return workspaces().allocations(); }
  std::int64_t pinned_in_use() const { return device_ ? device_->pinned().in_use() : 0; }
  std::int64_t pinned_high_water() const { return device_ ? device_->pinned().high_water() : 0; }

  /// Returns all sessions that are not destroyed yet.
  static std::set<PythonSession*>& open();
  /// Returns the number of threads of this process that are ending a session. Guarded by the GIL.
  static int ending();

  /// Runs a long operation on the session, without the GIL.
  template <typename Work>
  void under_way(const Work& work) {
    const UnderWay call(*this);
    const WithoutGil without_gil;
    work(*session_);
  }

  /// Returns the memory that arrays must be in.
  Place place() const {
    return {device_ == nullptr ? std::nullopt : std::optional(device_->number())};
  }
  /// Waits, without the GIL, until `is_over` returns true.
  /// @param is_over  called repeatedly; waits for kSignals at most
  /// @throws what a signal handler raises
  template <typename Look>
  void wait_until(const Look& is_over) {
    bool over = false;
    while (!over) {
      under_way([&](Session& session) { over = is_over(session); });
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    }
  }
  /// Runs `work` without the GIL, with an event after all work that streams have been given so far.
  /// @param streams  the program's streams; the event is null without streams, and on the host
  template <typename Work>
  void behind(const std::vector<StreamNumber>& streams, const Work& work) {
    const UnderWay call(*this);
    const std::shared_ptr<const Event> event = streams.empty() ? nullptr : event_behind(streams);
    const WithoutGil without_gil;
    work(event.get());
  }
  /// Returns an event after all work that the program's streams have been given so far; null on the
  /// host.
  std::shared_ptr<const Event> event_behind(const std::vector<StreamNumber>& streams);

  /// Returns the device; null on the host.
  const std::shared_ptr<PythonDevice>& on_device() const { return device_; }
  const std::shared_ptr<HostMemory>& host_memory() const { return memory_; }

 private:
  /// The objects that a phase reads until it is over.
  struct Arrays {
    std::vector<ConstIndices> indices;
    std::vector<ConstArray> values;
    std::shared_ptr<const Event> after = nullptr;  // on a GPU, the event that the phase waits for
    std::shared_ptr<GradientSource> source = nullptr;
  };
  struct Held {
    Session::Ticket ticket;
    Arrays arrays;
  };

  /// The state of a bucket when none of its phases was running.
  struct Seen {
    BucketUse use;
    std::int64_t index_bytes_sent = 0;
    std::int64_t non_finite = 0;
    std::string scheme;
    bool settled = false;
    std::vector<Prediction> expected;
  };

  struct Bucket {
    BucketSpec spec;
    bool released = false;
    // Number of submissions, and the last ticket, of each phase.
    std::array<std::int64_t, kPhases> submitted{};
    std::array<std::optional<Session::Ticket>, kPhases> last{};
    Seen seen{};
    std::optional<Array> squares = std::nullopt;  // array that its reduces write
  };

  /// A session, and all objects that it reads and writes: they are destroyed after it.
  struct Parts {
    std::shared_ptr<HostMemory> memory;
    std::shared_ptr<PythonDevice> device;
    std::deque<Bucket> buckets;
    std::vector<Held> held;
    std::shared_ptr<void> network;
    OfThisProcess<Session> session;
  };

  /// Marks a call that releases the GIL while it needs the session: close() waits for it. Made and
  /// destroyed with the GIL.
  class UnderWay {
   public:
    explicit UnderWay(PythonSession& of);
    ~UnderWay();
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    PythonSession& of_;
  };

  /// Ends a session and frees the objects that it alone used. Called without the GIL.
  static void end(OfThisProcess<Session>& session, PythonDevice* device,
                  std::shared_ptr<void>& network);
  /// Ends the session in a separate thread. Needed if close() is called in the session's thread,
  /// which the end of the session waits for.
  void end_elsewhere();
  void expect_open() const;
  /// Verifies that no other thread is registering a bucket, which may move the session's buckets.
  /// @throws ContractError if one is
  void expect_none_registers() const;
  Session& use();
  Bucket& at(Index bucket);
  const TensorSpec& tensor_at(Index number, Index tensor);
  /// Verify that a bucket, or a tensor of it, exists.
  /// @throws InputError if it does not
  void expect_bucket(Index bucket) { static_cast<void>(at(bucket)); }
  void expect_tensor(Index number, Index tensor) { static_cast<void>(tensor_at(number, tensor)); }
  const std::vector<TensorSpec>& one_for_each_tensor(Index bucket, const nanobind::sequence& given);
  TensorResult result_of(Index number, Index tensor);
  /// Returns the state of a bucket: while a phase is running, the state before its step.
  const Seen& look_at(Index number);

  const CountedMemory& workspaces() const { return device_ ? device_->memory() : *memory_; }
  /// Runs `work` with a context in which results are read.
  template <typename Work>
  void read(StreamNumber stream, const Work& work) {
    if (device_ == nullptr) {
      work(Context(*memory_));
    } else {
      device_->read_in(stream, work);
    }
  }

  Gradient gradient_of(const TensorSpec& tensor, nanobind::handle given, Arrays& held) const;
  PythonTicket submit(Index number, Phase phase, const std::vector<Gradient>& gradients,
                      Arrays arrays);
  void forget_what_is_final();

  const std::uint64_t number_;
  const Process process_;
  std::shared_ptr<void> network_;
  std::shared_ptr<PythonDevice> device_;  // null on the host
  std::shared_ptr<HostMemory> memory_;
  std::deque<Bucket> buckets_;
  std::vector<Held> held_;
  int registering_ = 0;   // running calls of register_bucket()
  bool closing_ = false;  // close() was called: later calls throw ClosedError

  // Guards the members up to `calls_close_`.
  std::mutex calls_mutex_;
  // Notified when a call, or close(), has ended.
  std::condition_variable calls_ended_;
  std::thread::id closer_;                // thread inside close(); default if there is none
  std::vector<std::thread::id> callers_;  // threads of calls that run without the GIL
  bool calls_close_ = false;              // whether the last running call has to close the session

  OfThisProcess<Session> session_;  // reads the members above, so it is destroyed first
  std::thread::id thread_;          // the session's thread
};

}  // namespace sparsesync::python
