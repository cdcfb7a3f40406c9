// Session: synchronizes buckets of gradients in the background, in an order that all workers agree
// on.
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

class Scheme;           // internal
struct SubmittedPhase;  // internal

/// Supplies a step's gradients when the session starts the step's reduce. Use it if computing them
/// takes long and the submitting thread must not wait.
/// @code
/// struct Sparsified : GradientSource {
///   std::span<const Gradient> gradients() override { return sparsifier.take(dense, step); }
///   // ...
/// };
/// Sparsified source;
/// session.submit(bucket, source);
/// @endcode
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  /// Returns the gradients of a step. The session calls it from its thread, and stops calling it in
  /// a step once it has returned.
  /// @return one gradient for each tensor, in memory as for Session::submit(). They stay unchanged
  ///     until the caller has waited for the reduce or the gather, whichever is first
  /// @throws InputError all workers reject the step. Any other exception ends the session
  /// @throws BudgetError all workers reject the step. Any other exception ends the session
  /// @throws DeviceMemoryError all workers reject the step. Any other exception ends the session
  /// @throws std::bad_alloc all workers reject the step. Any other exception ends the session
  virtual std::span<const Gradient> gradients() = 0;
};

/// Records when a phase ran in the background.
struct PhaseTime {
  Clock::time_point began;
  Clock::time_point ended;

  double seconds() const { return std::chrono::duration<double>(ended - began).count(); }
};

/// Holds the traffic and time of a bucket since it was registered.
struct BucketUse {
  /// Bytes and messages that this worker sent and received.
  TransportCounters crossed;
  double seconds = 0;                     ///< time that the bucket's phases ran, added up
  std::array<PhaseTime, kPhases> last{};  ///< [phase]: when the phase last ran
};

/// Selects the GPU that a session works on.
struct OnDevice {
  DeviceStream* stream = nullptr;    ///< outlives the session; only the session uses it
  MemoryResource* memory = nullptr;  ///< GPU memory for all workspaces; outlives the session
  /// Pinned host memory, for a transport that cannot access GPUs; outlives the session.
  MemoryResource* pinned = nullptr;
};

/// Configures a session.
struct SessionOptions {
  /// Timeout of each wait for another worker, and of a phase's wait for its predecessor.
  std::chrono::milliseconds deadline{60'000};
  /// Seed of the key that assigns rows to row groups. The same on all workers.
  std::uint64_t seed = 1;
  /// Number of threads that compute on the CPU, including the session's thread. Results do not
  /// depend on it.
  int threads = 1;
  /// Cost model that the scheme `auto` plans with. Worker 0's model is used; pass one on all
  /// workers or on none. Nothing: the session measures links and processor when a bucket first
  /// needs them, which takes some seconds.
  std::optional<Network> network = std::nullopt;
  /// Limit of the workspace that `auto` plans with, in bytes. The smallest limit of all workers is
  /// used. Nothing: no limit. Candidates that the memory resource rejects are always skipped.
  std::optional<double> workspace = std::nullopt;
  /// Largest number of candidates that a bucket of `auto` benchmarks in its first steps. It
  /// benchmarks only if CPU time decides which candidate is fastest. Measured times differ between
  /// runs, and so may the choice and the reduction order. Set 0 and pass `network` to make all runs
  /// choose the same scheme.
  int trials = 24;
  /// Whether a worker can still reject a step after messages were sent. All workers then agree at
  /// the end of each phase that all succeeded, which takes log2(n) short messages. Applies to a
  /// bucket if one worker sets it. Nothing: true if this worker's memory has a budget.
  std::optional<bool> late_refusals = std::nullopt;
  /// Whether phases run in the order in which they are submitted, instead of an agreed order. All
  /// workers set it or none, and submit phases in the same order. A step then has the phases of a
  /// single bucket; other buckets need not take part.
  bool as_submitted = false;
  /// GPU that runs the kernels. Gradients and results are then in its memory. Nothing: the host.
  std::optional<OnDevice> device = std::nullopt;
};

/// Synchronizes the gradients of one worker with those of all others. Runs phases in a background
/// thread.
///
/// @code
/// HostMemory memory;
/// Session session(std::move(transport), memory);
/// BucketSpec spec{.name = "bucket", .tensors = {{"words", 50'000, 64, DType::f32}}};
/// const BucketId bucket = session.register_bucket(spec);
/// for (;;) {
///   // ... compute the gradient ...
///   const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
///   const std::array gradients{Gradient::row_sparse(rows, bytes.data())};
///   session.submit(bucket, Phase::reduce, gradients);
///   const Session::Ticket gathered = session.submit(bucket, Phase::gather);
///   // ... continue the backward pass ...
///   session.wait(gathered);
///   const TensorResult sum = session.result(bucket, 0);  // valid until the next reduce
/// }
/// @endcode
/// Complete programs: examples/cpp/mpi.cpp, examples/cpp/cuda.cpp and examples/cpp/schedule.cpp.
///
/// **Ownership.** A session owns its transport. Memory resources, device streams and gradients
/// belong to the caller.
///
/// **Threads.** One thread at a time calls a session. The session's thread calls the transport and
/// the memory resources.
///
/// **Collective calls.** All workers call register_bucket(), release_bucket(), set_order(),
/// adapt(), network(), barrier(), agree(), all_gather() and broadcast() in the same order, between
/// steps.
///
/// **Order.** Each step submits every entry of the order once. For an unused bucket, submit empty
/// gradients. Phases run in the agreed order, whatever the order of the calls, unless
/// SessionOptions::as_submitted is set.
///
/// **Memory.** If a step exceeds some worker's memory, all workers retry it with twice as many
/// rounds, up to kMostRounds, and keep that number for later steps. A bucket with a fixed
/// BucketSpec::rounds is not retried. If more rounds do not help, all workers reject the step. No
/// worker has a result unless all have it: if memory has a budget, workers agree at the end of each
/// phase (SessionOptions::late_refusals).
///
/// A retry in the gather phase starts again with the reduce phase. It is impossible once some
/// worker has waited for that reduce, because the worker may have changed its gradients; the step
/// is then rejected at once. So wait for the gather first if nothing needs to happen in between.
///
/// **Errors.** After RefusedError, AgreementError, InputError, UnsupportedError, BudgetError and
/// std::bad_alloc the session continues on all workers. Any other error ends the session on all
/// workers, and every later call throws that error. A worker that runs out of memory when the step
/// can no longer be rejected throws AbortedError with its own rank.
class Session {
 public:
  class Ticket;

  /// Joins the session; does not wait for the other workers.
  /// @param transport  this worker's endpoint of the network
  /// @param memory     host memory for all workspaces of a session on the host; outlives the
  ///     session
  /// @param options    timeouts, threads, the GPU
  Session(std::unique_ptr<Transport> transport, MemoryResource& memory,
          SessionOptions options = {});
  /// Leaves the session. Waits for a running phase to end, and drops all other submitted phases.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Returns this worker's rank.
  Rank rank() const;
  /// Returns the number of workers.
  int size() const;
  /// Returns the session's thread. On that thread, calls that wait throw ContractError.
  std::thread::id thread() const;

  /// Adds a bucket at the end of the order. Compares its whole description on all workers. Adds
  /// nothing if they differ, or if one of them lacks the memory.
  /// @return the identifier of the bucket, the same on all workers
  /// @throws AgreementError on all workers if descriptions differ; the message names the tensor and
  ///     both values
  /// @throws InputError if the description is invalid; thrown before anything is sent
  /// @throws UnsupportedError if the transport lacks a feature that the scheme needs
  /// @throws BudgetError if this worker lacks the memory
  /// @throws RefusedError if another worker lacks the memory
  /// @throws Error the errors of Transport
  BucketId register_bucket(const BucketSpec& spec);

  /// Removes a bucket from the order and frees its memory, including its results. Waits for
  /// submitted phases first. The identifier is invalid afterwards.
  /// @throws AgreementError if workers pass different buckets
  /// @throws InputError if the bucket was released before
  void release_bucket(BucketId bucket);

  /// Replaces the order in which phases run.
  /// @param order      every phase of every bucket once, each reduce before its gather
  /// @param from_step  first step with the new order, counted from 0: the next step or a later one
  /// @throws AgreementError
  /// @throws InputError if the order is not valid, or with SessionOptions::as_submitted
  void set_order(const std::vector<OrderEntry>& order, std::int64_t from_step);

  /// Starts to send, in the background, the indices of the rows that the next step may touch. The
  /// indices are sent while the values are still being computed, and the values are later sent
  /// without indices.
  ///
  /// Call it once a step, before the reduce of a bucket with BucketSpec::announce.
  /// @param bucket  the bucket
  /// @param rows    Gradient::rows() of each tensor, in any order, repeats allowed. The memory
  ///     stays unchanged until wait(). The reduce throws InputError if it touches any other row
  /// @param after   as for submit()
  /// @return a ticket for wait()
  /// @throws InputError if the bucket does not announce
  Ticket announce(BucketId bucket, std::span<const Gradient> rows, const Event* after = nullptr);

  /// Starts a phase in the background. Does not wait.
  /// @param bucket     the bucket
  /// @param phase      the phase
  /// @param gradients  for a reduce: one gradient for each tensor. The memory stays unchanged until
  ///     wait() for the reduce or the gather, whichever is first
  /// @param after      on a GPU: the event after which the gradients are complete. It is not set
  ///     again until wait(). Null: the gradients are complete
  /// @return a ticket for wait()
  Ticket submit(BucketId bucket, Phase phase, std::span<const Gradient> gradients = {},
                const Event* after = nullptr);
  /// Starts a reduce whose gradients are computed when the reduce starts.
  /// @param bucket  the bucket
  /// @param source  stays unchanged until wait() for the reduce or the gather
  /// @return a ticket for wait()
  Ticket submit(BucketId bucket, GradientSource& source);

  /// Waits until a phase is complete, or until the timeout has passed.
  /// @param ticket  the phase
  /// @param most    the timeout
  /// @return whether the phase is complete
  /// @throws Error the errors of wait()
  bool wait_for(const Ticket& ticket, std::chrono::milliseconds most);
  /// Returns whether a phase is complete and its step cannot be retried, so its inputs may be
  /// overwritten. Otherwise the step may be retried, unless some worker waits for the phase.
  bool is_final(const Ticket& ticket) const;
  /// Waits until a phase is complete, on a GPU too. On the worker that rejected the step, the wait
  /// for each later phase of the step throws the same error.
  /// @throws RefusedError if another worker rejected this step of the bucket. The next step works
  /// @throws InputError on the worker that rejected the step
  /// @throws BudgetError on the worker that rejected the step
  /// @throws std::bad_alloc on the worker that rejected the step
  /// @throws PeerLostError
  /// @throws DeadlineError
  /// @throws AbortedError
  /// @throws ProtocolError
  /// @throws OrderError
  /// @throws CorruptDataError
  void wait(const Ticket& ticket);

  /// Runs a whole step of a bucket: submits its reduce and its gather, and waits for both. Call
  /// announce() first if the bucket announces.
  /// @param bucket     the bucket
  /// @param gradients  one gradient for each tensor; unchanged until this returns
  /// @throws Error the errors of wait()
  void synchronize(BucketId bucket, std::span<const Gradient> gradients);

  /// Returns the result of the last step. A view, valid until the bucket's next reduce is
  /// submitted.
  /// @param bucket  the bucket
  /// @param tensor  index of the tensor in BucketSpec::tensors
  /// @pre wait() for the bucket's gather
  TensorResult result(BucketId bucket, std::size_t tensor);

  /// Returns the number of infinities and NaNs in the last sums, the same on all workers. They are
  /// counted if values are sent in a narrower type (SchemeOptions::wire), or if
  /// BucketSpec::count_non_finite is set. With a narrower type a warning is also logged, so an
  /// overflow is never silent.
  /// @pre wait() for the bucket's gather
  std::int64_t non_finite(BucketId bucket) const;

  /// Makes each later reduce phase write the sum of the squares of this worker's owned partition of
  /// the result. The numbers of all workers add up to the squared norm of the whole result, which
  /// is thus known before the gather. Call it between steps; other workers need not.
  /// @param bucket   the bucket
  /// @param tensors  number of leading tensors of the bucket to include. Their dtypes are
  ///     floating-point, and no other tensor has the same dtype and width as one of them
  /// @param sum      memory of the caller, on the same device as the gradients, that each reduce
  ///     phase writes. Null: stop
  /// @throws ContractError if another tensor has the same dtype and width
  void keep_squares(BucketId bucket, std::size_t tensors, double* sum);
  /// Returns whether the last reduce phase wrote the sum of squares: the current scheme computes
  /// sums before it gathers them. The same on all workers that called keep_squares().
  /// @pre wait() for the bucket's reduce
  bool has_squares(BucketId bucket) const;

  /// Lets the scheme choose its options again, based on the last step's sparsity. All workers agree
  /// on the choice. Results of the last step become invalid. The scheme `auto` does so by itself
  /// when sparsity changes.
  /// @throws ProtocolError
  /// @throws Error the errors of Transport
  void adapt(BucketId bucket);

  // ---- Collective calls between steps. Each waits for the submitted phases first.

  /// Waits for all workers.
  /// @throws Error the errors of Transport
  void barrier();

  /// Returns SessionOptions::network if set. Otherwise returns this worker's measurements of the
  /// links and the processor. The first call measures them, which takes some seconds.
  /// @throws Error the errors of Transport
  Network network();

  /// Checks that all workers pass the same statement.
  /// @param subject    the start of the error message
  /// @param statement  pairs of a name and its value
  /// @throws AgreementError on all workers, naming the first difference
  /// @throws Error the errors of Transport
  void agree(const std::string& subject,
             const std::vector<std::pair<std::string, std::string>>& statement);

  /// Sends bytes to all workers and receives theirs.
  /// @param own  at most 64 MiB; sizes may differ between workers
  /// @return the bytes of each worker, by rank
  /// @throws ProtocolError if a worker passes more than 64 MiB
  /// @throws Error the errors of Transport
  std::vector<std::string> all_gather(const std::string& own);

  /// Copies the bytes of worker `root` to all workers. Each worker sends and receives them at most
  /// once.
  /// @param bytes  the same size on all workers; overwritten on all but `root`
  /// @param root   the worker that has the bytes
  /// @throws ProtocolError if sizes differ
  /// @throws Error the errors of Transport
  void broadcast(std::span<std::byte> bytes, Rank root);

  // ---- State of a bucket. Call these while none of its phases runs.

  /// Returns the predictions of `auto`'s last choice, the best first. Empty before the first
  /// choice, which follows the second step or adapt().
  std::vector<Prediction> predictions(BucketId bucket) const;
  /// Returns whether the choice of the scheme is final, so the next steps benchmark no other
  /// candidate.
  bool settled(BucketId bucket) const;
  /// Returns the scheme in use.
  SchemeVariant chosen(BucketId bucket) const;

  /// Returns the number of rounds of each phase.
  int rounds(BucketId bucket) const;
  /// Returns the scheme's choices for each tensor.
  std::vector<SpaceChoice> choices(BucketId bucket) const;
  /// Returns the bucket's traffic, and the time that its phases ran.
  BucketUse use(BucketId bucket) const;
  /// Returns the touched rows of each row space of the bucket. Tensors of the same dtype and width
  /// share a row space. Row spaces are in the order in which the tensors first use them.
  std::vector<ObservedRows> observed(BucketId bucket) const;

  // ---- State of the session. Call these at any time.

  /// Returns the number of completed steps.
  std::int64_t step() const;
  /// Returns the bytes of row indices that this worker sent for the bucket.
  std::int64_t index_bytes_sent(BucketId bucket) const;
  /// Returns the bytes and messages that this worker sent and received.
  TransportCounters counters() const;

 private:
  friend const Scheme& scheme_of(const Session& session, BucketId bucket);

  struct Engine;
  std::unique_ptr<Engine> engine_;
};

/// Identifies a submitted phase. Copies identify the same phase.
class Session::Ticket {
 private:
  friend class Session;
  /// @throws ContractError if the ticket is empty
  SubmittedPhase& phase() const;
  std::shared_ptr<SubmittedPhase> phase_;
};

}  // namespace sparsesync
