#include "sparsesync/result.h"
#include "kernels/base/error.h"

#include "kernels/rows/rows.h"

namespace sparsesync {

void to_dense(const Context& context, const TensorResult& result, Matrix out) {
  SPARSESYNC_EXPECT(out.width, ==, result.values.width);
  const std::span<std::byte> all = out.as_bytes();
  if (result.layout == Gradient::Layout::dense) {
    SPARSESYNC_EXPECT(out.rows, ==, result.values.rows);
    copy(context, {result.values.data, all.size()}, all.data());
    return;
  }
  fill_zero(context, all);
  scatter_rows(context, result.values, result.indices, 0, out);
}

}  // namespace sparsesync
