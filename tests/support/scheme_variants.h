// Every scheme that exists, with every way to communicate that it has and with options that matter
// to it.
#pragma once

#include <string>
#include <vector>

#include "schemes/scheme.h"

namespace sparsesync::testing {

struct SchemeVariant {
  std::string label;  // a word
  std::string scheme;
  SchemeOptions options = {};

  SchemeEntry entry() const { return scheme_named(scheme); }
  BucketSpec bucket(std::vector<TensorSpec> tensors, int rounds = 1,
                    Reduction reduction = Reduction::sum) const {
    return {"b", std::move(tensors), scheme, reduction, rounds, options};
  }
  /// Whether its options fit so many workers.
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
  std::vector<SchemeVariant> variants;
  for (const SchemeEntry& entry : all_schemes()) {
    const std::string name(entry.name);
    if (entry.patterns.empty()) variants.push_back({name, name});
    for (const Communication pattern : entry.patterns) {
      variants.push_back({name + "_" + std::string(name_of(pattern)), name, {pattern}});
    }
  }
  return variants;
}

}  // namespace sparsesync::testing
