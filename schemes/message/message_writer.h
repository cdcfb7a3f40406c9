// Writes the messages of a step in which a worker sends a different message to each worker.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/bits.h"
#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/host_copy.h"
#include "schemes/exchange.h"
#include "schemes/message/message.h"

namespace sparsesync {

/// Builds one message per worker, including this one, in one buffer. For the pattern all_to_all().
class Outbox {
 public:
  /// @param context  the context of all messages
  /// @param rank     this worker's rank
  /// @param size     number of workers
  /// @param room     memory for all messages; outlives this object
  Outbox(const Context& context, Rank rank, int size, Buffer<std::byte>& room)
      : context_(context), workers_(peers_after(rank, size)), all_(room) {
    workers_.push_back(rank);
  }

  /// The layout of a message, by row space. A view.
  struct Contents {
    std::span<const SectionSpec> specs;
    std::span<const SectionCounts> counts;
  };

  /// Writes all messages.
  /// @param describe  describe(worker) returns the layout of the message to a worker, valid until
  ///     its next call. Called twice for each worker
  /// @param write     write(worker, contents, sections) fills the sections of a message
  /// @throws BudgetError, and the errors of `describe` and `write`
  template <typename Describe, typename Write>
  void pack(Describe&& describe, Write&& write) {
    begins_.assign(1, 0);
    for (const Rank worker : workers_) {
      const Contents contents = describe(worker);
      begins_.push_back(begins_.back() +
                        round_up<Index>(message_bytes(contents.specs, contents.counts), 16));
    }
    const std::span<std::byte> all = all_.reserve(begins_.back());
    payloads_.clear();
    numbers_.clear();
    numbered_.clear();
    for (std::size_t place = 0; place < workers_.size(); ++place) {
      const Contents contents = describe(workers_[place]);
      const std::int64_t bytes = message_bytes(contents.specs, contents.counts);
      const std::span<std::byte> message = part_of(all, {begins_[place], begins_[place] + bytes});
      lay_out_unnumbered(contents.specs, contents.counts, message, sections_);
      numbers_.insert(numbers_.end(), contents.counts.begin(), contents.counts.end());
      numbered_.push_back(message.first(contents.counts.size_bytes()));
      write(workers_[place], contents, std::span<const Section>(sections_));
      payloads_.push_back({message.data(), bytes, index_bytes(contents.specs, contents.counts)});
      own_ = message;
    }
    upload_pieces(context_, std::as_bytes(std::span(numbers_)), numbered_);
  }

  /// Returns the messages to the other workers, in the order of the pattern's `to`. Valid after
  /// pack().
  std::span<const Payload> payloads() const {
    return std::span(payloads_).first(payloads_.size() - 1);
  }
  /// Returns the message to this worker itself, to be read without a copy. Valid after pack().
  std::span<const std::byte> own() const { return own_; }

 private:
  Context context_;
  std::vector<Rank> workers_;  // the other workers, then this one
  Buffer<std::byte>& all_;
  std::vector<std::int64_t> begins_;
  std::vector<Section> sections_;
  std::vector<Payload> payloads_;
  std::vector<SectionCounts> numbers_;          // counts of all messages
  std::vector<std::span<std::byte>> numbered_;  // destinations of the counts
  std::span<const std::byte> own_;              // the last message
};

}  // namespace sparsesync
