#include "schemes/design_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "kernels/error.h"

namespace sparsesync {

std::string_view name_of(Communication communication) {
  switch (communication) {
    case Communication::ring:
      return "ring";
    case Communication::hierarchy:
      return "hierarchy";
    case Communication::point_to_point:
      return "point_to_point";
  }
  return "";
}

std::string_view name_of(Aggregation aggregation) {
  return aggregation == Aggregation::incremental ? "incremental" : "one_shot";
}

std::string_view name_of(Partition partition) {
  return partition == Partition::centralization ? "centralization" : "parallelism";
}

std::string_view name_of(Balance balance) {
  switch (balance) {
    case Balance::balanced:
      return "balanced";
    case Balance::imbalanced:
      return "imbalanced";
    case Balance::none:
      return "-";
  }
  return "";
}

std::string_view name_of(Format format) {
  switch (format) {
    case Format::dense:
      return "dense";
    case Format::coo:
      return "COO";
    case Format::coo_then_dense:
      return "COO, then dense";
    case Format::blocks:
      return "non-zero blocks";
    case Format::coo_push_bitmap_pull:
      return "COO push, hash-bitmap pull";
    case Format::cheapest_code:
      return "cheapest of COO, Elias-Fano and bitmap";
    case Format::values_alone:
      return "index sets first, then values alone";
    case Format::dense_then_sparse:
      return "dense in a node, sparse between nodes";
  }
  return "";
}

Communication communication_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Communication communication : kCommunications) {
    if (name_of(communication) == name) return communication;
    names.push_back(name_of(communication));
  }
  throw InputError(
      fmt::format("unknown pattern '{}': use one of {}", name, fmt::join(names, ", ")));
}

}  // namespace sparsesync
