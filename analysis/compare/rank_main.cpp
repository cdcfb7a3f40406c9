#include "analysis/compare/rank_main.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "analysis/trace/safetensors.h"
#include "engine/support/output_file.h"
#include "kernels/base/bits.h"
#include "sparsesync/memory.h"

namespace sparsesync {
namespace {

/// Hashes bytes. Results may be dense and large, so words go in turn to 8 lanes that the CPU can
/// process in parallel.
std::uint64_t hash_bytes(std::uint64_t hash, std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 8> lanes{};
  constexpr std::size_t kBlock = sizeof(lanes);
  const auto take_in = [&](const std::byte* from, std::size_t count) {
    std::array<std::uint64_t, lanes.size()> words{};
    std::memcpy(words.data(), from, count);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * 0x9E3779B97F4A7C15U;
      lanes[lane] ^= lanes[lane] >> 32U;
    }
  };
  std::size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) take_in(bytes.data() + at, kBlock);
  if (at < bytes.size()) take_in(bytes.data() + at, bytes.size() - at);
  for (const std::uint64_t lane : lanes) hash = mix64(hash ^ lane);
  return mix64(hash ^ bytes.size());
}

}  // namespace

std::shared_ptr<const std::vector<ReferenceSum>> References::of(int step) {
  const std::lock_guard lock(mutex_);
  if (step != step_ || current_ == nullptr) {
    current_ =
        std::make_shared<const std::vector<ReferenceSum>>(reference_sums(trace_, step, wire_));
    step_ = step;
  }
  return current_;
}

void CompareWorker::run(std::unique_ptr<Transport> transport, WorkerRecord& record) {
  const Rank rank = transport->rank();
  const TraceHeader& header = task_.trace.header();
  const std::optional<Gpus> gpus = task_.gpus_of(*transport);
  if (gpus) gpu_.emplace(gpus->own, task_.memory, header.tensors.size(), gpus->of_process);
  if (task_.nccl) transport = gpu_->connect(std::move(transport), task_.deadline);
  HostMemory memory(task_.memory);
  Session session(std::move(transport), memory,
                  {.deadline = task_.deadline,
                   .seed = header.seed,
                   .network = task_.network,
                   .workspace = static_cast<double>(task_.memory),
                   .late_refusals = task_.late_refusals,
                   .device = gpu_ ? std::optional(gpu_->on_device()) : std::nullopt});
  const BucketId bucket = session.register_bucket(task_.bucket);
  load(rank, 0);
  exchange(session, bucket);
  session.adapt(bucket);
  while (!session.settled(bucket)) exchange(session, bucket);
  record.choices = session.choices(bucket);
  for (int repeat = 0; repeat < task_.repeat; ++repeat) {
    for (int step = 0; step < header.steps; ++step) {
      load(rank, step);
      StepRecord& seen = record.steps.emplace_back(exchange(session, bucket));
      seen.bits = hash_result(session, bucket);
      if (repeat == 0) {
        check(session, bucket, step, record);
        if (rank == Rank{0}) {
          if (const auto imbalance = task_.imbalance_of(scheme_of(session, bucket), step)) {
            record.imbalances.push_back(*imbalance);
          }
        }
        if (!task_.result_folder.empty()) write_result(session, bucket, step);
      }
      task_.step_done();
    }
  }
  // No worker leaves before all have checked their results.
  session.barrier();
  record.memory_bytes = gpu_ ? gpu_->workspaces().high_water() : memory.high_water();
  record.variant = session.chosen(bucket);
  record.rounds = session.rounds(bucket);
}

void CompareWorker::load(Rank rank, int step) {
  if (step == loaded_step_) return;
  parts_ = task_.trace.load(rank, step);
  loaded_step_ = step;
  gradients_.clear();
  announced_.clear();
  for (std::size_t tensor = 0; tensor < parts_.size(); ++tensor) {
    const TracePart& part = parts_[tensor];
    gradients_.push_back(gpu_ ? gpu_->place(tensor, part.indices, part.values)
                              : Gradient::row_sparse(part.indices, part.values.data()));
    announced_.push_back(Gradient::rows(gradients_.back().indices()));
  }
}

StepRecord CompareWorker::exchange(Session& session, BucketId bucket) {
  Recording* const recording = task_.recording;
  StepRecord record;
  const auto counted = [&](auto&& work) {
    const TransportCounters before = session.counters();
    const std::int64_t index_before = session.index_bytes_sent(bucket);
    work();
    const TransportCounters after = session.counters();
    record.bytes_sent += after.bytes_sent - before.bytes_sent;
    record.bytes_received += after.bytes_received - before.bytes_received;
    record.messages_sent += after.messages_sent - before.messages_sent;
    record.index_bytes_sent += session.index_bytes_sent(bucket) - index_before;
  };
  session.barrier();
  // A training loop announces before its forward pass, which hides that time: it is not measured.
  if (task_.bucket.announce) {
    counted([&] { session.wait(session.announce(bucket, announced_)); });
  }
  if (recording != nullptr) recording->begin_step(session.rank(), Clock::now() + task_.deadline);
  record.begin = Clock::now();
  counted([&] { session.synchronize(bucket, gradients_); });
  record.end = Clock::now();
  if (recording != nullptr) {
    recording->end_step(session.rank());
    // Checks must not take CPU time from workers that still compute: these are being recorded.
    session.barrier();
  }
  record.non_finite = session.non_finite(bucket);
  return record;
}

TensorResult CompareWorker::result_of(Session& session, BucketId bucket, std::size_t tensor) {
  const TensorResult result = session.result(bucket, tensor);
  return gpu_ ? gpu_->fetch(tensor, result) : result;
}

std::uint64_t CompareWorker::hash_result(Session& session, BucketId bucket) {
  std::uint64_t hash = 0;
  for (std::size_t tensor = 0; tensor < task_.bucket.tensors.size(); ++tensor) {
    const TensorResult result = result_of(session, bucket, tensor);
    hash = hash_bytes(hash, std::as_bytes(result.indices));
    hash = hash_bytes(hash, result.values.as_bytes());
  }
  return hash;
}

std::span<const Index> CompareWorker::rows_of(const TensorResult& result) {
  if (result.layout == Gradient::Layout::row_sparse) return result.indices;
  all_rows_.resize(static_cast<std::size_t>(result.values.rows));
  std::iota(all_rows_.begin(), all_rows_.end(), Index{0});
  return all_rows_;
}

void CompareWorker::check(Session& session, BucketId bucket, int step, WorkerRecord& record) {
  const auto reference = task_.references.of(step);
  for (std::size_t tensor = 0; tensor < task_.bucket.tensors.size(); ++tensor) {
    const TensorResult result = result_of(session, bucket, tensor);
    const auto wrong = difference_from((*reference)[tensor], rows_of(result), result.values);
    if (wrong && !record.first_difference) {
      record.first_difference =
          fmt::format("worker {}, step {}, tensor '{}', {}", session.rank().value, step,
                      task_.bucket.tensors[tensor].name, *wrong);
    }
  }
}

void CompareWorker::write_result(Session& session, BucketId bucket, int step) {
  std::vector<SafetensorsEntry> entries;
  std::vector<std::vector<Index>> kept_indices;  // rows_of() reuses one list for dense tensors
  kept_indices.reserve(task_.bucket.tensors.size());
  for (std::size_t tensor = 0; tensor < task_.bucket.tensors.size(); ++tensor) {
    const TensorResult result = result_of(session, bucket, tensor);
    const TensorSpec& spec = task_.bucket.tensors[tensor];
    const std::span<const Index> rows = rows_of(result);
    const std::vector<Index>& indices = kept_indices.emplace_back(rows.begin(), rows.end());
    entries.push_back({spec.name + ".indices",
                       "I64",
                       {static_cast<Index>(indices.size())},
                       std::as_bytes(std::span(indices))});
    entries.push_back({spec.name + ".values",
                       safetensors_name(spec.dtype),
                       {result.values.rows, spec.width},
                       result.values.as_bytes()});
  }
  OutputFile file(task_.result_folder / trace_file_name(session.rank(), step), false);
  write_safetensors(file, entries);
  file.commit();
}

}  // namespace sparsesync
