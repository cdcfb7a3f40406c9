// The progress thread of a session. It runs phases in the background in the order that all workers
// agreed on, and runs collective work between steps.
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

/// State of a submitted phase. Guarded by the progress thread's mutex.
struct SubmittedPhase {
  bool done = false;
  std::exception_ptr error;  // null on success
  bool waited = false;       // whether a caller has waited for it
  bool held = false;         // whether it is being run again: waits continue
  bool is_final = false;     // whether it will never run again
};

/// Makes all calls of a session's transport. If an error is not known to all workers, the session
/// ends: the other workers are notified, and every later call throws that error. Functions that
/// wait for this thread throw ContractError if they are called in it, for example by a transport.
class ProgressThread {
 public:
  /// Inputs of a phase.
  struct Input {
    std::vector<Gradient> gradients;   // the step's gradients, or the rows that it announces
    const Event* after = nullptr;      // event that the phase waits for; null: none
    GradientSource* source = nullptr;  // provides the gradients; null: `gradients` has them
  };
  /// Runs one phase of a bucket. Called in the progress thread. An exception ends the session.
  using RunPhase = std::function<PhaseOutcome(OrderEntry entry, const Input& input)>;

  /// Starts the thread.
  /// @param transport     outlives the thread
  /// @param deadline      timeout for the submission of the next phase, while other work waits
  /// @param as_submitted  SessionOptions::as_submitted
  ProgressThread(Transport& transport, std::chrono::milliseconds deadline, bool as_submitted,
                 RunPhase run_phase);
  /// Waits for the running phase, if there is one. Phases that have not begun are abandoned.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // ---- The caller's side.

  /// Queues a phase. The thread runs it when its turn in the order comes.
  /// @param gradients, after, source  the members of Input
  /// @throws InputError if the bucket has no such phase
  std::shared_ptr<SubmittedPhase> submit(OrderEntry entry, std::span<const Gradient> gradients,
                                         const Event* after, GradientSource* source = nullptr);
  /// Waits until a phase ends.
  /// @throws the phase's error
  void wait(SubmittedPhase& phase);
  /// Waits until a phase ends, and returns its error; null on success.
  std::exception_ptr wait_until_over(SubmittedPhase& phase);
  /// Waits until a phase ends, or until the timeout `most`.
  /// @return whether the phase has ended
  /// @throws the phase's error
  bool wait_for(SubmittedPhase& phase, std::chrono::milliseconds most);
  /// Whether a phase has ended and will never run again, so that its inputs are no longer needed.
  bool is_final(const SubmittedPhase& phase) const;
  /// Runs `work` in the thread between two steps, and waits for it. All submitted phases of a step
  /// run first.
  /// @throws what `work` throws
  void between_steps(const std::function<void()>& work);
  /// Returns the number of complete steps.
  std::int64_t step() const;
  /// Returns the id of the thread that runs phases.
  std::thread::id id() const { return thread_.get_id(); }

  // ---- For the running phase.

  /// Holds the gradients of the step's earlier phases, unless a caller has waited for one of these
  /// phases. Waits for held phases continue until this phase ends.
  /// @return whether the gradients are held
  bool hold_gradients(OrderEntry running);

  // ---- For the work between steps.

  const PhaseOrder& order() const { return order_; }
  /// Appends the phases of a new bucket to the order.
  void add_bucket(const std::string& name, bool announces);
  /// Removes the phases of a bucket from the order.
  void remove_bucket(BucketId bucket);
  /// Replaces the order from a step on.
  /// @throws InputError if the order is not valid: see PhaseOrder::check
  void set_order(const std::vector<OrderEntry>& order, std::int64_t from_step);

 private:
  /// A submitted phase that has not begun.
  struct Submission {
    Input input;
    std::shared_ptr<SubmittedPhase> phase;
  };
  /// Work between steps, and its outcome for the caller that waits.
  struct Job {
    const std::function<void()>* work;
    bool done;
    std::exception_ptr error;
  };

  /// @throws ContractError if the caller is the progress thread
  void expect_elsewhere() const;

  // With the lock held.
  void throw_if_over() const;
  std::shared_ptr<SubmittedPhase> unused_phase();
  Queue<Submission>& submitted(OrderEntry entry);
  std::span<const std::shared_ptr<SubmittedPhase>> phases_before(OrderEntry entry) const;
  void release_held(OrderEntry running);
  void end_session(const std::exception_ptr& error);
  std::exception_ptr missing_predecessor() const;

  // In the thread. Phases and jobs run without the lock.
  void run();
  void run_next(std::unique_lock<std::mutex>& lock);
  void run_job(std::unique_lock<std::mutex>& lock);
  void fail(std::unique_lock<std::mutex>& lock, const std::exception_ptr& error);

  Transport& transport_;
  const std::chrono::milliseconds deadline_;
  const RunPhase run_phase_;
  Submission running_;  // used by the thread only

  mutable std::mutex mutex_;  // guards the members below, unless stated otherwise
  std::condition_variable changed_;
  // Only the thread changes it, submissions aside, and may read the rest without the lock.
  PhaseOrder order_;
  std::vector<Queue<Submission>> submitted_;  // [bucket · phases + phase]
  // [bucket · phases + phase], of the last step; null if there was none
  std::vector<std::shared_ptr<SubmittedPhase>> last_;
  std::int64_t queued_ = 0;  // submissions in all queues
  std::deque<Job*> jobs_;
  std::vector<std::shared_ptr<SubmittedPhase>> phases_;  // in use by callers, or free for reuse
  std::exception_ptr over_;
  bool stopping_ = false;
  std::thread thread_;  // last: uses all members above
};

}  // namespace sparsesync
