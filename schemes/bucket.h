// A bucket: tensors that cross together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/views.h"
#include "schemes/design_space.h"
#include "sparsesync/gradient.h"

namespace sparsesync {

enum class Reduction : std::uint8_t { sum, mean };

/// What can be chosen of schemes. Each heeds what means something to it.
struct SchemeOptions {
  /// How messages go that all workers are to have: all_gather's rows, the split schemes' sums.
  Communication pattern = Communication::ring;
  /// Elements of a block of block_ps.
  Index block = 256;
  /// two_level: the workers of a node, which have consecutive ranks; 0: as the transport tells.
  int workers_per_node = 0;
  /// two_level: the scheme that crosses between nodes.
  std::string between_nodes = "balanced";
  /// What values cross as, where that is narrower than their tensors: f32, f16 or bf16. Each
  /// worker's rows are rounded to it, sums over workers are made in f32 and rounded to it once;
  /// where partial sums cross, they are rounded to it at each worker that they pass.
  std::optional<DType> wire = std::nullopt;
};

/// More rounds are no help: what one of them moves is little beside what all of them keep.
inline constexpr int kMostRounds = 64;

/// What all workers agree on when a bucket is registered.
struct BucketSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  std::string scheme = "balanced";
  Reduction reduction = Reduction::sum;
  /// Full exchanges that each phase is cut into: less memory in flight for each. Nothing: one, and
  /// more, up to kMostRounds, once a step was too large for some worker's memory (Session).
  std::optional<int> rounds = std::nullopt;
  SchemeOptions options = {};
  /// Every step says which rows it may touch before it has their values.
  bool announce = false;
  /// Count what is infinite or not a number in the sums, also where they cross in their own type.
  /// Workers may differ in it.
  bool count_non_finite = false;
};

/// @throws InputError naming the tensor and the mend: no tensors, a name that is empty or stands
///         twice, rows or width < 1, sizes that cannot be counted, rounds that are not 1 to
///         kMostRounds, a mean of integers
void validate(const BucketSpec& spec);

/// The tensors of a bucket that share dtype and width, one after another: one index space of `rows`
/// rows.
struct RowSpace {
  DType dtype = DType::f32;
  Index width = 0;
  Index rows = 0;

  /// A tensor in the row space.
  struct Member {
    std::size_t tensor = 0;  // in BucketSpec::tensors
    Index first_row = 0;     // of it in the row space
  };
  std::vector<Member> members;

  Index row_bytes() const { return width * element_bytes(dtype); }
  /// Whether values are their own sums.
  bool is_own_sum() const { return sum_dtype(dtype) == dtype; }
  Index elements() const { return rows * width; }
  /// Bytes of the dense tensors.
  Index dense_bytes() const { return rows * row_bytes(); }
};

/// The bucket as it crosses: tensors of the wire type, where there is one.
BucketSpec on_wire(BucketSpec spec);

/// In the order in which the tensors first need them.
std::vector<RowSpace> row_spaces(std::span<const TensorSpec> tensors);

/// One worker's gradient of one tensor: a view of the caller's memory.
class Gradient {
 public:
  enum class Layout : std::uint8_t { row_sparse, dense };

  /// @param indices  rows in any order, repeats allowed: those are summed
  /// @param values   a row of the tensor's width for each index, aligned for their dtype
  static Gradient row_sparse(std::span<const Index> indices, const std::byte* values) {
    return {Layout::row_sparse, indices, values};
  }
  /// @param values  all rows of the tensor, aligned for their dtype
  static Gradient dense(const std::byte* values) { return {Layout::dense, {}, values}; }
  /// Rows alone, for an announcement.
  static Gradient rows(std::span<const Index> indices) {
    static constexpr std::byte kNoValue{};
    return {Layout::row_sparse, indices, &kNoValue};
  }
  /// A worker that touched nothing.
  static Gradient empty() { return row_sparse({}, nullptr); }

  Layout layout() const { return layout_; }
  std::span<const Index> indices() const { return indices_; }
  const std::byte* values() const { return values_; }

 private:
  Gradient(Layout layout, std::span<const Index> indices, const std::byte* values)
      : layout_(layout), indices_(indices), values_(values) {}
  Layout layout_;
  std::span<const Index> indices_;
  const std::byte* values_;
};

}  // namespace sparsesync
