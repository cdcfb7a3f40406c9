#include "engine/session/run_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <string>

#include "engine/session/bucket_agreement.h"
#include "engine/session/registered_bucket.h"
#include "engine/session/retry.h"
#include "engine/support/log.h"
#include "kernels/base/device_stream.h"

namespace sparsesync {
namespace {

void run_round(Phase phase, RegisteredBucket& bucket, Exchange& exchange) {
  switch (phase) {
    case Phase::announce:
      return bucket.scheme().announce(exchange, bucket.announced());
    case Phase::reduce:
      return bucket.scheme().reduce(exchange, bucket.input());
    case Phase::gather:
      return bucket.scheme().gather(exchange);
  }
}

void take_result(RegisteredBucket& bucket, Rank rank) {
  bucket.take_results();
  // All workers have the same count, so only worker 0 logs it. Without a wire type, values cannot
  // overflow during transfer: the program itself produced the non-finite values.
  if (bucket.non_finite() == 0 || !bucket.spec().options.wire || rank != Rank{0}) return;
  log(LogLevel::warning,
      fmt::format("bucket '{}': {} values of the sums are not finite: they overflow the wire type "
                  "{}, or a gradient was not finite",
                  bucket.spec().name, bucket.non_finite(), name_of(*bucket.spec().options.wire)));
}

/// Throws if gradients lie in memory that the session's device cannot read. Without this check, a
/// kernel would fault. Announced rows have no values.
void expect_reachable(const Context& context, Phase phase, std::span<const Gradient> gradients) {
  if (context.device_stream() == nullptr) return;
  for (const Gradient& gradient : gradients) {
    context.device_stream()->expect_reachable(gradient.indices().data(), "a gradient's indices");
    if (phase == Phase::announce) continue;
    if (gradient.layout() == Gradient::Layout::dense || !gradient.indices().empty()) {
      context.device_stream()->expect_reachable(gradient.values(), "a gradient's values");
    }
  }
}

/// Returns an upper bound on a message's payload bytes for every scheme. It assumes all rows of all
/// workers, the widest dtype, and more bytes per row than any index code needs.
std::uint64_t most_payload_of(const RegisteredBucket& bucket, int workers) {
  constexpr double kOfElement = 8;
  constexpr double kOfRow = 64;
  constexpr double kOfMessage = 1 << 20U;
  double bytes = kOfElement * static_cast<double>(bucket.spec().options.block) + kOfMessage;
  for (const RowSpace& space : bucket.spaces()) {
    bytes +=
        static_cast<double>(space.rows) * (kOfRow + kOfElement * static_cast<double>(space.width));
  }
  constexpr double kMost = 9e18;
  return static_cast<std::uint64_t>(std::min(bytes * workers, kMost));
}

/// Runs all rounds of a phase on this worker.
/// @throws errors other than refusals, which end the session
PhaseOutcome run_rounds_here(const PhaseGround& ground, RegisteredBucket& bucket, Phase phase) {
  const Rank rank = ground.transport.rank();
  Exchange exchange(ground.transport, ground.context,
                    {bucket.channel, bucket.signature,
                     most_payload_of(bucket, ground.transport.size()), bucket.late_refusals},
                    bucket.sequence, bucket.pattern(phase), bucket.rounds(), ground.deadline,
                    ground.workspace);
  const auto refuse_as = [&](const RefusedError& refused) -> PhaseOutcome {
    const std::exception_ptr cause = std::current_exception();
    exchange.refuse(refused.peer(), refused.reason(), [&](Round round, std::size_t step) {
      return bucket.scheme().pieces(phase, round, step);
    });
    synchronize(ground.context);  // a caller that has waited may free the gradients
    bucket.refused = {refused, cause};
    return {cause, false, true};
  };
  const auto refuse = [&](const std::string& reason) -> PhaseOutcome {
    if (!exchange.can_refuse() || (phase == Phase::gather && !bucket.late_refusals)) {
      return {std::current_exception(), true};
    }
    return refuse_as(RefusedError(rank, reason));
  };
  try {
    const std::span<const Gradient> gradients = bucket.gradients(phase, ground.workspace.stopwatch);
    expect_reachable(ground.context, phase, gradients);
    if (phase == Phase::announce) bucket.announced().set(gradients);
    if (phase == Phase::reduce) bucket.input().set(gradients);
    for (int round = 0; round < bucket.rounds(); ++round) {
      run_round(phase, bucket, exchange);
      exchange.next_round();
    }
    if (phase == Phase::reduce) bucket.note_squares();
    if (phase == Phase::gather) take_result(bucket, rank);
    synchronize(ground.context);
  } catch (const RefusedError& refused) {
    return refuse_as(refused);
  } catch (const InputError& error) {
    return refuse(error.what());
  } catch (const BudgetError& error) {
    return refuse(error.what());
  } catch (const DeviceMemoryError& error) {
    return refuse(error.what());
  } catch (const std::bad_alloc&) {
    return refuse("out of memory");
  }
  bucket.observe(phase, exchange.index_bytes_sent());
  return {};
}

/// Informs all workers whether this worker completed a phase. Afterwards all workers know of a
/// refusal.
/// @throws errors other than refusals, which end the session
void agree_on_outcome(const PhaseGround& ground, RegisteredBucket& bucket) {
  Exchange exchange(ground.transport, ground.context, {bucket.channel, bucket.signature},
                    bucket.sequence, bucket.last_word(), 1, ground.deadline, ground.workspace);
  const auto in_one_piece = [](Round, std::size_t) { return std::size_t{1}; };
  const auto pass_on = [&](const RefusedError& refused) {
    exchange.refuse(refused.peer(), refused.reason(), in_one_piece);
  };
  if (bucket.refused) return pass_on(bucket.refused->passed_on);
  try {
    const Payload nothing;
    InPlace nowhere(nullptr, 0);
    for (std::size_t step = 0; step < bucket.last_word().size(); ++step) {
      exchange.step(std::span(&nothing, 1), nowhere, [](Rank, std::span<const std::byte>) {});
    }
  } catch (const RefusedError& refused) {
    bucket.refused = {refused, std::current_exception()};
    pass_on(refused);
  }
}

/// Runs all rounds of a phase, and agrees on the outcome with all workers if refusals may be late.
/// @throws errors other than refusals, which end the session
PhaseOutcome run_rounds(const PhaseGround& ground, RegisteredBucket& bucket, Phase phase) {
  // All workers know of a refusal by the end of the phase, and none continues the step.
  if (bucket.begins_with(phase)) bucket.refused.reset();
  if (bucket.refused) return {bucket.refused->cause};
  PhaseOutcome outcome = run_rounds_here(ground, bucket, phase);
  if (!bucket.late_refusals || outcome.fatal) return outcome;
  agree_on_outcome(ground, bucket);
  if (bucket.refused) outcome = {bucket.refused->cause, false, true};
  return outcome;
}

/// Runs a step from its first phase through `last`.
PhaseOutcome run_step(const PhaseGround& ground, RegisteredBucket& bucket, Phase last) {
  PhaseOutcome outcome;
  for (const Phase phase : bucket.phases_to(last)) {
    outcome = run_rounds(ground, bucket, phase);
    if (outcome.error) break;
  }
  return outcome;
}

}  // namespace

PhaseOutcome run_phase(const PhaseGround& ground, RegisteredBucket& bucket, AutoScheme* choice,
                       Phase phase, std::span<const Gradient> gradients, GradientSource* source) {
  Stopwatch* const stopwatch =
      choice != nullptr ? choice->begin_phase(phase, ground.control) : nullptr;
  ground.workspace.stopwatch = stopwatch;
  if (stopwatch != nullptr) stopwatch->go_on(false);
  bucket.keep_gradients(phase, gradients, source);
  PhaseOutcome outcome = run_rounds(ground, bucket, phase);
  if (outcome.refused) {
    outcome =
        retry_step(ground, bucket, phase, outcome, [&] { return run_step(ground, bucket, phase); });
  }
  if (stopwatch != nullptr) stopwatch->stop();
  if (choice != nullptr && !outcome.error) choice->end_phase(phase);
  outcome.is_final = !bucket.late_refusals || phase == Phase::gather || outcome.error;
  return outcome;
}

}  // namespace sparsesync
