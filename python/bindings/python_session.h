// A session as Python holds one.
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

/// How often a wait looks whether a signal came, such as control-C, or the session was closed.
inline constexpr std::chrono::milliseconds kSignals{100};

/// A Session::Ticket, and of which session it is.
struct PythonTicket {
  Session::Ticket ticket;
  std::uint64_t session = 0;
};

/// A Session with what Python has to keep for it: its network, and the arrays that a phase reads.
/// All of it is guarded by the GIL, but for `calls_`. What waits gives up the GIL. What each call
/// does, and throws, is told to Python's users, by bind_session().
class PythonSession {
 public:
  /// @param device  null: the host
  PythonSession(TransportHandle& transport, double deadline_s, std::uint64_t seed, int threads,
                int trials, std::optional<std::int64_t> memory_bytes,
                std::shared_ptr<PythonDevice> device);
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

  // Streams are those of the program that write what is given, or read and write what is asked for;
  // of no meaning on the host.

  /// @param rows  of each tensor: None, or indices
  PythonTicket announce(Index bucket, const nanobind::sequence& rows,
                        const std::vector<StreamNumber>& streams);
  /// @param gradients  of each tensor: None, a dense array, or (indices, values)
  PythonTicket reduce(Index bucket, const nanobind::sequence& gradients,
                      const std::vector<StreamNumber>& streams);
  /// @throws InputError if the bucket was registered with others
  void expect_tensors(Index bucket, const std::vector<TensorSpec>& tensors);
  /// @param arrays  that the source reads
  PythonTicket reduce_from(Index bucket, std::shared_ptr<GradientSource> source,
                           std::vector<ConstArray> arrays);
  PythonTicket gather(Index bucket) { return submit(bucket, Phase::gather, {}, {}); }
  void wait(const PythonTicket& ticket);

  /// Rows of the result; nothing where it is dense.
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

  /// @param sum  one f64, where the session works
  void keep_squares(Index bucket, Index tensors, nanobind::handle sum);
  bool has_squares(Index bucket);
  /// Of each row space: rows that this worker touched in the last step, and all of them.
  std::vector<std::pair<Index, Index>> observed(Index bucket);

  nanobind::dict counters();
  nanobind::dict bucket_use(Index bucket);
  std::int64_t non_finite(Index bucket) { return look_at(bucket).non_finite; }
  /// Which scheme is at work, whether it is settled, and what `auto` expects of each.
  nanobind::dict choice(Index bucket);
  std::string device() const { return device_ == nullptr ? "cpu" : device_->name(); }
  std::int64_t memory_in_use() const { return workspaces().in_use(); }
  std::int64_t memory_high_water() const { return workspaces().high_water(); }
  std::int64_t allocations() const { return workspaces().allocations(); }
  std::int64_t pinned_in_use() const { return device_ ? device_->pinned().in_use() : 0; }
  std::int64_t pinned_high_water() const { return device_ ? device_->pinned().high_water() : 0; }

  /// Those that were not destroyed yet.
  static std::set<PythonSession*>& open();
  /// Threads of this process that end a session. Guarded by the GIL.
  static int ending();

  /// Does what takes long, without the GIL.
  template <typename Work>
  void under_way(const Work& work) {
    const UnderWay call(*this);
    const WithoutGil without_gil;
    work(*session_);
  }

  /// Where arrays are.
  Place place() const {
    return {device_ == nullptr ? std::nullopt : std::optional(device_->number())};
  }
  /// Waits, without the GIL, until `is_over` says so, which waits for kSignals at most.
  /// @throws what the handler of a signal raises
  template <typename Look>
  void wait_until(const Look& is_over) {
    bool over = false;
    while (!over) {
      under_way([&](Session& session) { over = is_over(session); });
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    }
  }
  /// Does `work` without the GIL.
  /// @param streams  of the program; `work` is given an event behind what they were given so far,
  ///                 null where there are none, and on the host
  template <typename Work>
  void behind(const std::vector<StreamNumber>& streams, const Work& work) {
    const UnderWay call(*this);
    const std::shared_ptr<const Event> event = streams.empty() ? nullptr : event_behind(streams);
    const WithoutGil without_gil;
    work(event.get());
  }
  /// An event behind what streams of the program were given so far; null on the host.
  std::shared_ptr<const Event> event_behind(const std::vector<StreamNumber>& streams);

  /// Null on the host.
  const std::shared_ptr<PythonDevice>& on_device() const { return device_; }
  const std::shared_ptr<HostMemory>& host_memory() const { return memory_; }

 private:
  /// What a phase reads until it is over.
  struct Arrays {
    std::vector<ConstIndices> indices;
    std::vector<ConstArray> values;
    std::shared_ptr<const Event> after = nullptr;  // on a GPU, what the phase waits for
    std::shared_ptr<GradientSource> source = nullptr;
  };
  struct Held {
    Session::Ticket ticket;
    Arrays arrays;
  };

  /// What a bucket was at when none of its phases ran.
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
    // How often each phase was submitted, and last with which ticket.
    std::array<std::int64_t, kPhases> submitted{};
    std::array<std::optional<Session::Ticket>, kPhases> last{};
    Seen seen{};
    std::optional<Array> squares = std::nullopt;  // that its reduces write
  };

  /// A session with all that it reads and writes, which goes after it.
  struct Parts {
    std::shared_ptr<HostMemory> memory;
    std::shared_ptr<PythonDevice> device;
    std::deque<Bucket> buckets;
    std::vector<Held> held;
    std::shared_ptr<void> network;
    OfThisProcess<Session> session;
  };

  /// A call that gives up the GIL while it needs the session: who closes it waits. Made and
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

  /// Ends a session and gives back what was for it alone. Called without the GIL.
  static void end(OfThisProcess<Session>& session, PythonDevice* device,
                  std::shared_ptr<void>& network);
  /// Ends the session in a thread of its own: it is closed in its thread, which its end waits for.
  void end_elsewhere();
  void expect_open() const;
  /// Buckets stand elsewhere after another thread has registered one.
  void expect_none_registers() const;
  Session& use();
  Bucket& at(Index bucket);
  const TensorSpec& tensor_at(Index number, Index tensor);
  /// @throws InputError unless there is such a bucket, or such a tensor of it
  void expect_bucket(Index bucket) { static_cast<void>(at(bucket)); }
  void expect_tensor(Index number, Index tensor) { static_cast<void>(tensor_at(number, tensor)); }
  const std::vector<TensorSpec>& one_for_each_tensor(Index bucket, const nanobind::sequence& given);
  TensorResult result_of(Index number, Index tensor);
  /// What can be told of a bucket now: where a phase runs, of before its step.
  const Seen& look_at(Index number);

  const CountedMemory& workspaces() const { return device_ ? device_->memory() : *memory_; }
  /// Does `work` with a context in which results are read.
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
  int registering_ = 0;   // calls of register_bucket()
  bool closing_ = false;  // nobody calls it any more

  std::mutex calls_mutex_;                // guards what follows
  std::condition_variable calls_ended_;   // or who closes it has
  std::thread::id closer_;                // the thread that closes it; none else
  std::vector<std::thread::id> callers_;  // of calls that are under way without the GIL
  bool calls_close_ = false;              // the last of them is to close it

  OfThisProcess<Session> session_;  // reads what stands above
  std::thread::id thread_;          // of the session
};

}  // namespace sparsesync::python
