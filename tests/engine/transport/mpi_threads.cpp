// A program that initializes MPI itself and then joins a world. Usage: mpi_threads LEVEL CALLS_MPI.
#include <mpi.h>

#include <cstdio>
#include <map>
#include <string>

#include "sparsesync/transports/mpi.h"
#include "tests/support/transport_suite.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::map<std::string, int> levels{{"single", MPI_THREAD_SINGLE},
                                          {"funneled", MPI_THREAD_FUNNELED},
                                          {"serialized", MPI_THREAD_SERIALIZED},
                                          {"multiple", MPI_THREAD_MULTIPLE}};
  int provided = 0;
  MPI_Init_thread(&argc, &argv, levels.at(argv[1]), &provided);
  int status = 0;
  try {
    sparsesync::MpiWorld world({std::string(argv[2]) == "yes", std::chrono::milliseconds(20'000)});
    const std::unique_ptr<sparsesync::Transport> transport = world.join();
    sparsesync::testing::exchange_all(*transport, 1, 1000);
    std::printf("exchanged\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  MPI_Finalize();
  return status;
}
