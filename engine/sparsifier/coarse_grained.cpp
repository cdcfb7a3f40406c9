// The sparsifier `chunks`: concatenates all tensors and selects chunks, the same on all workers.
// This is GradientFlow's coarse-grained sparse communication (Sun et al., "Optimizing network
// performance for distributed DNN training on GPU clusters", 2019, section 4).
#include <fmt/format.h>

#include <numeric>

#include "engine/sparsifier/residual_sparsifier.h"
#include "kernels/base/host_copy.h"
#include "kernels/rows/rows.h"
#include "kernels/topk/norms.h"

namespace sparsesync {
namespace {

std::string name_of_all(std::span<const TensorSpec> tensors) {
  if (tensors.size() == 1) return tensors.front().name;
  return fmt::format("{} and {} more", tensors.front().name, tensors.size() - 1);
}

class CoarseGrained final : public ResidualSparsifier {
 public:
  CoarseGrained(const Context& context, std::vector<TensorSpec> tensors,
                const SparsifierOptions& options)
      : ResidualSparsifier(context, std::move(tensors), options, options.chunk),
        chunks_(std::ssize(residual()) / options.chunk),
        chosen_(static_cast<std::size_t>(chunks_)),
        rows_(context),
        values_(context),
        norms_(context) {
    const DType dtype = options.wire.value_or(this->tensors().front().dtype);
    crossing_.push_back({name_of_all(this->tensors()), chunks_, options.chunk, dtype});
    taken_.assign(1, Gradient::empty());
    fill_zero(context, std::as_writable_bytes(norms_.reserve_exactly(chunks_)));
    std::iota(chosen_.begin(), chosen_.end(), Index{0});
    place_chosen();
  }

  std::span<double> norms() override { return norms_.first(chunks_); }

  void choose(std::span<const Index> chunks) override {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      SPARSESYNC_EXPECT(chunks[i], >=, i == 0 ? Index{0} : chunks[i - 1] + 1);
      SPARSESYNC_EXPECT(chunks[i], <, chunks_);
    }
    chosen_.assign(chunks.begin(), chunks.end());
    place_chosen();
  }

 private:
  void place_chosen() {
    upload(context(), std::as_bytes(std::span(chosen_)),
           std::as_writable_bytes(rows_.reserve(std::ssize(chosen_))).data());
  }

  Matrix values() {
    const auto count = std::ssize(chosen_);
    const DType dtype = crossing_.front().dtype;
    const Index bytes = count * options().chunk * element_bytes(dtype);
    return {values_.reserve(bytes).data(), dtype, count, options().chunk};
  }
  Matrix owed() {
    return {std::as_writable_bytes(residual()).data(), DType::f32, chunks_, options().chunk};
  }

  void select(const SparsifierStep&) override {
    chunk_norms(context(), residual(), options().chunk, norms());
    const std::span<const Index> rows = rows_.first(std::ssize(chosen_));
    const Matrix to = values();
    take_rows(context(), owed(), rows, to, not_finite_count());
    taken_.front() = Gradient::row_sparse(rows, to.data);
  }

  void put_back() override {
    give_back_rows(context(), as_const(values()), rows_.first(std::ssize(chosen_)), owed());
  }

  Index chunks_;
  std::vector<Index> chosen_;
  Buffer<Index> rows_;  // copy of chosen_ in the context's memory
  Buffer<std::byte> values_;
  Buffer<double> norms_;
};

}  // namespace

std::unique_ptr<Sparsifier> make_coarse_grained(const Context& context,
                                                std::vector<TensorSpec> tensors,
                                                const SparsifierOptions& options) {
  return std::make_unique<CoarseGrained>(context, std::move(tensors), options);
}

}  // namespace sparsesync
