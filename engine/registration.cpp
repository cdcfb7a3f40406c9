#include "engine/registration.h"

#include <fmt/format.h>

#include "kernels/bits.h"

namespace sparsesync {

ControlChannel::Statement statement_of(const SchemeOptions& options) {
  return {{"the pattern", std::string(name_of(options.pattern))},
          {"the elements of a block", fmt::format("{}", options.block)},
          {"the workers of a node", fmt::format("{}", options.workers_per_node)},
          {"the scheme between nodes", options.between_nodes},
          {"the type on the wire", std::string(options.wire ? name_of(*options.wire) : "own")}};
}

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
  statement.emplace_back("the number of rounds", fmt::format("{}", spec.rounds));
  statement.emplace_back("whether it announces", spec.announce ? "yes" : "no");
  for (auto& [what, value] : statement_of(spec.options)) statement.emplace_back(what, value);
  statement.emplace_back("the seed", fmt::format("{}", seed));
  return statement;
}

int workers_of_a_node(const Transport& transport) {
  const int size = transport.size();
  const auto node = [&](int rank) { return transport.node(Rank{rank}); };
  int per_node = 1;
  while (per_node < size && node(per_node) == node(0)) ++per_node;
  if (size % per_node != 0) return 0;
  for (int first = 0; first < size; first += per_node) {
    // A node that goes on here would be one of more workers, or of scattered ones.
    for (int before = 0; before < first; before += per_node) {
      if (node(before) == node(first)) return 0;
    }
    for (int rank = first; rank < first + per_node; ++rank) {
      if (node(rank) != node(first)) return 0;
    }
  }
  return per_node;
}

std::uint64_t signature_of(const ControlChannel::Statement& statement) {
  std::uint64_t signature = 0;
  for (const auto& [name, value] : statement) {
    signature = signature_after(signature_after(signature, name), value);
  }
  return signature;
}

std::uint64_t signature_after(std::uint64_t signature, const std::string& agreed) {
  std::uint64_t hash = mix64(signature ^ agreed.size());
  for (const char c : agreed) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

double take_number(const std::string& text, std::size_t& at) {
  const std::size_t end = text.find(' ', at);
  if (end == std::string::npos) throw ProtocolError("statistics that cannot be read");
  Index number = 0;
  for (; at < end; ++at) {
    if (text[at] < '0' || text[at] > '9' || number > (Index{1} << 56)) {
      throw ProtocolError("statistics that cannot be read");
    }
    number = number * 10 + (text[at] - '0');
  }
  ++at;
  return static_cast<double>(number);
}

}  // namespace sparsesync
