// A Session: registered buckets, their phases run in the background in one order that all workers
// agree on.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sparsesync/bucket.h"
#include "sparsesync/context.h"
#include "sparsesync/device_stream.h"
#include "sparsesync/errors.h"  // IWYU pragma: export
#include "sparsesync/gradient.h"
#include "sparsesync/network.h"
#include "sparsesync/result.h"
#include "sparsesync/schemes.h"
#include "sparsesync/transport.h"

namespace sparsesync {

class Scheme;           // of the implementation
struct SubmittedPhase;  // of the implementation

/// Gives a step its gradients once the session comes to the step's reduce: finding them may take
/// long, and who submits them does not wait for it.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  /// Called in the session's thread, in each step until it has returned once.
  /// @return one for each tensor, written, in memory as of Session::submit(), unchanged until the
  ///         reduce or the gather is waited for, whichever is first
  /// @throws InputError, BudgetError, DeviceMemoryError, std::bad_alloc: all workers refuse the
  ///         step. Anything else ends the session
  virtual std::span<const Gradient> gradients() = 0;
};

/// When a phase ran in the background.
struct PhaseTime {
  Clock::time_point began;
  Clock::time_point ended;

  double seconds() const { return std::chrono::duration<double>(ended - began).count(); }
};

/// Traffic and time of a bucket so far.
struct BucketUse {
  TransportCounters crossed;
  double seconds = 0;                     // that its phases ran
  std::array<PhaseTime, kPhases> last{};  // [phase]: when each ran the last time
};

/// A GPU that a session works on.
struct OnDevice {
  DeviceStream* stream = nullptr;    // outlives the session, which alone uses it
  MemoryResource* memory = nullptr;  // of the GPU, for all workspaces; outlives the session
  // Host memory that the GPU reaches, for a network that does not reach GPUs; outlives the session
  MemoryResource* pinned = nullptr;
};

/// How a session works.
struct SessionOptions {
  // Timeout of each wait for another worker, and of a phase for its predecessor.
  std::chrono::milliseconds deadline{60'000};
  // The key of row groups is drawn from it; the same on all workers.
  std::uint64_t seed = 1;
  // Threads that this worker's kernels may be cut among, the session's own included. The bits of
  // the result do not depend on it.
  int threads = 1;
  // The network that the scheme `auto` plans with, on worker 0; on all workers or on none. Nothing:
  // links and processor are measured when the first bucket asks for it, which takes some seconds.
  std::optional<Network> network = std::nullopt;
  // Bytes of workspace that it plans with, the least of all workers'; nothing: no bound. What the
  // memory resource refuses is passed over in any case.
  std::optional<double> workspace = std::nullopt;
  // Ways that a bucket of `auto` tries at most, in its first steps, where it depends on what
  // processors take which of them is the fastest. What is measured differs from run to run, and so
  // may the choice, and with it the order that sums are made in; with 0 and a network that is
  // given all runs choose the same.
  int trials = 24;
  // Whether a step can still be refused after messages were sent. All workers then agree at the end
  // of each phase whether all could do it, which takes log2 n short messages. It holds for a bucket
  // if one worker has it. Nothing: where this worker's memory has a budget.
  std::optional<bool> late_refusals = std::nullopt;
  // Gradients are given, and results found, in the memory of a GPU, where kernels run. Nothing: on
  // the host.
  std::optional<OnDevice> device = std::nullopt;
};

/// One worker's session. Calls come from one thread, or are ordered by the caller; all workers make
/// the same calls of register_bucket(), release_bucket(), set_order(), adapt(), network() and
/// barrier(), between steps, in the same order.
///
/// A step that was refused because some worker's memory is too small for it is tried again in twice
/// as many rounds, up to kMostRounds, where BucketSpec leaves them open, and so do the steps after
/// it; only if that is no help either is it refused. A step that is refused in its gather begins
/// again with its reduce. It is refused at once where a worker has waited for that reduce: its
/// gradients may have changed. So wait for the gather first, where nothing is done in between.
///
/// No worker has a result unless all have it: where the memory has a budget, all workers agree at
/// the end of each phase whether all could do it (SessionOptions::late_refusals).
///
/// A step submits every entry of the order once: a bucket that is not used submits empty gradients.
/// Phases are posted in the agreed order whatever the order of the calls.
///
/// The type of an error says whether the session is over. After RefusedError, AgreementError,
/// InputError, UnsupportedError, BudgetError and std::bad_alloc it goes on, on all workers. After
/// any other type it is over on all workers, and every call throws that error. A worker whose
/// memory runs out where the step cannot be taken back throws AbortedError with its own rank.
class Session {
 public:
  class Ticket;

  /// @param memory  of the host, for all workspaces where the session works there; outlives it
  Session(std::unique_ptr<Transport> transport, MemoryResource& memory,
          SessionOptions options = {});
  /// Leaves. Waits for the phase that runs, if one does; others are given up.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Rank rank() const;
  int size() const;
  /// The thread that works for it, which calls the transport and memory resources. What waits
  /// throws ContractError there.
  std::thread::id thread() const;

  /// Adds a bucket, at the end of the order. All that workers must agree on is compared in full;
  /// nothing is added if they do not, or if one of them has not the memory.
  /// @throws AgreementError naming the tensor and both sides, on all workers
  /// @throws InputError if the bucket is not valid (before anything is sent), UnsupportedError if
  ///         the scheme asks for what the transport has not, BudgetError, RefusedError
  BucketId register_bucket(const BucketSpec& spec);

  /// Takes a bucket out of the order and frees what it holds, results too. Nothing names it from
  /// then on. After what has been submitted.
  /// @throws AgreementError if workers name different ones; InputError if it was released
  void release_bucket(BucketId bucket);

  /// Replaces the order of posting from a step on.
  /// @param order      every phase of every bucket once, each reduce before its gather
  /// @param from_step  of this session, counted from 0: the step that begins next, or a later one
  /// @throws AgreementError, InputError
  void set_order(const std::vector<OrderEntry>& order, std::int64_t from_step);

  /// Starts to tell the others, in the background, which rows the coming step may touch: so that
  /// its values cross without indices, and the indices while their values are still being computed.
  /// Once a step, before the reduce of a bucket that announces.
  /// @param rows  for each tensor Gradient::rows(), in any order, repeats allowed: the caller's
  ///              memory, unchanged until wait(). The reduce throws InputError if it touches others
  /// @return what wait() takes
  /// @throws InputError if the bucket does not announce
  /// @param after  as submit()
  Ticket announce(BucketId bucket, std::span<const Gradient> rows, const Event* after = nullptr);

  /// Starts a phase in the background.
  /// @param gradients  for a reduce: one for each tensor, the caller's memory, unchanged until
  ///                   wait() for the reduce or the gather, whichever is first
  /// @param after      on a GPU, what the phase waits for: where the gradients are written. Stays
  ///                   as it is until wait(). Nothing: they are written
  /// @return what wait() takes
  Ticket submit(BucketId bucket, Phase phase, std::span<const Gradient> gradients = {},
                const Event* after = nullptr);
  /// The same of a reduce whose gradients are found when its turn has come.
  /// @param source  the caller's, unchanged until wait() for the reduce or the gather
  Ticket submit(BucketId bucket, GradientSource& source);

  /// Waits until a phase is over, or for so long.
  /// @return whether it is over
  /// @throws as wait()
  bool wait_for(const Ticket& ticket, std::chrono::milliseconds most);
  /// Whether a phase is over and what it was given is not needed any more: the step does not begin
  /// again. It may still begin again where this is not so and nobody has waited for the phase.
  bool is_final(const Ticket& ticket) const;
  /// Waits until a phase is over, on a GPU too.
  /// @throws RefusedError if a worker refused this step of the bucket (the next step works); on
  ///         that worker what made it refuse: InputError, BudgetError, std::bad_alloc
  /// @throws PeerLostError, DeadlineError, AbortedError, ProtocolError, OrderError,
  ///         CorruptDataError
  void wait(const Ticket& ticket);

  /// A bucket's whole step in one call: submits its reduce and its gather and waits for both; after
  /// announce() where the bucket announces.
  /// @param gradients  one for each tensor, the caller's memory, unchanged until this returns
  /// @throws what wait() throws
  void synchronize(BucketId bucket, std::span<const Gradient> gradients);

  /// Returns this worker's result.
  /// @param tensor  its place in the bucket
  /// @pre wait() for the bucket's gather
  TensorResult result(BucketId bucket, std::size_t tensor);

  /// How many values of the last sums are infinite or not a number, where they cross as a narrower
  /// type (SchemeOptions::wire) or the bucket counts them. The same on all workers. Of a narrower
  /// type a warning is logged too, so that an overflow is never silent.
  /// @pre wait() for the bucket's gather
  std::int64_t non_finite(BucketId bucket) const;

  /// From the next step on each reduce phase leaves the sum of the squares of what this worker then
  /// owns of the result: of all workers together those of the whole result, once, before it is
  /// gathered. Between steps; each worker for itself.
  /// @param tensors  the bucket's first ones, of floating-point dtypes, none of which shares both
  ///                 dtype and width with another one
  /// @param sum      the caller's memory, where gradients are; written by the reduce phase. Null:
  ///                 no longer
  /// @throws ContractError where they do
  void keep_squares(BucketId bucket, std::size_t tensors, double* sum);
  /// Whether the last reduce phase left it: the scheme at work has sums before it gathers them. The
  /// same on all workers that ask for it.
  /// @pre wait() for the bucket's reduce
  bool has_squares(BucketId bucket) const;

  /// Lets the scheme choose anew from the last step's sparsity, agreed by all. The scheme `auto`
  /// does so by itself, when sparsity drifts; results of the last step are gone then, and here.
  /// @throws what Transport throws, ProtocolError
  void adapt(BucketId bucket);

  // ---- Between steps: what has been submitted is waited for first.

  /// Waits for all workers.
  /// @throws what Transport throws
  void barrier();

  /// The links and the processor as this worker knows them: SessionOptions::network, or measured
  /// when they are first asked for, which takes some seconds.
  /// @throws what Transport throws
  Network network();

  /// Compares what all workers state of something: names, and what each thinks of them.
  /// @param subject  stands before the difference in the text
  /// @throws AgreementError on all workers alike, naming the first difference; what Transport
  /// throws
  void agree(const std::string& subject,
             const std::vector<std::pair<std::string, std::string>>& statement);

  /// Tells all others some bytes, 64 MiB at most, and hears theirs.
  /// @return what each worker gave, by rank
  /// @throws what Transport throws, ProtocolError for more than that
  std::vector<std::string> all_gather(const std::string& own);

  /// Gives all workers what one of them has; each sends and receives it once at most.
  /// @param bytes  as many on all workers; overwritten on all but `root`
  /// @throws what Transport throws, ProtocolError where the sizes differ
  void broadcast(std::span<std::byte> bytes, Rank root);

  // ---- What a bucket is at. While no phase of it runs.

  /// Returns what `auto` based its last choice on, the best scheme first; nothing before
  /// the first choice, which the second step brings, or adapt().
  std::vector<Prediction> predictions(BucketId bucket) const;
  /// Whether it has made its choice: the next steps try no other.
  bool settled(BucketId bucket) const;
  /// The scheme that is at work.
  SchemeVariant chosen(BucketId bucket) const;

  /// Exchanges that each phase is cut into.
  int rounds(BucketId bucket) const;
  /// Returns the scheme's choices for each tensor.
  std::vector<SpaceChoice> choices(BucketId bucket) const;
  /// Returns a bucket's traffic so far, and how long its phases ran.
  BucketUse use(BucketId bucket) const;
  /// Returns the rows of each row space of a bucket. Tensors of one dtype and width share a row
  /// space; these are in the order in which the tensors first need them.
  std::vector<ObservedRows> observed(BucketId bucket) const;

  // ---- Of the session, at any time.

  /// Steps that are complete.
  std::int64_t step() const;
  /// Bytes sent that said which rows there are, so far.
  std::int64_t index_bytes_sent(BucketId bucket) const;
  TransportCounters counters() const;

 private:
  friend const Scheme& scheme_of(const Session& session, BucketId bucket);

  struct Engine;
  std::unique_ptr<Engine> engine_;
};

/// Names a submitted phase. Copies name the same one.
class Session::Ticket {
 private:
  friend class Session;
  /// @throws ContractError if there is none
  SubmittedPhase& phase() const;
  std::shared_ptr<SubmittedPhase> phase_;
};

}  // namespace sparsesync
