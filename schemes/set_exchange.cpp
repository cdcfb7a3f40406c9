#include "schemes/set_exchange.h"

#include <algorithm>

#include "kernels/index_code.h"
#include "kernels/locate.h"

namespace sparsesync {
namespace {

/// No rows of values.
SectionSpec section_of(const RowSpace& space, Round round) {
  return {round.part_of(space.rows), 0, 0, std::nullopt};
}

}  // namespace

std::vector<SectionSpec> set_sections(std::span<const RowSpace> spaces, Round round) {
  std::vector<SectionSpec> specs;
  for (const RowSpace& space : spaces) specs.push_back(section_of(space, round));
  return specs;
}

SetExchange::SetExchange(const SchemeEnvironment& environment, std::span<const RowSpace> spaces)
    : context_(environment.context),
      spaces_(spaces),
      rank_(environment.rank.value),
      size_(environment.size),
      located_(context_),
      outbox_(context_),
      inbox_(context_, static_cast<std::size_t>(size_ - 1)) {
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    std::vector<Buffer<Index>>& of_space = indices_.emplace_back();
    for (int worker = 0; worker < size_; ++worker) of_space.emplace_back(context_);
    sets_.emplace_back(static_cast<std::size_t>(size_));
  }
}

void SetExchange::run(Exchange& exchange, BucketInput& input) {
  specs_.clear();
  for (const RowSpace& space : spaces_) specs_.push_back(section_of(space, exchange.round()));
  const std::span<Index> located = located_.reserve(static_cast<Index>(2 * spaces_.size()));
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    locate(context_, input.coalesced(i).indices, specs_[i].range, located.subspan(2 * i, 2));
  }
  bounds_.resize(located.size());
  fetch(context_, std::as_bytes(located), reinterpret_cast<std::byte*>(bounds_.data()));
  counts_.clear();
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    counts_.push_back({bounds_[2 * i + 1] - bounds_[2 * i], 0});
  }
  const std::int64_t bytes = message_bytes(specs_, counts_);
  const std::span<std::byte> message = outbox_.reserve(bytes);
  lay_out(context_, specs_, counts_, message, sections_);
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    encode(context_, sections_[i].code, specs_[i].range,
           part_of(input.coalesced(i).indices, {bounds_[2 * i], bounds_[2 * i + 1]}),
           sections_[i].indices);
  }
  // The own set is read where it stands: it must outlive the caller's memory.
  read(rank_, message);
  if (size_ == 1) return;
  inbox_.set_limit(largest_message_bytes(specs_));
  payloads_.assign(static_cast<std::size_t>(size_ - 1), {message.data(), bytes, bytes});
  exchange.step(payloads_, inbox_, [&](Rank from, std::span<const std::byte> received) {
    read(from.value, received);
  });
}

void SetExchange::read(int worker, std::span<const std::byte> message) {
  read_layout(context_, specs_, message, counts_, sections_read_);
  const auto place = static_cast<std::size_t>(worker);
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const ConstSection& section = sections_read_[i];
    const std::span<Index> indices = indices_[i][place].reserve(section.counts.indices);
    decode(context_, section.code, specs_[i].range, section.indices, indices);
    sets_[i][place] = indices;
  }
}

}  // namespace sparsesync
