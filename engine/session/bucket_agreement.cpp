#include "engine/session/bucket_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>
#include <vector>

#include "engine/session/auto_scheme.h"
#include "engine/session/registered_bucket.h"
#include "engine/support/log.h"
#include "kernels/base/bits.h"
#include "schemes/registry.h"
#include "schemes/statistics.h"

namespace sparsesync {
namespace {

std::vector<std::string_view> schemes_that_announce() {
  std::vector<std::string_view> names;
  for (const SchemeEntry& entry : all_schemes()) {
    if (entry.heeds.has(SchemeOption::announce)) names.push_back(entry.name);
  }
  return names;
}

/// Reads a number, and the space that follows it, from a worker's statistics.
/// @param at  offset of the number; afterwards the offset of the next one
double take_number(const std::string& text, std::size_t& at) {
  const std::size_t end = text.find(' ', at);
  if (end == std::string::npos) throw ProtocolError("received malformed statistics");
  Index number = 0;
  for (; at < end; ++at) {
    if (text[at] < '0' || text[at] > '9' || number > (Index{1} << 56)) {
      throw ProtocolError("received malformed statistics");
    }
    number = number * 10 + (text[at] - '0');
  }
  ++at;
  return static_cast<double>(number);
}

/// States all properties that must be the same on all workers. The bucket may be invalid.
ControlChannel::Statement statement_of(const BucketSpec& spec, std::uint64_t seed) {
  ControlChannel::Statement statement{
      {"the bucket's name", fmt::format("'{}'", spec.name)},
      {"the number of tensors", fmt::format("{}", spec.tensors.size())},
  };
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    statement.emplace_back(fmt::format("the name of tensor {}", i),
                           fmt::format("'{}'", tensor.name));
    const auto add = [&](const char* what, const std::string& value) {
      statement.emplace_back(fmt::format("tensor '{}': {}", tensor.name, what), value);
    };
    add("rows", fmt::format("{}", tensor.rows));
    add("width", fmt::format("{}", tensor.width));
    add("dtype", std::string(name_of(tensor.dtype)));
  }
  statement.emplace_back("the scheme", spec.scheme);
  statement.emplace_back("the reduction", spec.reduction == Reduction::sum ? "sum" : "mean");
  statement.emplace_back("the number of rounds",
                         spec.rounds ? fmt::format("{}", *spec.rounds) : "automatic");
  statement.emplace_back("index prefetch (announce)", spec.announce ? "on" : "off");
  for (auto& [what, value] : statement_of(spec.options)) statement.emplace_back(what, value);
  statement.emplace_back("the seed", fmt::format("{}", seed));
  return statement;
}

/// Returns a hash of a statement that all workers agreed on.
std::uint64_t signature_of(const ControlChannel::Statement& statement) {
  std::uint64_t signature = 0;
  for (const auto& [name, value] : statement) {
    signature = signature_after(signature_after(signature, name), value);
  }
  return signature;
}

}  // namespace

ControlChannel::Statement statement_of(const SchemeOptions& options) {
  return {{"the pattern", std::string(name_of(options.pattern))},
          {"the number of elements per block", fmt::format("{}", options.block)},
          {"the number of workers per node", fmt::format("{}", options.workers_per_node)},
          {"the scheme between nodes", options.between_nodes},
          {"the wire type", std::string(options.wire ? name_of(*options.wire) : "unset")}};
}

int workers_of_a_node(const Transport& transport) {
  const int size = transport.size();
  const auto node = [&](int rank) { return transport.node(Rank{rank}); };
  int per_node = 1;
  while (per_node < size && node(per_node) == node(0)) ++per_node;
  if (size % per_node != 0) return 0;
  for (int first = 0; first < size; first += per_node) {
    // A node that appears again has more workers, or non-consecutive ranks.
    for (int before = 0; before < first; before += per_node) {
      if (node(before) == node(first)) return 0;
    }
    for (int rank = first; rank < first + per_node; ++rank) {
      if (node(rank) != node(first)) return 0;
    }
  }
  return per_node;
}

std::uint64_t signature_after(std::uint64_t signature, const std::string& agreed) {
  std::uint64_t hash = mix64(signature ^ agreed.size());
  for (const char c : agreed) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

std::unique_ptr<RegisteredBucket> make_agreed(Transport& transport, ControlChannel& control,
                                              const Context& context, BucketSpec spec,
                                              std::uint64_t seed, bool late_refusals) {
  const ControlChannel::Statement statement = statement_of(spec, seed);
  control.agree(fmt::format("bucket '{}'", spec.name), statement);
  // The agreed bucket may still be invalid. All workers then throw the same error.
  validate(spec);
  if (spec.options.workers_per_node == 0) {
    spec.options.workers_per_node = workers_of_a_node(transport);
  }
  const SchemeEntry entry =
      scheme_or_auto(spec.scheme == kAuto ? AutoScheme::kFirstScheme : spec.scheme);
  if (entry.check != nullptr) entry.check(spec.options, transport.size());
  if (entry.all_reduces && !transport.has_all_reduce()) {
    throw UnsupportedError(
        fmt::format("scheme {}: this transport has no all-reduce of its own: use dense_ring, or "
                    "run it over mpi",
                    spec.scheme));
  }
  if (spec.announce && !entry.heeds.has(SchemeOption::announce)) {
    throw InputError(
        fmt::format("scheme {} does not use announced rows: do not announce (in Python "
                    "announce=False), or use {}",
                    spec.scheme, fmt::join(schemes_that_announce(), " or ")));
  }
  std::unique_ptr<RegisteredBucket> bucket;
  const auto make = [&] {
    bucket = std::make_unique<RegisteredBucket>(context, spec, entry, transport.rank(),
                                                transport.size(), seed);
  };
  const std::string subject = fmt::format("bucket '{}', scheme {}", spec.name, spec.scheme);
  const bool is_late = agree_to_make(control, subject, make, late_refusals);
  bucket->late_refusals = is_late;
  bucket->signature = signature_of(statement);
  return bucket;
}

bool agree_to_make(ControlChannel& control, const std::string& subject,
                   const std::function<void()>& make, bool flag) {
  constexpr const char* kFlag = "yes";
  std::exception_ptr error;
  std::string refusal;
  try {
    make();
  } catch (const BudgetError& budget) {
    error = std::current_exception();
    refusal = fmt::format("{}: {}", subject, budget.what());
  } catch (const std::bad_alloc&) {
    error = std::current_exception();
    refusal = fmt::format("{}: out of memory", subject);
  }
  if (!error && flag) refusal = kFlag;
  const std::vector<std::string> refusals = control.all_gather(refusal);
  if (error) std::rethrow_exception(error);
  bool is_flagged = false;
  for (std::size_t worker = 0; worker < refusals.size(); ++worker) {
    if (refusals[worker] == kFlag) is_flagged = true;
    if (refusals[worker].empty() || refusals[worker] == kFlag) continue;
    throw RefusedError(Rank{static_cast<int>(worker)}, refusals[worker]);
  }
  return is_flagged;
}

bool agree_to_change(ControlChannel& control, const Change& change, const Change& otherwise) {
  const auto go_back = [&](const char* why) {
    log(LogLevel::info, why);
    try {
      otherwise.make();
    } catch (const std::exception& error) {  // only this worker failed, so the session must end
      throw Error(fmt::format("cannot restore {}: {}", otherwise.subject, error.what()));
    }
    return false;
  };
  try {
    agree_to_make(control, change.subject, change.make);
  } catch (const RefusedError& elsewhere) {
    return go_back(elsewhere.what());
  } catch (const BudgetError& budget) {
    return go_back(budget.what());
  } catch (const std::bad_alloc&) {
    return go_back("out of memory");
  }
  return true;
}

void change_rounds(ControlChannel& control, RegisteredBucket& bucket, int rounds, int otherwise) {
  const auto in_rounds = [&](int count) {
    return Change{fmt::format("bucket '{}' in {} rounds", bucket.spec().name, count),
                  [&bucket, count] { bucket.change_rounds(count); }};
  };
  agree_to_change(control, in_rounds(rounds), in_rounds(otherwise));
  bucket.signature = signature_after(bucket.signature, fmt::format("{} rounds", bucket.rounds()));
}

void adapt_agreed(ControlChannel& control, RegisteredBucket& bucket) {
  std::string own;
  for (const ObservedRows& space : bucket.observed()) {
    own += fmt::format("{} {} ", space.touched, space.united);
  }
  const std::vector<std::string> all = control.all_gather(own);
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
  // Tries one round again: the number of rounds was chosen before these statistics were known.
  if (!bucket.spec().rounds && bucket.rounds() > 1) {
    change_rounds(control, bucket, 1, bucket.rounds());
  }
  bucket.adapt(statistics);
  bucket.signature = signature_after(bucket.signature, agreed);
}

}  // namespace sparsesync
