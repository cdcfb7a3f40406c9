// ctest: NEEDS MPI
// Open MPI as loaded at run time.
#include "sparsesync/transports/mpi.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "sparsesync/errors.h"
#include "tests/support/scratch.h"

namespace sparsesync::testing {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::Test;

const std::string kInstall =
    ": install Open MPI 4 or 5, for example Debian's package openmpi-bin, or add the folder of its "
    "libraries to LD_LIBRARY_PATH";

// NOLINTBEGIN(concurrency-mt-unsafe): tests change the environment while there is one thread

// A process loads MPI once, so each of these tests runs in a new process: an exit test in the style
// "threadsafe" starts the program again, with the changed LD_LIBRARY_PATH.
class MpiLibrary : public Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    setenv("LD_LIBRARY_PATH", scratch_.path().c_str(), 1);
  }
  void TearDown() override { unsetenv("LD_LIBRARY_PATH"); }

  /// Writes a library that has no functions.
  void write_library(const char* name) {
    const std::string command =
        "c++ -shared -x c++ /dev/null -o '" + (scratch_ / name).string() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);  // NOLINT(bugprone-command-processor)
  }

  /// Prints why MPI is unusable as "[reason]", and exits.
  [[noreturn]] void print_failure() const {
    const std::string why = why_no_mpi();
    EXPECT_EQ(error_of<UnsupportedError>([] { const MpiWorld world; }), why);
    EXPECT_EQ(mpi_text(), "(" + why + ")");
    EXPECT_FALSE(has_mpi());
    std::fprintf(stderr, "[%s]", why.c_str());
    std::filesystem::remove_all(scratch_.path());
    std::exit(HasFailure() ? 1 : 0);
  }

  Scratch scratch_;
};

TEST_F(MpiLibrary, SaysHowToInstallMpi) {
  write_all(scratch_ / "libmpi.so.40", "");  // hides the system's library
  EXPECT_EXIT(print_failure(), ExitedWithCode(0),
              AllOf(HasSubstr("[cannot load MPI (/"),
                    HasSubstr("libmpi.so.40: file too short)" + kInstall + "]")));
}

TEST_F(MpiLibrary, NamesAMissingFunction) {
  write_library("libmpi.so.40");
  EXPECT_EXIT(print_failure(), ExitedWithCode(0),
              HasSubstr("[the installed MPI has no MPI_Allgather" + kInstall + "]"));
}

TEST_F(MpiLibrary, RejectsMpich) {
  write_library("libmpich.so.12");
  const auto load_mpich_first = [this] {
    EXPECT_NE(dlopen("libmpich.so.12", RTLD_NOW), nullptr);
    print_failure();
  };
  EXPECT_EXIT(load_mpich_first(), ExitedWithCode(0),
              HasSubstr("[this process uses MPICH (libmpich.so.12), but the transport mpi needs "
                        "Open MPI" +
                        kInstall + ", and start the program with its mpirun]"));
}

// NOLINTEND(concurrency-mt-unsafe)

TEST(Mpi, LoadsOnFirstUse) {
  EXPECT_EQ(dlopen("libmpi.so.40", RTLD_NOLOAD | RTLD_LAZY), nullptr);
  if (!has_mpi()) GTEST_SKIP() << why_no_mpi();
  EXPECT_NE(dlopen("libmpi.so.40", RTLD_NOLOAD | RTLD_LAZY), nullptr);
  EXPECT_THAT(mpi_text(), StartsWith("Open MPI v"));
}

}  // namespace
}  // namespace sparsesync::testing
