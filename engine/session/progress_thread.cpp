#include "engine/session/progress_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "engine/support/log.h"
#include "kernels/base/threads.h"
#include "schemes/transport.h"
#include "sparsesync/errors.h"

namespace sparsesync {
namespace {

/// Whether all workers know of an error in work between steps, so that the session continues.
bool is_agreed(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const AgreementError&) {
  } catch (const InputError&) {
  } catch (const UnsupportedError&) {
  } catch (const RefusedError&) {
  } catch (const BudgetError&) {
  } catch (const std::bad_alloc&) {
  } catch (...) {
    return false;
  }
  return true;
}

/// Returns the error that ends the session on this worker. Error types that leave a session usable
/// are replaced, so that an error's type shows whether the session has ended.
std::exception_ptr ending_error(const std::exception_ptr& error, Rank rank,
                                const std::string& reason) {
  if (!is_agreed(error)) return error;
  try {
    throw_aborted(rank, reason);
  } catch (const AbortedError&) {
    return std::current_exception();
  }
}

}  // namespace

ProgressThread::ProgressThread(Transport& transport, std::chrono::milliseconds deadline,
                               bool as_submitted, RunPhase run_phase)
    : transport_(transport),
      deadline_(deadline),
      run_phase_(std::move(run_phase)),
      order_(as_submitted),
      thread_(start_thread("the progress thread of a session", [this] { run(); })) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// ---- The caller's side.

std::shared_ptr<SubmittedPhase> ProgressThread::submit(OrderEntry entry,
                                                       std::span<const Gradient> gradients,
                                                       const Event* after, GradientSource* source) {
  const std::lock_guard lock(mutex_);
  throw_if_over();
  order_.check(entry);
  std::shared_ptr<SubmittedPhase> phase = unused_phase();
  Submission& submission = submitted(entry).left_over();
  submission.input.gradients.assign(gradients.begin(), gradients.end());
  submission.input.after = after;
  submission.input.source = source;
  submitted(entry).push_left_over();
  submission.phase = phase;
  order_.note_submission(entry);
  ++queued_;
  changed_.notify_all();
  return phase;
}

void ProgressThread::wait(SubmittedPhase& phase) {
  if (const std::exception_ptr error = wait_until_over(phase)) std::rethrow_exception(error);
}

std::exception_ptr ProgressThread::wait_until_over(SubmittedPhase& phase) {
  expect_elsewhere();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase.done && !phase.held; });
  phase.waited = true;
  return phase.error;
}

bool ProgressThread::wait_for(SubmittedPhase& phase, std::chrono::milliseconds most) {
  if (most.count() > 0) expect_elsewhere();
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, most, [&] { return phase.done && !phase.held; })) return false;
  phase.waited = true;
  if (phase.error) std::rethrow_exception(phase.error);
  return true;
}

bool ProgressThread::is_final(const SubmittedPhase& phase) const {
  const std::lock_guard lock(mutex_);
  return phase.is_final || (over_ && phase.done);
}

void ProgressThread::between_steps(const std::function<void()>& work) {
  expect_elsewhere();
  std::unique_lock lock(mutex_);
  throw_if_over();
  Job job{&work, false, nullptr};
  jobs_.push_back(&job);
  changed_.notify_all();
  changed_.wait(lock, [&] { return job.done; });
  if (job.error) std::rethrow_exception(job.error);
}

std::int64_t ProgressThread::step() const {
  const std::lock_guard lock(mutex_);
  return order_.step();
}

bool ProgressThread::hold_gradients(OrderEntry running) {
  const std::lock_guard lock(mutex_);
  const auto before = phases_before(running);
  const auto was_waited = [](const auto& phase) { return phase != nullptr && phase->waited; };
  if (std::any_of(before.begin(), before.end(), was_waited)) return false;
  for (const std::shared_ptr<SubmittedPhase>& phase : before) {
    if (phase != nullptr) phase->held = true;
  }
  return true;
}

void ProgressThread::add_bucket(const std::string& name, bool announces) {
  const std::lock_guard lock(mutex_);
  order_.add(name, announces);
  submitted_.resize(submitted_.size() + kPhases);
  last_.resize(submitted_.size());
}

void ProgressThread::remove_bucket(BucketId bucket) {
  const std::lock_guard lock(mutex_);
  order_.remove(bucket);
}

void ProgressThread::set_order(const std::vector<OrderEntry>& order, std::int64_t from_step) {
  const std::lock_guard lock(mutex_);
  order_.check(order, from_step);
  order_.replace(order, from_step);
}

void ProgressThread::expect_elsewhere() const {
  if (std::this_thread::get_id() != id()) return;
  throw ContractError("a session's own thread cannot wait for the session: it would wait forever");
}

void ProgressThread::throw_if_over() const {
  if (over_) std::rethrow_exception(over_);
}

/// Returns a phase state that no caller uses any more, reset.
std::shared_ptr<SubmittedPhase> ProgressThread::unused_phase() {
  for (const std::shared_ptr<SubmittedPhase>& phase : phases_) {
    if (phase.use_count() > 1) continue;
    *phase = {};
    return phase;
  }
  return phases_.emplace_back(std::make_shared<SubmittedPhase>());
}

Queue<ProgressThread::Submission>& ProgressThread::submitted(OrderEntry entry) {
  return submitted_[entry.bucket.value * kPhases + static_cast<std::size_t>(entry.phase)];
}

/// Returns the earlier phases of the bucket's current step.
std::span<const std::shared_ptr<SubmittedPhase>> ProgressThread::phases_before(
    OrderEntry entry) const {
  return std::span(last_).subspan(entry.bucket.value * kPhases,
                                  static_cast<std::size_t>(entry.phase));
}

void ProgressThread::release_held(OrderEntry running) {
  for (const std::shared_ptr<SubmittedPhase>& phase : phases_before(running)) {
    if (phase != nullptr) phase->held = false;
  }
}

// ---- The thread.

void ProgressThread::run() {
  std::unique_lock lock(mutex_);
  bool blocked = false;  // work waits for a phase that was not submitted
  Clock::time_point blocked_since;
  while (!stopping_) {
    if (over_) {
      changed_.wait(lock);
    } else if (order_.between_steps() && queued_ == 0 && !jobs_.empty()) {
      run_job(lock);
    } else if (!order_.empty() && !submitted(order_.next()).empty()) {
      blocked = false;
      run_next(lock);
    } else if (queued_ == 0 && jobs_.empty()) {
      blocked = false;
      changed_.wait(lock);
    } else {
      if (!std::exchange(blocked, true)) blocked_since = Clock::now();
      const Clock::time_point until = blocked_since + deadline_;
      if (Clock::now() < until) {
        changed_.wait_until(lock, until);
      } else {
        fail(lock, missing_predecessor());
      }
    }
  }
  end_session(std::make_exception_ptr(ContractError("the session was destroyed")));
}

/// Runs the next phase of the order.
void ProgressThread::run_next(std::unique_lock<std::mutex>& lock) {
  const OrderEntry entry = order_.next();
  std::swap(running_, submitted(entry).front());
  submitted(entry).pop();
  --queued_;
  lock.unlock();
  PhaseOutcome outcome;
  try {
    outcome = run_phase_(entry, running_.input);
  } catch (...) {
    outcome = {std::current_exception(), true};
  }
  lock.lock();
  release_held(entry);
  if (outcome.fatal) fail(lock, outcome.error);
  running_.phase->error = outcome.fatal ? over_ : outcome.error;
  running_.phase->done = true;
  running_.phase->is_final = outcome.is_final;
  if (outcome.is_final) {
    for (const std::shared_ptr<SubmittedPhase>& phase : phases_before(entry)) {
      if (phase != nullptr) phase->is_final = true;
    }
  }
  last_[entry.bucket.value * kPhases + static_cast<std::size_t>(entry.phase)] =
      std::move(running_.phase);
  running_.phase = nullptr;
  order_.advance();
  changed_.notify_all();
}

void ProgressThread::run_job(std::unique_lock<std::mutex>& lock) {
  Job& job = *jobs_.front();
  jobs_.pop_front();
  lock.unlock();
  std::exception_ptr error;
  try {
    (*job.work)();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error && !is_agreed(error)) fail(lock, error);
  job.error = error;
  job.done = true;
  changed_.notify_all();
}

/// Ends the session on this worker and notifies the others.
void ProgressThread::fail(std::unique_lock<std::mutex>& lock, const std::exception_ptr& error) {
  std::string reason = "unknown failure";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    reason = exception.what();
  } catch (...) {
  }
  lock.unlock();
  transport_.abort(reason);
  log(LogLevel::info,
      fmt::format("worker {}: the session ended: {}", transport_.rank().value, reason));
  lock.lock();
  end_session(ending_error(error, transport_.rank(), reason));
}

/// Ends all waits, current and future, with `error`.
void ProgressThread::end_session(const std::exception_ptr& error) {
  over_ = error;
  for (Queue<Submission>& queue : submitted_) {
    for (; !queue.empty(); queue.pop()) *queue.front().phase = {true, error};
  }
  for (Job* job : jobs_) {
    job->done = true;
    job->error = error;
  }
  jobs_.clear();
  queued_ = 0;
  changed_.notify_all();
}

std::exception_ptr ProgressThread::missing_predecessor() const {
  return std::make_exception_ptr(
      OrderError(fmt::format("worker {}: other work waits for the {}, which was not submitted "
                             "within {} s: {}",
                             transport_.rank().value, order_.describe(order_.awaited()),
                             static_cast<double>(deadline_.count()) / 1000, order_.advice())));
}

}  // namespace sparsesync
