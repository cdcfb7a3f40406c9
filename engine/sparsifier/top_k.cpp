// The elements of the largest magnitudes: top-k, and Deep Gradient Compression with momentum
// correction, momentum factor masking and local clipping (Lin et al., ICLR 2018).
#include <algorithm>
#include <cmath>

#include "engine/sparsifier/make.h"
#include "engine/sparsifier/of_elements.h"

namespace sparsesync {
namespace {

class TopK final : public OfElements {
 public:
  TopK(const Context& context, std::vector<TensorSpec> tensors, const SparsifierOptions& options)
      : OfElements(context, std::move(tensors), options), workspace_(context) {
    room_.resize(this->tensors().size());
  }

 private:
  void select(const SparsifierStep& step) override {
    for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
      const std::span<const float> owed = residual(tensor);
      const auto size = std::ssize(owed);
      // A share such as 0.01 is a little off in binary: 0.01 of 100 is one.
      const double exact = step.share * static_cast<double>(size);
      const auto k = static_cast<Index>(std::ceil(exact * (1 - 1e-12)));
      room_[tensor] = std::clamp<Index>(k, 0, size);
      find_cut(context(), owed, room_[tensor], cut(tensor), workspace_);
    }
    take_all(room_);
  }

  CutWorkspace workspace_;
  std::vector<Index> room_;
};

}  // namespace

std::unique_ptr<Sparsifier> make_top_k(const Context& context, std::vector<TensorSpec> tensors,
                                       const SparsifierOptions& options) {
  return std::make_unique<TopK>(context, std::move(tensors), options);
}

}  // namespace sparsesync
