// Files and folders exist whole or not at all: also when the disk is full, the name taken, the
// program ended.
#include "analysis/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/analysis/scratch.h"

namespace sparsesync {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(OutputFile, GetsItsNameAtCommit) {
  const Scratch scratch;
  OutputFile file(scratch / "a", false);
  file.write("hello ");
  EXPECT_FALSE(fs::exists(scratch / "a"));
  file.write(std::string(1'000'000, 'x'));
  file.write("end");
  file.commit();
  EXPECT_EQ(read_all(scratch / "a"), "hello " + std::string(1'000'000, 'x') + "end");
  EXPECT_EQ(scratch.names(), Names{"a"});
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
  const Scratch scratch;
  {
    OutputFile file(scratch / "a", false);
    file.write("half");
    EXPECT_EQ(scratch.names().size(), 1U);
  }
  EXPECT_EQ(scratch.names(), Names{});
}

TEST(OutputFile, RefusesWhatExistsWithoutForce) {
  const Scratch scratch;
  write_all(scratch / "a", "old");
  expect_error<InputError>([&] { OutputFile(scratch / "a", false); }, {"exists", "--force"});
  {
    OutputFile file(scratch / "a", true);
    file.write("new");
    EXPECT_EQ(read_all(scratch / "a"), "old");
  }
  EXPECT_EQ(read_all(scratch / "a"), "old") << "replaced without commit";
  OutputFile file(scratch / "a", true);
  file.write("new");
  file.commit();
  EXPECT_EQ(read_all(scratch / "a"), "new");
  EXPECT_EQ(scratch.names(), Names{"a"});
}

TEST(OutputFile, RefusesANameThatWasTakenMeanwhile) {
  const Scratch scratch;
  {
    OutputFile file(scratch / "a", false);
    write_all(scratch / "a", "other");
    expect_error<InputError>([&] { file.commit(); }, {"exists"});
  }
  EXPECT_EQ(read_all(scratch / "a"), "other");
  EXPECT_EQ(scratch.names(), Names{"a"});
}

TEST(OutputFile, RefusesFoldersAndPathsThatCannotBe) {
  const Scratch scratch;
  expect_error<InputError>([&] { OutputFile(scratch.path(), true); }, {"folder"});
  expect_error<InputError>([&] { OutputFile(scratch / "no/such/file", false); }, {"cannot create"});
  expect_error<InputError>([&] { OutputFile(scratch / std::string(300, 'n'), false); },
                           {"cannot create"});
  expect_error<InputError>([&] { OutputFile("", false); }, {"not a name"});
}

TEST(OutputFile, AFullDeviceIsAnErrorAtRunTime) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  OutputFile file("/dev/full", true);
  file.write("text");
  expect_error<IoError>([&] { file.commit(); }, {"/dev/full", "No space left"});
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(OutputFile, AFileThatMayNotGrowLeavesNothing) {
  const Scratch scratch;
  // The limit stands for a full disk wherever nothing can be mounted; in a child, to leave ours as
  // it is.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(3);
    int status = 4;
    try {
      OutputDirectory directory(scratch / "d", false);
      OutputFile file(directory.staging() / "a", false);
      file.write(std::string(1'000'000, 'x'));
      file.commit();
      directory.commit();
    } catch (const IoError&) {
      status = 0;
    }
    _exit(status);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(scratch.names(), Names{});
}

TEST(OutputDirectory, AFullDiskLeavesNothing) {
  const Scratch scratch;
  const fs::path disk = scratch / "disk";
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small tmpfs cannot be mounted here";
  }
  expect_error<IoError>(
      [&] {
        OutputDirectory directory(disk / "d", false);
        OutputFile small(directory.staging() / "small", false);
        small.write("fits");
        small.commit();
        OutputFile large(directory.staging() / "large", false);
        large.write(std::string(1'000'000, 'x'));
        large.commit();
        directory.commit();
      },
      {"No space left"});
  EXPECT_TRUE(fs::is_empty(disk));
  EXPECT_EQ(umount(disk.c_str()), 0);
}

TEST(OutputDirectory, GetsItsNameAtCommit) {
  const Scratch scratch;
  {
    OutputDirectory directory((scratch / "d").string() + "/", false);
    write_all(directory.staging() / "a", "1");
    EXPECT_FALSE(fs::exists(scratch / "d"));
    directory.commit();
  }
  EXPECT_EQ(read_all(scratch / "d/a"), "1");
  EXPECT_EQ(scratch.names(), Names{"d"});
  {
    OutputDirectory directory(scratch / "e", false);
    write_all(directory.staging() / "a", "1");
  }
  EXPECT_EQ(scratch.names(), Names{"d"});
}

TEST(OutputDirectory, ReplacesOnlyItsOwnKindAndOnlyWithForce) {
  const Scratch scratch;
  fs::create_directory(scratch / "d");
  write_all(scratch / "d/precious", "kept");
  expect_error<InputError>([&] { OutputDirectory(scratch / "d", false, "mark"); }, {"--force"});
  expect_error<InputError>([&] { OutputDirectory(scratch / "d", true, "mark"); }, {"no mark"});
  expect_error<InputError>([&] { OutputDirectory(scratch / "d", true); }, {"does not replace"});
  EXPECT_EQ(read_all(scratch / "d/precious"), "kept");

  write_all(scratch / "d/mark", "");
  {
    OutputDirectory directory(scratch / "d", true, "mark");
    write_all(directory.staging() / "mark", "new");
  }
  EXPECT_EQ(read_all(scratch / "d/precious"), "kept") << "replaced without commit";
  {
    OutputDirectory directory(scratch / "d", true, "mark");
    write_all(directory.staging() / "mark", "new");
    directory.commit();
  }
  EXPECT_EQ(read_all(scratch / "d/mark"), "new");
  EXPECT_FALSE(fs::exists(scratch / "d/precious"));
  EXPECT_EQ(scratch.names(), Names{"d"});

  fs::create_directory(scratch / "empty");
  OutputDirectory directory(scratch / "empty", true);
  directory.commit();
  EXPECT_EQ(scratch.names(), (Names{"d", "empty"}));
}

TEST(OutputDirectory, ASignalRemovesWhatIsNotCommitted) {
  const Scratch scratch;
  for (const int number : {SIGINT, SIGTERM}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      signal(number, SIG_DFL);
      remove_uncommitted_on_signals();
      const OutputDirectory directory(scratch / "d", false);
      OutputFile file(directory.staging() / "a", false);
      file.write(std::string(1'000'000, 'x'));
      kill(getpid(), number);
      alarm(30);  // ends it, with another status, should the signal not
      pause();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    EXPECT_EQ(scratch.names(), Names{});
  }
}

}  // namespace
}  // namespace sparsesync
