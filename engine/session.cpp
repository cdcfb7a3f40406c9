#include "engine/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "engine/agreement.h"
#include "engine/auto_choice.h"
#include "engine/log.h"
#include "engine/phase_order.h"
#include "engine/phase_run.h"
#include "engine/probe.h"
#include "engine/queue.h"
#include "engine/registered_bucket.h"
#include "engine/registration.h"
#include "kernels/threads.h"

namespace sparsesync {
struct Session::Ticket::State {
  bool done = false;
  std::exception_ptr error;
};

/// The state behind a Session, and the thread that makes all calls of the transport.
class Session::Engine {
 public:
  Engine(std::unique_ptr<Transport> transport, MemoryResource& memory, SessionOptions options)
      : transport_(std::move(transport)),
        threads_(options.threads),
        context_(memory, threads_),
        options_(options),
        control_(*transport_, context_, options.deadline),
        thread_([this] { run(); }) {}

  ~Engine() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    // Leaves before the buckets go: others may still read messages from their memory.
    transport_.reset();
  }

  Transport& transport() { return *transport_; }

  /// Runs `work` in the progress thread, between steps, and hands on what it throws.
  void between_steps(const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    throw_if_over();
    Job job{&work, false, nullptr};
    jobs_.push_back(&job);
    changed_.notify_all();
    changed_.wait(lock, [&] { return job.done; });
    if (job.error) std::rethrow_exception(job.error);
  }

  BucketId register_bucket(const BucketSpec& spec) {
    BucketId id;
    between_steps([&] {
      const ControlChannel::Statement statement = statement_of(spec, options_.seed);
      control_.agree(fmt::format("bucket '{}'", spec.name), statement);
      auto registered = std::make_unique<Entry>(make_agreed(
          *transport_, control_, context_, spec, options_.seed, signature_of(statement)));
      if (spec.scheme == kAuto) {
        registered->choice.emplace(registered->bucket,
                                   agreed_ground(control_, {network(), transport_->has_all_reduce(),
                                                            options_.workspace, options_.trials}));
      }
      const std::lock_guard lock(mutex_);
      id.value = buckets_.size();
      buckets_.push_back(std::move(registered));
      order_.add(spec.name, spec.announce);
    });
    return id;
  }

  void set_order(const std::vector<OrderEntry>& order, std::int64_t from_step) {
    between_steps([&] {
      // The progress thread alone changes the order: it may read it without the lock.
      ControlChannel::Statement statement{
          {"the first step", fmt::format("{}", from_step)},
          {"the step that is next", fmt::format("{}", order_.step())}};
      for (std::size_t i = 0; i < order.size(); ++i) {
        statement.emplace_back(fmt::format("entry {}", i), order_.describe(order[i]));
      }
      control_.agree("the order of phases", statement);
      order_.check(order, from_step);
      const std::lock_guard lock(mutex_);
      order_.replace(order, from_step);
    });
  }

  Ticket submit(BucketId id, Phase phase, std::span<const Gradient> gradients) {
    const std::lock_guard lock(mutex_);
    throw_if_over();
    Entry& entry = at(id);
    if (phase == Phase::announce && !entry.bucket.spec().announce) {
      throw InputError(fmt::format("bucket '{}' does not announce: register it as one that does",
                                   entry.bucket.spec().name));
    }
    Ticket ticket;
    ticket.state_ = unused_ticket();
    Submission& submission = entry.queue(phase).push_left_over();
    submission.gradients.assign(gradients.begin(), gradients.end());
    submission.ticket = ticket.state_;
    ++queued_;
    changed_.notify_all();
    return ticket;
  }

  void wait(const Ticket& ticket) {
    std::unique_lock lock(mutex_);
    if (ticket.state_ == nullptr) throw ContractError("wait for a ticket that names no phase");
    changed_.wait(lock, [&] { return ticket.state_->done; });
    if (ticket.state_->error) std::rethrow_exception(ticket.state_->error);
  }

  TensorResult result(BucketId id, std::size_t tensor) {
    const std::lock_guard lock(mutex_);
    return at(id).bucket.result(tensor);
  }

  void adapt(BucketId id) {
    between_steps([&] {
      Entry& entry = entry_of(id);
      if (entry.choice) {
        if (entry.choice->awaits_review()) return entry.choice->review(control_);
        return entry.choice->want_review();
      }
      RegisteredBucket& bucket = entry.bucket;
      std::string own;
      for (const RegisteredBucket::Observed& space : bucket.observed()) {
        own += fmt::format("{} {} ", space.touched, space.united);
      }
      const std::vector<std::string> all = control_.all_gather(own);
      Statistics statistics(bucket.observed().size());
      std::string agreed;
      for (const std::string& text : all) {
        agreed += text;
        std::size_t at = 0;
        for (SpaceStatistics& space : statistics) {
          const double touched = take_number(text, at);
          const double united = take_number(text, at);
          space.touched_mean += touched / static_cast<double>(all.size());
          space.touched_max = std::max(space.touched_max, touched);
          space.united = std::max(space.united, united);
        }
      }
      bucket.scheme().adapt(statistics);
      bucket.signature = signature_after(bucket.signature, agreed);
    });
  }

  void barrier() {
    between_steps([&] { control_.all_gather({}); });
  }

  std::int64_t step() const {
    const std::lock_guard lock(mutex_);
    return order_.step();
  }

  std::vector<Prediction> predictions(BucketId id) {
    const std::lock_guard lock(mutex_);
    const Entry& entry = at(id);
    return entry.choice ? entry.choice->predictions() : std::vector<Prediction>{};
  }

  bool settled(BucketId id) {
    const std::lock_guard lock(mutex_);
    const Entry& entry = at(id);
    return !entry.choice || entry.choice->settled();
  }

  Way chosen(BucketId id) {
    const std::lock_guard lock(mutex_);
    return at(id).bucket.chosen();
  }

  std::vector<SpaceChoice> choices(BucketId id) {
    const std::lock_guard lock(mutex_);
    return at(id).bucket.choices();
  }

  const Scheme& scheme(BucketId id) {
    const std::lock_guard lock(mutex_);
    return at(id).bucket.scheme();
  }

  std::int64_t non_finite(BucketId id) {
    const std::lock_guard lock(mutex_);
    return at(id).bucket.non_finite();
  }

  std::int64_t index_bytes_sent(BucketId id) {
    const std::lock_guard lock(mutex_);
    return at(id).bucket.index_bytes_sent();
  }

 private:
  struct Submission {
    std::vector<Gradient> gradients;
    std::shared_ptr<Ticket::State> ticket;
  };

  /// A bucket and its phases that wait.
  struct Entry {
    explicit Entry(std::unique_ptr<RegisteredBucket> registered)
        : owned(std::move(registered)), bucket(*owned) {}
    std::unique_ptr<RegisteredBucket> owned;
    RegisteredBucket& bucket;
    std::optional<AutoChoice> choice;  // where the scheme is `auto`
    std::array<Queue<Submission>, kPhases> queues;
    Queue<Submission>& queue(Phase phase) { return queues[static_cast<std::size_t>(phase)]; }
  };

  struct Job {
    const std::function<void()>* work;
    bool done;
    std::exception_ptr error;
  };

  // ---- Called with the lock held.

  void throw_if_over() const {
    if (over_) std::rethrow_exception(over_);
  }

  /// One that nobody holds any more, as new.
  std::shared_ptr<Ticket::State> unused_ticket() {
    for (const std::shared_ptr<Ticket::State>& ticket : tickets_) {
      if (ticket.use_count() > 1) continue;
      *ticket = {};
      return ticket;
    }
    return tickets_.emplace_back(std::make_shared<Ticket::State>());
  }

  Entry& at(BucketId id) {
    SPARSESYNC_EXPECT(id.value, <, buckets_.size());
    return *buckets_[id.value];
  }

  /// Ends the session: whoever waits, or will, gets `error`.
  void end_session(const std::exception_ptr& error) {
    over_ = error;
    for (const std::unique_ptr<Entry>& entry : buckets_) {
      for (Queue<Submission>& queue : entry->queues) {
        for (; !queue.empty(); queue.pop()) {
          queue.front().ticket->done = true;
          queue.front().ticket->error = error;
        }
      }
    }
    for (Job* job : jobs_) {
      job->done = true;
      job->error = error;
    }
    jobs_.clear();
    queued_ = 0;
    changed_.notify_all();
  }

  // ---- The progress thread.

  /// What is planned with, on worker 0; measured once.
  const Network& network() {
    if (!options_.network) {
      options_.network = measure_network(*transport_, context_, options_.deadline);
    }
    return *options_.network;
  }

  Entry& entry_of(BucketId id) {
    const std::lock_guard lock(mutex_);
    return at(id);
  }

  void run() {
    std::unique_lock lock(mutex_);
    bool blocked = false;  // something waits for a phase that was not submitted
    Clock::time_point blocked_since;
    while (!stopping_) {
      if (over_) {
        changed_.wait(lock);
        continue;
      }
      if (order_.between_steps() && queued_ == 0 && !jobs_.empty()) {
        run_job(lock);
        continue;
      }
      if (!order_.empty()) {
        const OrderEntry entry = order_.next();
        if (!at(entry.bucket).queue(entry.phase).empty()) {
          blocked = false;
          run_phase(lock, entry);
          continue;
        }
      }
      if (queued_ == 0 && jobs_.empty()) {
        blocked = false;
        changed_.wait(lock);
        continue;
      }
      if (!std::exchange(blocked, true)) blocked_since = Clock::now();
      const Clock::time_point until = blocked_since + options_.deadline;
      if (Clock::now() >= until) {
        fail(lock, std::make_exception_ptr(OrderError(
                       fmt::format("worker {}: other work waits for the {}, which was not "
                                   "submitted within {} s: submit every "
                                   "entry of the order once a step, empty if unused",
                                   transport_->rank().value, order_.describe(order_.next()),
                                   static_cast<double>(options_.deadline.count()) / 1000))));
        continue;
      }
      changed_.wait_until(lock, until);
    }
    end_session(std::make_exception_ptr(ContractError("the session was destroyed")));
  }

  /// Ends the session here and tells the others.
  void fail(std::unique_lock<std::mutex>& lock, const std::exception_ptr& error) {
    std::string reason = "unknown failure";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& exception) {
      reason = exception.what();
    } catch (...) {
    }
    lock.unlock();
    transport_->abort(reason);
    log(LogLevel::info,
        fmt::format("worker {}: session over: {}", transport_->rank().value, reason));
    lock.lock();
    end_session(error);
  }

  void run_job(std::unique_lock<std::mutex>& lock) {
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

  /// Whether all workers know of it and go on.
  static bool is_agreed(const std::exception_ptr& error) {
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

  void run_phase(std::unique_lock<std::mutex>& lock, OrderEntry entry) {
    Entry& registered = at(entry.bucket);
    std::swap(running_, registered.queue(entry.phase).front());
    registered.queue(entry.phase).pop();
    --queued_;
    lock.unlock();
    PhaseOutcome outcome;
    try {
      std::optional<AutoChoice>& choice = registered.choice;
      if (choice && choice->awaits_review() && registered.bucket.begins_with(entry.phase)) {
        choice->review(control_);
      }
      Stopwatch* const stopwatch = choice ? choice->stopwatch(entry.phase) : nullptr;
      exchange_workspace_.stopwatch = stopwatch;
      if (stopwatch != nullptr) stopwatch->go_on(false);
      outcome = sparsesync::run_phase(
          {*transport_, context_, options_.deadline, exchange_workspace_}, registered.bucket,
          static_cast<std::uint32_t>(entry.bucket.value) + 1, entry.phase, running_.gradients);
      if (stopwatch != nullptr) stopwatch->stop();
      if (choice && entry.phase == Phase::reduce && !outcome.error) choice->look();
    } catch (...) {
      outcome = {std::current_exception(), true};
    }
    lock.lock();
    if (outcome.fatal) fail(lock, outcome.error);
    if (!outcome.error) {
      registered.bucket.observe(entry.phase, outcome.index_bytes_sent);
      if (registered.choice && entry.phase == Phase::gather) registered.choice->note();
    }
    running_.ticket->error = outcome.error;
    running_.ticket->done = true;
    running_.ticket = nullptr;
    order_.advance();
    changed_.notify_all();
  }

  std::unique_ptr<Transport> transport_;
  Threads threads_;
  Context context_;
  SessionOptions options_;
  // The progress thread only.
  ControlChannel control_;
  ExchangeWorkspace exchange_workspace_;
  Submission running_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Entry>> buckets_;
  PhaseOrder order_;
  std::int64_t queued_ = 0;  // submissions in all queues
  std::deque<Job*> jobs_;
  std::vector<std::shared_ptr<Ticket::State>> tickets_;  // held by others, or to be used again
  std::exception_ptr over_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

Session::Session(std::unique_ptr<Transport> transport, MemoryResource& memory,
                 SessionOptions options)
    : engine_(std::make_unique<Engine>(std::move(transport), memory, options)) {}
Session::~Session() = default;

Rank Session::rank() const {
  return engine_->transport().rank();
}
int Session::size() const {
  return engine_->transport().size();
}
BucketId Session::register_bucket(const BucketSpec& spec) {
  return engine_->register_bucket(spec);
}
void Session::set_order(const std::vector<OrderEntry>& order, std::int64_t from_step) {
  engine_->set_order(order, from_step);
}
Session::Ticket Session::announce(BucketId bucket, std::span<const Gradient> rows) {
  return engine_->submit(bucket, Phase::announce, rows);
}
Session::Ticket Session::submit(BucketId bucket, Phase phase, std::span<const Gradient> gradients) {
  return engine_->submit(bucket, phase, gradients);
}
void Session::wait(const Ticket& ticket) {
  engine_->wait(ticket);
}
void Session::synchronize(BucketId bucket, std::span<const Gradient> gradients) {
  const Ticket reduced = submit(bucket, Phase::reduce, gradients);
  const Ticket gathered = submit(bucket, Phase::gather);
  wait(reduced);  // what it throws says more than what the gather then does
  wait(gathered);
}
TensorResult Session::result(BucketId bucket, std::size_t tensor) {
  return engine_->result(bucket, tensor);
}
void Session::adapt(BucketId bucket) {
  engine_->adapt(bucket);
}
void Session::barrier() {
  engine_->barrier();
}
std::int64_t Session::step() const {
  return engine_->step();
}
std::vector<Prediction> Session::predictions(BucketId bucket) const {
  return engine_->predictions(bucket);
}
bool Session::settled(BucketId bucket) const {
  return engine_->settled(bucket);
}
Way Session::chosen(BucketId bucket) const {
  return engine_->chosen(bucket);
}
std::vector<SpaceChoice> Session::choices(BucketId bucket) const {
  return engine_->choices(bucket);
}
const Scheme& Session::scheme(BucketId bucket) const {
  return engine_->scheme(bucket);
}
std::int64_t Session::non_finite(BucketId bucket) const {
  return engine_->non_finite(bucket);
}
std::int64_t Session::index_bytes_sent(BucketId bucket) const {
  return engine_->index_bytes_sent(bucket);
}
TransportCounters Session::counters() const {
  return engine_->transport().counters();
}

}  // namespace sparsesync
