// All schemes, with every communication pattern and with the relevant options, and a function that
// runs a step.
#pragma once

#include <string>
#include <vector>

#include "schemes/registry.h"
#include "sparsesync/session.h"
#include "tests/support/scheme_shapes.h"

namespace sparsesync::testing {

struct SchemeVariant {
  std::string label;  // a single word
  std::string scheme;
  SchemeOptions options = {};
  bool announce = false;

  SchemeEntry entry() const { return scheme_named(scheme); }
  BucketSpec bucket(std::vector<TensorSpec> tensors, int rounds = 1,
                    Reduction reduction = Reduction::sum) const {
    return {"b", std::move(tensors), scheme, reduction, rounds, options, announce};
  }
  /// Returns the number of workers that add their dense tensors before they send the nonzero rows;
  /// 1 if none do.
  int added_densely(int size) const {
    const bool two_levels = scheme == "two_level" && options.workers_per_node < size;
    return two_levels ? options.workers_per_node : 1;
  }
  /// Returns whether the options allow this number of workers.
  bool fits(int size) const {
    const SchemeEntry of = entry();
    if (of.check == nullptr) return true;
    try {
      of.check(options, size);
    } catch (const InputError&) {
      return false;
    }
    return true;
  }
};

inline std::vector<SchemeVariant> scheme_variants() {
  SchemeOptions small_blocks;
  small_blocks.block = 5;
  std::vector<SchemeVariant> variants{{"block_ps_of_5", "block_ps", small_blocks}};
  const auto add_two_level = [&](int workers_per_node, const std::string& between_nodes) {
    SchemeOptions nodes;
    nodes.workers_per_node = workers_per_node;
    nodes.between_nodes = between_nodes;
    variants.push_back({"two_level_" + std::to_string(workers_per_node) + "_" + between_nodes,
                        "two_level", nodes});
  };
  add_two_level(1, "balanced");
  add_two_level(2, "balanced");
  add_two_level(2, "all_gather");
  add_two_level(2, "block_ps");
  add_two_level(2, "dense_ring");
  add_two_level(3, "balanced");
  add_two_level(3, "sparse_ps");
  for (const SchemeEntry& entry : all_schemes()) {
    const std::string name(entry.name);
    if (name == "two_level") continue;  // added above, because its options need the size of a node
    if (entry.heeds.has(SchemeOption::pattern)) {
      for (const Communication pattern : kCommunications) {
        variants.push_back({name + "_" + std::string(name_of(pattern)), name, {pattern}});
      }
    } else {
      variants.push_back({name, name});
    }
    if (entry.heeds.has(SchemeOption::announce))
      variants.push_back({name + "_announced", name, {}, true});
  }
  return variants;
}

/// Runs a step. If the variant announces rows, it announces exactly the touched rows.
inline void synchronize(Session& session, BucketId bucket, const SchemeVariant& variant,
                        std::span<const Gradient> gradients,
                        const std::vector<TensorSpec>& tensors) {
  if (variant.announce) {
    std::vector<std::vector<Index>> rows;
    std::vector<Gradient> announced;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      rows.push_back(touched_rows(gradients[i], tensors[i]));
      announced.push_back(Gradient::rows(rows.back()));
    }
    session.wait(session.announce(bucket, announced));
  }
  session.synchronize(bucket, gradients);
}

}  // namespace sparsesync::testing
