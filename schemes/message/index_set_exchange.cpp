#include "schemes/message/index_set_exchange.h"

#include "kernels/base/host_copy.h"
#include "kernels/indices/index_code.h"
#include "schemes/bucket_input.h"

namespace sparsesync {
namespace {

/// Describes a section without values.
SectionSpec section_of(const RowSpace& space, Round round) {
  return {round.part_of(space.rows), 0, 0, std::nullopt};
}

}  // namespace

std::vector<SectionSpec> set_sections(std::span<const RowSpace> spaces, Round round) {
  std::vector<SectionSpec> specs;
  for (const RowSpace& space : spaces) specs.push_back(section_of(space, round));
  return specs;
}

IndexSetExchange::IndexSetExchange(const SchemeEnvironment& environment,
                                   std::span<const RowSpace> spaces)
    : context_(environment.context),
      spaces_(spaces),
      own_(context_, spaces),
      gather_(context_, environment.rank, environment.size, Communication::point_to_point),
      messages_(static_cast<std::size_t>(environment.size)),
      numbers_(context_) {
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    std::vector<Buffer<Index>>& of_space = indices_.emplace_back();
    while (of_space.size() < static_cast<std::size_t>(environment.size)) {
      of_space.emplace_back(context_);
    }
    sets_.emplace_back(static_cast<std::size_t>(environment.size));
  }
}

void IndexSetExchange::run(Exchange& exchange, BucketInput& input) {
  specs_.clear();
  for (const RowSpace& space : spaces_) specs_.push_back(section_of(space, exchange.round()));
  own_.write(specs_, input, {}, gather_.own(own_.find(specs_, input)));
  // This worker's set is read like the others, because it must outlive the caller's memory.
  gather_.run(exchange, largest_message_bytes(specs_),
              [&](Rank worker, std::span<const std::byte> received) {
                messages_[worker.index()] = received;
                if (fetches_at_once(context_)) read(worker, received);
                const auto bytes = std::ssize(received);
                return MessageGather::Extent{bytes, bytes};
              });
  if (!fetches_at_once(context_)) read_all();
}

void IndexSetExchange::read(Rank worker, std::span<const std::byte> message) {
  read_layout(context_, specs_, message, counts_, sections_);
  jobs_.clear();
  add_jobs(worker);
  decode_all(context_, jobs_);
}

void IndexSetExchange::read_all() {
  numbers_.fetch(spaces_.size(), messages_, counts_);
  jobs_.clear();
  for (const Rank worker : Ranks(static_cast<int>(messages_.size()))) {
    take_layout(specs_, std::span(counts_).subspan(worker.index() * spaces_.size(), spaces_.size()),
                messages_[worker.index()], sections_);
    add_jobs(worker);
  }
  decode_all(context_, jobs_);
}

/// Adds jobs that decode the indices of the sections.
void IndexSetExchange::add_jobs(Rank worker) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const ConstSection& section = sections_[i];
    const std::span<Index> indices = indices_[i][worker.index()].reserve(section.counts.indices);
    jobs_.push_back({section.code, specs_[i].range, section.indices, indices});
    sets_[i][worker.index()] = indices;
  }
}

}  // namespace sparsesync
