#include "schemes/set_exchange.h"

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
      located_(context_),
      gather_(context_, environment.rank, environment.size, Communication::point_to_point) {
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    std::vector<Buffer<Index>>& of_space = indices_.emplace_back();
    for (int worker = 0; worker < environment.size; ++worker) of_space.emplace_back(context_);
    sets_.emplace_back(static_cast<std::size_t>(environment.size));
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
  const std::span<std::byte> message = gather_.own(message_bytes(specs_, counts_));
  lay_out(context_, specs_, counts_, message, sections_);
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    encode(context_, sections_[i].code, specs_[i].range,
           part_of(input.coalesced(i).indices, {bounds_[2 * i], bounds_[2 * i + 1]}),
           sections_[i].indices);
  }
  // The own set is read too: it must outlive the caller's memory.
  gather_.run(exchange, largest_message_bytes(specs_),
              [&](int worker, std::span<const std::byte> received) {
                read(worker, received);
                const auto bytes = static_cast<std::int64_t>(received.size());
                return MessageGather::Extent{bytes, bytes};
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
