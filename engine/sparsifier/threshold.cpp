// The sparsifier `threshold`: selects elements whose magnitude reaches a level.
#include "engine/sparsifier/element_sparsifier.h"
#include "engine/sparsifier/residual_sparsifier.h"
#include "kernels/base/host_copy.h"

namespace sparsesync {
namespace {

class Threshold final : public OfElements {
 public:
  Threshold(const Context& context, std::vector<TensorSpec> tensors,
            const SparsifierOptions& options)
      : OfElements(context, std::move(tensors), options) {}

 private:
  void place_cuts() {
    scale_ = scale();
    // MagnitudeCut selects magnitudes above its level, so the level is decremented to include it.
    const MagnitudeCut below{magnitude_of(options().level * scale_) - 1, 0};
    for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
      upload(context(), std::as_bytes(std::span(&below, 1)),
             reinterpret_cast<std::byte*>(cut(tensor)));
    }
  }

  void find_cuts(const SparsifierStep&, std::span<Index> room) override {
    if (scale_ != scale()) place_cuts();
    for (std::size_t tensor = 0; tensor < room.size(); ++tensor) {
      count_taken(context(), residual(tensor), cut(tensor), Count(&counts()[tensor]));
    }
    fetch_numbers(context(), counts(), room);
  }

  float scale_ = 0;  // scale of the thresholds; 0: none are set yet
};

}  // namespace

std::unique_ptr<Sparsifier> make_threshold(const Context& context, std::vector<TensorSpec> tensors,
                                           const SparsifierOptions& options) {
  return std::make_unique<Threshold>(context, std::move(tensors), options);
}

}  // namespace sparsesync
