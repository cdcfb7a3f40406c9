// The sparsifier `top_k`: selects the elements with the largest magnitudes. It includes Deep
// Gradient Compression with momentum correction, momentum factor masking and local clipping (Lin et
// al., ICLR 2018).
#include "engine/sparsifier/element_sparsifier.h"
#include "engine/sparsifier/residual_sparsifier.h"

namespace sparsesync {
namespace {

class TopK final : public OfElements {
 public:
  TopK(const Context& context, std::vector<TensorSpec> tensors, const SparsifierOptions& options)
      : OfElements(context, std::move(tensors), options), workspace_(context) {}

 private:
  void find_cuts(const SparsifierStep& step, std::span<Index> room) override {
    for (std::size_t tensor = 0; tensor < room.size(); ++tensor) {
      const std::span<const float> owed = residual(tensor);
      room[tensor] = count_of_share(step.share, std::ssize(owed));
      find_cut(context(), owed, room[tensor], cut(tensor), workspace_);
    }
  }

  CutWorkspace workspace_;
};

}  // namespace

std::unique_ptr<Sparsifier> make_top_k(const Context& context, std::vector<TensorSpec> tensors,
                                       const SparsifierOptions& options) {
  return std::make_unique<TopK>(context, std::move(tensors), options);
}

}  // namespace sparsesync
