// The progress thread of a session: runs phases in the background, in the order that all workers
// agreed on, and what all of them do together between two steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/session/phase_order.h"
#include "engine/session/queue.h"
#include "engine/session/run_phase.h"
#include "kernels/base/device_stream.h"
#include "schemes/bucket.h"
#include "sparsesync/session.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// A phase that was submitted, as who waits for it sees it. Guarded by the thread's lock.
struct SubmittedPhase {
  bool done = false;
  std::exception_ptr error;  // null where it went well
  bool waited = false;       // whether somebody knows that it is done
  bool held = false;         // whether it is run again: who waits for it does so on
  bool is_final = false;     // whether it is never run again
};

/// Makes all calls of a session's transport. After an error that not all workers know of, and go on
/// after, the session is over: the others are told, and every call throws that error. What waits
/// for the thread throws ContractError where it is called in it, as by a transport.
class ProgressThread {
 public:
  /// What a phase is given.
  struct Input {
    std::vector<Gradient> gradients;   // of the step, or the rows that it announces
    const Event* after = nullptr;      // what it waits for; null: nothing
    GradientSource* source = nullptr;  // gives the gradients; null: they are there
  };
  /// Runs one phase of a bucket; called in the thread. What it throws ends the session.
  using RunPhase = std::function<PhaseOutcome(OrderEntry entry, const Input& input)>;

  /// @param transport  outlives the thread
  /// @param deadline   for a phase's predecessor to be submitted
  ProgressThread(Transport& transport, std::chrono::milliseconds deadline, RunPhase run_phase);
  /// Waits for the phase that runs, if one does; others are given up.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // ---- The caller's side.

  /// Puts a phase where the thread finds it when the order comes to it.
  /// @param gradients, after, source  as Input has them
  /// @throws InputError if the bucket has no such phase
  std::shared_ptr<SubmittedPhase> submit(OrderEntry entry, std::span<const Gradient> gradients,
                                         const Event* after, GradientSource* source = nullptr);
  /// Waits until a phase is over.
  /// @throws what it ended with
  void wait(SubmittedPhase& phase);
  /// The same, but returns what it ended with.
  std::exception_ptr wait_until_over(SubmittedPhase& phase);
  /// The same, but waits for so long at most.
  /// @return whether it is over
  bool wait_for(SubmittedPhase& phase, std::chrono::milliseconds most);
  /// Whether a phase is over and never run again: what it was given is not needed any more.
  bool is_final(const SubmittedPhase& phase) const;
  /// Runs `work` in the thread, once nothing that was submitted is left of a step, and waits for
  /// it.
  /// @throws what `work` throws
  void between_steps(const std::function<void()>& work);
  /// Steps that are complete.
  std::int64_t step() const;
  /// The thread that phases run in.
  std::thread::id id() const { return thread_.get_id(); }

  // ---- For the phase that runs.

  /// Whether nobody has waited for the phases of the step before this one, of the same bucket:
  /// nobody does then until this phase is over.
  bool hold_gradients(OrderEntry running);

  // ---- For the work between steps.

  const PhaseOrder& order() const { return order_; }
  /// Adds the phases of a new bucket at the end of the order.
  void add_bucket(const std::string& name, bool announces);
  /// Takes the phases of a bucket out of the order.
  void remove_bucket(BucketId bucket);
  /// Replaces the order from a step on.
  /// @throws InputError if it is not a whole one (PhaseOrder::check)
  void set_order(const std::vector<OrderEntry>& order, std::int64_t from_step);

 private:
  /// A phase that waits for its turn.
  struct Submission {
    Input input;
    std::shared_ptr<SubmittedPhase> phase;
  };
  /// Work between steps, and who waits for it.
  struct Job {
    const std::function<void()>* work;
    bool done;
    std::exception_ptr error;
  };

  /// @throws ContractError in the thread itself
  void expect_elsewhere() const;

  // With the lock held.
  void throw_if_over() const;
  std::shared_ptr<SubmittedPhase> unused_phase();
  Queue<Submission>& submitted(OrderEntry entry);
  std::span<const std::shared_ptr<SubmittedPhase>> phases_before(OrderEntry entry) const;
  void release_held(OrderEntry running);
  void end_session(const std::exception_ptr& error);
  std::exception_ptr missing_predecessor() const;

  // In the thread; the lock is open while there is work.
  void run();
  void run_next(std::unique_lock<std::mutex>& lock);
  void run_job(std::unique_lock<std::mutex>& lock);
  void fail(std::unique_lock<std::mutex>& lock, const std::exception_ptr& error);

  Transport& transport_;
  const std::chrono::milliseconds deadline_;
  const RunPhase run_phase_;
  Submission running_;  // of the thread alone

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  PhaseOrder order_;  // changed by the thread alone, which may read it without the lock
  std::vector<Queue<Submission>> submitted_;  // [bucket · phases + phase]
  // [bucket · phases + phase], of the last step; null where there was none
  std::vector<std::shared_ptr<SubmittedPhase>> last_;
  std::int64_t queued_ = 0;  // submissions in all queues
  std::deque<Job*> jobs_;
  std::vector<std::shared_ptr<SubmittedPhase>> phases_;  // held by others, or to be used again
  std::exception_ptr over_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sparsesync
