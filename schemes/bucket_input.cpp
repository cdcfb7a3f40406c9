#include "schemes/bucket_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/host_copy.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/compact.h"
#include "kernels/rows/rows.h"

namespace sparsesync {
namespace {

std::vector<TensorSpec> tensors_like(std::span<const RowSpace> spaces) {
  std::vector<TensorSpec> tensors;
  for (const RowSpace& space : spaces)
    tensors.push_back({"", space.rows, space.width, space.dtype});
  return tensors;
}

std::vector<RowSpace> with_one_member_each(std::span<const RowSpace> spaces) {
  std::vector<RowSpace> all(spaces.begin(), spaces.end());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].members = {{i, 0}};
  return all;
}

}  // namespace

BucketInput::BucketInput(const Context& context, const BucketSpec& spec)
    : BucketInput(context, spec.tensors, row_spaces(on_wire(spec).tensors)) {}

BucketInput BucketInput::without_values(const Context& context, const BucketSpec& spec) {
  std::vector<TensorSpec> tensors = spec.tensors;
  for (TensorSpec& tensor : tensors) tensor.width = 0;
  std::vector<RowSpace> spaces = row_spaces(on_wire(spec).tensors);
  for (RowSpace& space : spaces) {
    for (const RowSpace::Member& member : space.members) {
      tensors[member.tensor].dtype = space.dtype;
    }
    space.width = 0;
  }
  return {context, std::move(tensors), std::move(spaces)};
}

BucketInput::BucketInput(const Context& context, std::span<const RowSpace> spaces)
    : BucketInput(context, tensors_like(spaces), with_one_member_each(spaces)) {}

BucketInput::BucketInput(const Context& context, std::vector<TensorSpec> tensors,
                         std::vector<RowSpace> spaces)
    : context_(context),
      tensors_(std::move(tensors)),
      spaces_(std::move(spaces)),
      is_coalesced_(tensors_.size()),
      checks_(context),
      checked_(tensors_.size() * FoundIndices::kNumbers),
      workspace_(context),
      count_(context),
      wide_(context) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) indices_.emplace_back(context);
  for (std::size_t i = 0; i < spaces_.size(); ++i) storage_.emplace_back(context);
  count_.reserve_exactly(1);
  checks_.reserve_exactly(std::ssize(checked_));
}

void BucketInput::set(std::span<const Gradient> gradients) {
  if (gradients.size() != tensors_.size()) {
    throw InputError(fmt::format("{} gradients for a bucket of {} tensors: pass one for each",
                                 gradients.size(), tensors_.size()));
  }
  gradients_.assign(gradients.begin(), gradients.end());
  for (SpaceStorage& storage : storage_) storage.ready = false;
  is_pending_ = false;
  unchecked_.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::span<Index> found(checks_.data() + i * FoundIndices::kNumbers,
                                 FoundIndices::kNumbers);
    if (gradients[i].layout() == Gradient::Layout::dense) continue;
    const std::span<const Index> given = gradients[i].indices();
    const std::span<Index> indices = indices_[i].reserve(std::ssize(given));
    copy(context_, std::as_bytes(given), std::as_writable_bytes(indices).data());
    gradients_[i] = Gradient::row_sparse(indices, gradients[i].values());
    start_check(context_, tensors_[i].rows, indices, found);
    is_pending_ = true;
  }
  if (fetches_at_once(context_)) return verify();
  if (is_pending_) find_unchecked();
}

void BucketInput::find_unchecked() {
  for (const RowSpace& space : spaces_) {
    const std::size_t only = space.members.front().tensor;
    if (space.members.size() > 1 || gradients_[only].layout() == Gradient::Layout::dense) {
      return unchecked_.clear();
    }
    unchecked_.push_back(gradients_[only].indices());
  }
}

void BucketInput::verify() {
  if (!is_pending_) return;
  fetch_numbers(context_, outcome(), checked_);
  verify(checked_);
}

bool BucketInput::verify(std::span<const Index> outcome) {
  is_pending_ = false;
  unchecked_.clear();
  bool all_coalesced = true;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (gradients_[i].layout() == Gradient::Layout::dense) continue;
    const IndexCheck check = FoundIndices::check(std::span<const Index, FoundIndices::kNumbers>(
        outcome.data() + i * FoundIndices::kNumbers, FoundIndices::kNumbers));
    if (check.outside) {
      const Index place = *check.outside;
      Index index = 0;
      fetch_numbers(context_, part_of(gradients_[i].indices(), {place, place + 1}), {&index, 1});
      throw InputError(fmt::format("tensor '{}': index {} at position {} is outside its {} rows",
                                   tensors_[i].name, index, place, tensors_[i].rows));
    }
    is_coalesced_[i] = check.coalesced;
    all_coalesced = all_coalesced && check.coalesced;
  }
  return all_coalesced;
}

ConstMatrix BucketInput::values_of(std::size_t tensor) const {
  const Gradient& gradient = gradients_[tensor];
  const TensorSpec& spec = tensors_[tensor];
  const Index rows =
      gradient.layout() == Gradient::Layout::dense ? spec.rows : std::ssize(gradient.indices());
  return {gradient.values(), spec.dtype, rows, spec.width};
}

Index BucketInput::append(const RowSpace::Member& member, SpaceStorage& storage, Index filled,
                          Index room) {
  const Gradient& gradient = gradients_[member.tensor];
  const ConstMatrix values = values_of(member.tensor);
  const Count count(count_.data());
  const std::span<Index> indices(storage.indices.data() + filled,
                                 static_cast<std::size_t>(room - filled));
  Matrix to{storage.values.data() + filled * storage.view.values.row_bytes(),
            storage.view.values.dtype, room - filled, values.width};
  Matrix out = to;
  if (to.dtype != values.dtype) {
    out.dtype = values.dtype;
    out.data = wide_.reserve(out.bytes()).data();
  }
  const bool is_dense = gradient.layout() == Gradient::Layout::dense;
  if (is_dense) {
    compact(context_, values, member.first_row, indices, out, count);
  } else {
    const IndexRange named{member.first_row, member.first_row + tensors_[member.tensor].rows};
    coalesce(context_, {gradient.indices(), values}, named, indices, out, count, workspace_);
  }
  const Index rows = resolve(context_, count);
  if (is_dense) expect_unchanged(member, indices, rows);
  if (out.data != to.data) {
    to.rows = out.rows = rows;
    cast(context_, as_const(out), to);
  }
  return filled + rows;
}

void BucketInput::expect_unchanged(const RowSpace::Member& member, std::span<const Index> indices,
                                   Index rows) {
  bool unchanged = rows <= std::ssize(indices);
  // On a GPU a pass reads each row of a gradient once, and checking the indices would synchronize
  // the stream.
  if (unchanged && rows > 0 && fetches_at_once(context_)) {
    const std::span<const Index> written = indices.first(static_cast<std::size_t>(rows));
    const IndexCheck check =
        check_indices(context_, member.first_row + tensors_[member.tensor].rows, written);
    unchanged = !check.outside && check.coalesced && written.front() >= member.first_row;
  }
  if (!unchanged) {
    throw InputError(
        fmt::format("tensor '{}': its gradient changed while it was being sent; "
                    "change gradients before the step starts or after it ends",
                    tensors_[member.tensor].name));
  }
}

ConstMatrix BucketInput::values_as(std::size_t tensor, DType dtype) {
  const ConstMatrix values = values_of(tensor);
  if (values.dtype == dtype) return values;
  Matrix as{nullptr, dtype, values.rows, values.width};
  as.data = wide_.reserve(as.bytes()).data();
  cast(context_, values, as);
  return as_const(as);
}

RowSparse BucketInput::coalesced(std::size_t space) {
  verify();
  SpaceStorage& storage = storage_[space];
  if (storage.ready) return storage.view;
  const RowSpace& shape = spaces_[space];
  const std::size_t only = shape.members.front().tensor;
  if (shape.members.size() == 1 && is_coalesced_[only] &&
      gradients_[only].layout() == Gradient::Layout::row_sparse) {
    storage.view = {gradients_[only].indices(), values_of(only)};
    if (storage.view.values.dtype != shape.dtype) {
      Matrix values{nullptr, shape.dtype, storage.view.values.rows, shape.width};
      values.data = storage.values.reserve(values.bytes()).data();
      cast(context_, storage.view.values, values);
      storage.view.values = as_const(values);
    }
    storage.ready = true;
    return storage.view;
  }
  // Upper bound: all given rows, after counting the nonzero rows of dense tensors.
  Index room = 0;
  for (const RowSpace::Member& member : shape.members) {
    const ConstMatrix values = values_of(member.tensor);
    const Count count(count_.data());
    if (gradients_[member.tensor].layout() == Gradient::Layout::dense) {
      compact(context_, values, 0, {}, {nullptr, values.dtype, 0, values.width}, count);
      room += resolve(context_, count);
    } else {
      room += values.rows;
    }
  }
  storage.indices.reserve(room);
  // Reserves at least one byte, because rows of width 0 need a valid address, too.
  storage.values.reserve(std::max<Index>(1, room * shape.row_bytes()));
  storage.view.values = {nullptr, shape.dtype, 0, shape.width};
  Index filled = 0;
  for (const RowSpace::Member& member : shape.members) {
    filled = append(member, storage, filled, room);
  }
  storage.view = {storage.indices.first(filled),
                  {storage.values.data(), shape.dtype, filled, shape.width}};
  storage.ready = true;
  return storage.view;
}

std::pair<std::string_view, Index> BucketInput::named(std::size_t space, Index row) const {
  const std::vector<RowSpace::Member>& members = spaces_[space].members;
  const auto after = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.first_row > row; });
  const RowSpace::Member& member = *std::prev(after);
  return {tensors_[member.tensor].name, row - member.first_row};
}

Index BucketInput::touched(std::size_t space) const {
  if (storage_[space].ready) return std::ssize(storage_[space].view.indices);
  Index rows = 0;
  for (const RowSpace::Member& member : spaces_[space].members)
    rows += values_of(member.tensor).rows;
  return rows;
}

void BucketInput::start_sums(std::size_t space, Matrix sums) {
  verify();
  const RowSpace& shape = spaces_[space];
  SPARSESYNC_EXPECT(sums.rows, ==, shape.rows);
  for (const RowSpace::Member& member : shape.members) {
    // Adds values in their own dtype if its sums have the required type. Otherwise they are first
    // rounded to the row space's dtype: f64 tensors with a narrower wire type.
    const DType own = tensors_[member.tensor].dtype;
    const ConstMatrix values =
        values_as(member.tensor, sum_dtype(own) == sums.dtype ? own : shape.dtype);
    const Matrix of_member{sums.data + member.first_row * sums.row_bytes(), sums.dtype,
                           tensors_[member.tensor].rows, sums.width};
    if (gradients_[member.tensor].layout() == Gradient::Layout::row_sparse) {
      fill_zero(context_, of_member.as_bytes());
      add_rows(context_, values, gradients_[member.tensor].indices(), of_member);
    } else {
      sparsesync::start_sums(context_, values, of_member);
    }
  }
}

}  // namespace sparsesync
