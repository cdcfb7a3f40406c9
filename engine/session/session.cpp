#include "sparsesync/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/planner/calibration/measure.h"
#include "engine/session/auto_scheme.h"
#include "engine/session/bucket_agreement.h"
#include "engine/session/control_channel.h"
#include "engine/session/progress_thread.h"
#include "engine/session/registered_bucket.h"
#include "engine/session/run_phase.h"
#include "engine/support/log.h"
#include "engine/transport/staged.h"
#include "kernels/base/threads.h"

namespace sparsesync {

/// State that the progress thread uses. A caller may read it only while no work runs that changes
/// it: the calls of Session document when.
struct Session::Engine {
  struct Bucket {
    std::unique_ptr<RegisteredBucket> registered;
    std::optional<AutoScheme> choice;  // only for the scheme `auto`
    BucketUse use;
  };

  Engine(std::unique_ptr<Transport> of_session, MemoryResource& memory, SessionOptions of_options)
      : options(of_options),
        threads(options.threads),
        on_host(memory, threads),
        context(options.device ? Context(*options.device->memory, *options.device->stream)
                               : on_host),
        transport(reaching(std::move(of_session), options)),
        control(*transport, on_host, options.deadline),
        progress(*transport, options.deadline, options.as_submitted,
                 [this](OrderEntry entry, const ProgressThread::Input& input) {
                   return run(entry, input);
                 }) {}

  static std::unique_ptr<Transport> reaching(std::unique_ptr<Transport> network,
                                             const SessionOptions& options) {
    if (!options.device || network->reaches_devices()) return network;
    return staged(std::move(network), *options.device->pinned);
  }

  Bucket& at(BucketId id) {
    SPARSESYNC_EXPECT(id.value, <, buckets.size());
    Bucket& bucket = buckets[id.value];
    if (bucket.registered == nullptr) {
      throw InputError(fmt::format("bucket {} was released", id.value));
    }
    return bucket;
  }
  RegisteredBucket& registered(BucketId id) { return *at(id).registered; }

  // ---- In the progress thread.

  BucketId add(const BucketSpec& spec) {
    use_device();
    Bucket bucket{
        make_agreed(*transport, control, context, spec, options.seed, has_late_refusals()),
        std::nullopt,
        {}};
    if (spec.scheme == kAuto) {
      bucket.choice.emplace(
          *bucket.registered,
          agree_on_plan_context(control, {.network = network(),
                                          .has_all_reduce = transport->has_all_reduce(),
                                          .memory = options.workspace,
                                          .trials = options.trials}));
    }
    const BucketId id{buckets.size()};
    bucket.registered->channel = static_cast<std::uint32_t>(id.value) + 1;
    buckets.push_back(std::move(bucket));
    progress.add_bucket(spec.name, spec.announce);
    return id;
  }

  PhaseOutcome run(OrderEntry entry, const ProgressThread::Input& input) {
    use_device();
    if (input.after != nullptr) input.after->make_wait(context);
    Bucket& bucket = at(entry.bucket);
    const TransportCounters before = transport->counters();
    const Clock::time_point began = Clock::now();
    PhaseOutcome outcome =
        run_phase({*transport, control, context, options.deadline, exchange_workspace,
                   [&] { return progress.hold_gradients(entry); }},
                  *bucket.registered, bucket.choice ? &*bucket.choice : nullptr, entry.phase,
                  input.gradients, input.source);
    PhaseTime& ran = bucket.use.last[static_cast<std::size_t>(entry.phase)];
    ran = {began, Clock::now()};
    bucket.use.seconds += ran.seconds();
    bucket.use.crossed += transport->counters() - before;
    return outcome;
  }

  /// Returns the network that the planner uses on worker 0. Measured at most once.
  const Network& network() {
    if (!options.network) options.network = measure_network(*transport, on_host, options.deadline);
    return *options.network;
  }

  bool has_late_refusals() const {
    // Without a budget the memory resource can spare any number of bytes.
    constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
    return options.late_refusals.value_or(!context.memory().has_to_spare(kAll));
  }

  void use_device() const {
    if (options.device) options.device->stream->make_current();
  }

  const pid_t process = getpid();
  SessionOptions options;
  Threads threads;
  Context on_host;  // memory of the control channel
  Context context;  // memory of buckets
  std::vector<Bucket> buckets;
  ExchangeWorkspace exchange_workspace;
  // Destroyed before the members above: other workers may still read messages from their memory.
  std::unique_ptr<Transport> transport;
  ControlChannel control;
  ProgressThread progress;  // last: uses all members above
};

SubmittedPhase& Session::Ticket::phase() const {
  if (phase_ == nullptr)
    throw ContractError("cannot wait for an empty ticket: use one that submit() returned");
  return *phase_;
}

namespace {

/// Warns of CUDA_DEVICE_MAX_CONNECTIONS=1, which Megatron sets. Kernels of the session's stream and
/// of another NCCL communicator then share one hardware queue, in an order that differs between
/// workers.
void warn_of_single_connection() {
  const char* const value =
      std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr || std::string_view(value) != "1") return;
  log(LogLevel::warning,
      "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams of a GPU share one hardware queue. A session's "
      "step can deadlock with another NCCL communicator, because workers may queue their kernels "
      "in different orders. Unset the variable or set it to 8, CUDA's default. If the program "
      "needs 1, wait for each step before you use the other communicator");
}

}  // namespace

Session::Session(std::unique_ptr<Transport> transport, MemoryResource& memory,
                 SessionOptions options)
    : engine_(std::make_unique<Engine>(std::move(transport), memory, options)) {
  if (options.device) warn_of_single_connection();
}

Session::~Session() {
  // A forked child has no copy of the session's threads: waiting for them would never end.
  if (getpid() != engine_->process) [[maybe_unused]]
    const Engine* left = engine_.release();
}
Rank Session::rank() const {
  return engine_->transport->rank();
}
std::thread::id Session::thread() const {
  return engine_->progress.id();
}
int Session::size() const {
  return engine_->transport->size();
}

BucketId Session::register_bucket(const BucketSpec& spec) {
  BucketId id;
  engine_->progress.between_steps([&] { id = engine_->add(spec); });
  return id;
}

void Session::release_bucket(BucketId bucket) {
  engine_->progress.between_steps([&] {
    Engine::Bucket& released = engine_->at(bucket);
    engine_->control.agree("release_bucket()", {{"the bucket", released.registered->spec().name}});
    engine_->use_device();
    engine_->progress.remove_bucket(bucket);
    released.choice.reset();
    released.registered.reset();
  });
}

void Session::set_order(const std::vector<OrderEntry>& order, std::int64_t from_step) {
  engine_->progress.between_steps([&] {
    const PhaseOrder& present = engine_->progress.order();
    ControlChannel::Statement statement{{"the first step", fmt::format("{}", from_step)},
                                        {"the next step", fmt::format("{}", present.step())}};
    for (std::size_t i = 0; i < order.size(); ++i) {
      statement.emplace_back(fmt::format("entry {}", i), present.describe(order[i]));
    }
    engine_->control.agree("the order of phases", statement);
    engine_->progress.set_order(order, from_step);
  });
}

Session::Ticket Session::announce(BucketId bucket, std::span<const Gradient> rows,
                                  const Event* after) {
  return submit(bucket, Phase::announce, rows, after);
}
Session::Ticket Session::submit(BucketId bucket, Phase phase, std::span<const Gradient> gradients,
                                const Event* after) {
  Ticket ticket;
  ticket.phase_ = engine_->progress.submit({bucket, phase}, gradients, after);
  return ticket;
}
Session::Ticket Session::submit(BucketId bucket, GradientSource& source) {
  Ticket ticket;
  ticket.phase_ = engine_->progress.submit({bucket, Phase::reduce}, {}, nullptr, &source);
  return ticket;
}
void Session::wait(const Ticket& ticket) {
  engine_->progress.wait(ticket.phase());
}
bool Session::wait_for(const Ticket& ticket, std::chrono::milliseconds most) {
  return engine_->progress.wait_for(ticket.phase(), most);
}
bool Session::is_final(const Ticket& ticket) const {
  return engine_->progress.is_final(ticket.phase());
}
void Session::synchronize(BucketId bucket, std::span<const Gradient> gradients) {
  const Ticket reduced = submit(bucket, Phase::reduce, gradients);
  const Ticket gathered = submit(bucket, Phase::gather);
  // This call has not waited for the reduce, so the gradients are unchanged and the step can be
  // retried.
  const std::exception_ptr error = engine_->progress.wait_until_over(gathered.phase());
  wait(reduced);  // its error is more specific than the gather's
  if (error) std::rethrow_exception(error);
}
TensorResult Session::result(BucketId bucket, std::size_t tensor) {
  return engine_->registered(bucket).result(tensor);
}
std::int64_t Session::non_finite(BucketId bucket) const {
  return engine_->registered(bucket).non_finite();
}

void Session::keep_squares(BucketId bucket, std::size_t tensors, double* sum) {
  engine_->progress.between_steps(
      [&] { engine_->at(bucket).registered->keep_squares(tensors, sum); });
}
bool Session::has_squares(BucketId bucket) const {
  return engine_->registered(bucket).has_squares();
}

void Session::adapt(BucketId bucket) {
  engine_->progress.between_steps([&] {
    Engine::Bucket& adapted = engine_->at(bucket);
    if (adapted.choice) {
      adapted.choice->adapt(engine_->control);
    } else {
      adapt_agreed(engine_->control, *adapted.registered);
    }
  });
}
std::vector<Prediction> Session::predictions(BucketId bucket) const {
  const std::optional<AutoScheme>& choice = engine_->at(bucket).choice;
  return choice ? choice->predictions() : std::vector<Prediction>{};
}
bool Session::settled(BucketId bucket) const {
  const std::optional<AutoScheme>& choice = engine_->at(bucket).choice;
  return !choice || choice->settled();
}
SchemeVariant Session::chosen(BucketId bucket) const {
  return engine_->registered(bucket).chosen();
}
void Session::barrier() {
  engine_->progress.between_steps([&] { engine_->control.all_gather({}); });
}
Network Session::network() {
  Network network;
  engine_->progress.between_steps([&] { network = engine_->network(); });
  return network;
}
void Session::agree(const std::string& subject,
                    const std::vector<std::pair<std::string, std::string>>& statement) {
  engine_->progress.between_steps([&] { engine_->control.agree(subject, statement); });
}
std::vector<std::string> Session::all_gather(const std::string& own) {
  std::vector<std::string> all;
  engine_->progress.between_steps([&] { all = engine_->control.all_gather(own); });
  return all;
}
void Session::broadcast(std::span<std::byte> bytes, Rank root) {
  engine_->progress.between_steps([&] { engine_->control.broadcast(bytes, root); });
}
std::int64_t Session::step() const {
  return engine_->progress.step();
}
int Session::rounds(BucketId bucket) const {
  return engine_->registered(bucket).rounds();
}
std::vector<SpaceChoice> Session::choices(BucketId bucket) const {
  return engine_->registered(bucket).choices();
}
const Scheme& scheme_of(const Session& session, BucketId bucket) {
  return session.engine_->registered(bucket).scheme();
}
BucketUse Session::use(BucketId bucket) const {
  return engine_->at(bucket).use;
}
std::vector<ObservedRows> Session::observed(BucketId bucket) const {
  return engine_->registered(bucket).observed();
}
std::int64_t Session::index_bytes_sent(BucketId bucket) const {
  return engine_->registered(bucket).index_bytes_sent();
}
TransportCounters Session::counters() const {
  return engine_->transport->counters();
}

}  // namespace sparsesync
