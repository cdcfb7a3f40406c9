#include "engine/support/system_error.h"

#include <array>
#include <cerrno>
#include <system_error>

namespace sparsesync {
namespace {

struct Mend {
  int error;
  const char* text;
};

constexpr std::array kMends{
    Mend{EMFILE, "; raise the limit of this process (ulimit -n)"},
    Mend{ENFILE, "; close other programs, or raise the machine's limit (fs.file-max)"},
    Mend{ENOSPC, "; make room on the disk, or name a path on another one"},
    Mend{EDQUOT, "; make room within the quota, or name a path on another disk"},
    Mend{EFBIG, "; raise the limit of file sizes (ulimit -f), or name a path on another disk"},
    Mend{ENOMEM, "; close other programs, or use a smaller input"},
};

const Mend* mend_of(int error) {
  for (const Mend& mend : kMends) {
    if (mend.error == error) return &mend;
  }
  return nullptr;
}

}  // namespace

bool is_exhaustion(int error) {
  return mend_of(error) != nullptr;
}

std::string with_mend_of_system(int error) {
  const Mend* mend = mend_of(error);
  return std::generic_category().message(error) + (mend == nullptr ? "" : mend->text);
}

}  // namespace sparsesync
