// Output files and folders exist either completely or not at all. This also holds if the disk is
// full, the name is taken, or the program is killed.
#include "engine/support/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/support/scratch.h"

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

TEST(OutputFile, RejectsExistingFilesWithoutForce) {
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

TEST(OutputFile, RejectsANameThatWasTakenMeanwhile) {
  const Scratch scratch;
  {
    OutputFile file(scratch / "a", false);
    write_all(scratch / "a", "other");
    expect_error<InputError>([&] { file.commit(); }, {"exists"});
  }
  EXPECT_EQ(read_all(scratch / "a"), "other");
  EXPECT_EQ(scratch.names(), Names{"a"});
}

TEST(OutputFile, RejectsFoldersAndInvalidPaths) {
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

TEST(OutputFile, AFileThatCannotGrowLeavesNothing) {
  const Scratch scratch;
  // The file size limit simulates a full disk on machines where nothing can be mounted. It is set
  // in a child process, so that this process keeps its limit.
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

/// Names the contents of folders that contain "mark" and, in "inner", files whose names are
/// numbers.
OwnNames own_names() {
  return {"mark", [](const fs::path& path, bool is_folder) {
            if (is_folder) return path == "inner";
            const std::string name = path.filename().string();
            return path == "mark" || (path.parent_path() == "inner" &&
                                      name.find_first_not_of("0123456789") == std::string::npos);
          }};
}

TEST(OutputDirectory, ReplacesOnlyItsOwnKindAndOnlyWithForce) {
  const Scratch scratch;
  fs::create_directory(scratch / "d");
  write_all(scratch / "d/1", "kept");
  expect_error<InputError>([&] { OutputDirectory(scratch / "d", false, own_names()); },
                           {"--force"});
  expect_error<InputError>([&] { OutputDirectory(scratch / "d", true, own_names()); }, {"no mark"});
  expect_error<InputError>([&] { OutputDirectory(scratch / "d", true); }, {"does not replace"});
  EXPECT_EQ(read_all(scratch / "d/1"), "kept");
  fs::remove(scratch / "d/1");

  write_all(scratch / "d/mark", "old");
  fs::create_directory(scratch / "d/inner");
  write_all(scratch / "d/inner/7", "");
  {
    OutputDirectory directory(scratch / "d", true, own_names());
    write_all(directory.staging() / "mark", "new");
  }
  EXPECT_EQ(read_all(scratch / "d/mark"), "old") << "replaced without commit";
  {
    OutputDirectory directory(scratch / "d", true, own_names());
    write_all(directory.staging() / "mark", "new");
    directory.commit();
  }
  EXPECT_EQ(read_all(scratch / "d/mark"), "new");
  EXPECT_FALSE(fs::exists(scratch / "d/inner"));
  EXPECT_EQ(scratch.names(), Names{"d"});

  fs::create_directory(scratch / "empty");
  OutputDirectory directory(scratch / "empty", true);
  directory.commit();
  EXPECT_EQ(scratch.names(), (Names{"d", "empty"}));
}

TEST(OutputDirectory, ReplacesNoFolderWithForeignFiles) {
  const Scratch scratch;
  fs::create_directories(scratch / "d/inner");
  write_all(scratch / "d/mark", "old");
  const auto refused_for = [&](const std::string& name) {
    expect_error<InputError>([&] { OutputDirectory(scratch / "d", true, own_names()); },
                             {"has '" + name + "', which this command did not write", "--force"});
  };
  for (const std::string name : {"notes.txt", "inner/notes.txt", ".hidden", "7", "mark2"}) {
    write_all(scratch / ("d/" + name), "kept");
    refused_for(name);
    EXPECT_EQ(read_all(scratch / ("d/" + name)), "kept");
    fs::remove(scratch / ("d/" + name));
  }
  for (const std::string name : {"inner/7", "outer", "inner/inner"}) {
    fs::create_directories(scratch / ("d/" + name));
    refused_for(name);
    fs::remove(scratch / ("d/" + name));
  }
  fs::create_directory(scratch / "elsewhere");
  fs::create_symlink(scratch / "elsewhere", scratch / "d/inner/8");
  refused_for("inner/8");
  fs::remove(scratch / "d/inner/8");
  fs::create_symlink(scratch / "d", scratch / "link");
  expect_error<InputError>([&] { OutputDirectory(scratch / "link", true, own_names()); },
                           {"is not a folder"});

  // A file that appears while the new folder is being written.
  OutputDirectory directory(scratch / "d", true, own_names());
  write_all(directory.staging() / "mark", "new");
  write_all(scratch / "d/late.txt", "kept");
  expect_error<InputError>([&] { directory.commit(); }, {"has 'late.txt'"});
  EXPECT_EQ(read_all(scratch / "d/late.txt"), "kept");
  EXPECT_EQ(read_all(scratch / "d/mark"), "old");
}

TEST(OutputDirectory, ASignalRemovesUncommittedFolders) {
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
      alarm(30);  // kills the process with another status if the signal does not
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
