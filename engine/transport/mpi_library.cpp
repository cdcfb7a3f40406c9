#include "engine/transport/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "sparsesync/errors.h"

namespace sparsesync::mpi {
namespace {

constexpr const char* kFile = "libmpi.so.40";
constexpr const char* kHowToInstall =
    "install Open MPI 4 or 5, for example Debian's package openmpi-bin, or add the folder of its "
    "libraries to LD_LIBRARY_PATH";

/// Throws if the process has loaded MPICH: it would have two MPIs, each of which fails to find the
/// other's processes.
void expect_no_mpich() {
  for (const char* file : {"libmpi.so.12", "libmpich.so.12"}) {
    if (dlopen(file, RTLD_NOLOAD | RTLD_LAZY) == nullptr) continue;
    throw UnsupportedError(fmt::format(
        "this process uses MPICH ({}), but the transport mpi needs Open MPI: {}, and start the "
        "program with its mpirun",
        file, kHowToInstall));
  }
}

/// Loads Open MPI, or finds the loaded copy. The library is never unloaded.
void load() {
  expect_no_mpich();
  // Global, because some of Open MPI's components use its symbols without linking it.
  if (dlopen(kFile, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  throw UnsupportedError(fmt::format("cannot load MPI ({}): {}",
                                     dlerror(),  // NOLINT(concurrency-mt-unsafe): per thread
                                     kHowToInstall));
}

/// Finds the function or object `name` of Open MPI. A program that links Open MPI has copies of its
/// objects, which Open MPI uses, too. RTLD_DEFAULT finds them; the library's handle would not.
template <typename Symbol>
void find(const char* name, Symbol& symbol) {
  symbol = reinterpret_cast<Symbol>(dlsym(RTLD_DEFAULT, name));
  if (symbol == nullptr) {
    throw UnsupportedError(fmt::format("the installed MPI has no {}: {}", name, kHowToInstall));
  }
}

Library open() {
  load();
  Library all{};
  find("MPI_Allgather", all.allgather);
  find("MPI_Allreduce", all.allreduce);
  find("MPI_Cancel", all.cancel);
  find("MPI_Comm_create_keyval", all.comm_create_keyval);
  find("MPI_Comm_dup", all.comm_dup);
  find("MPI_Comm_free", all.comm_free);
  find("MPI_Comm_free_keyval", all.comm_free_keyval);
  find("MPI_Comm_rank", all.comm_rank);
  find("MPI_Comm_set_attr", all.comm_set_attr);
  find("MPI_Comm_set_errhandler", all.comm_set_errhandler);
  find("MPI_Comm_size", all.comm_size);
  find("MPI_Comm_split", all.comm_split);
  find("MPI_Comm_split_type", all.comm_split_type);
  find("MPI_Error_string", all.error_string);
  find("MPI_Finalize", all.finalize);
  find("MPI_Get_count", all.get_count);
  find("MPI_Get_library_version", all.get_library_version);
  find("MPI_Iallreduce", all.iallreduce);
  find("MPI_Init_thread", all.init_thread);
  find("MPI_Initialized", all.initialized);
  find("MPI_Isend", all.isend);
  find("MPI_Query_thread", all.query_thread);
  find("MPI_Recv_init", all.recv_init);
  find("MPI_Request_free", all.request_free);
  find("MPI_Start", all.start);
  find("MPI_Testsome", all.testsome);
  find("MPI_Wait", all.wait);
  find("OMPI_C_MPI_COMM_NULL_COPY_FN", all.comm_null_copy_fn);
  find("ompi_mpi_comm_self", all.comm_self);
  find("ompi_mpi_comm_world", all.comm_world);
  find("ompi_mpi_errors_return", all.errors_return);
  find("ompi_mpi_info_null", all.info_null);
  find("ompi_request_null", all.request_null);
  find("ompi_mpi_byte", all.byte_type);
  find("ompi_mpi_double", all.double_type);
  find("ompi_mpi_float", all.float_type);
  find("ompi_mpi_int", all.int_type);
  find("ompi_mpi_uint32_t", all.uint32_type);
  find("ompi_mpi_uint64_t", all.uint64_type);
  find("ompi_mpi_op_min", all.min);
  find("ompi_mpi_op_sum", all.sum);
  return all;
}

/// The outcome of loading MPI: its functions, or why they are missing.
struct Opened {
  Library functions{};
  std::string failure;
};

const Opened& opened() {
  static const Opened outcome = [] {
    Opened result;
    try {
      result.functions = open();
    } catch (const UnsupportedError& error) {
      result.failure = error.what();
    }
    return result;
  }();
  return outcome;
}

}  // namespace

const Library& library() {
  if (!opened().failure.empty()) throw UnsupportedError(opened().failure);
  return opened().functions;
}

std::string why_no_mpi() {
  return opened().failure;
}

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  library().error_string(status, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw Error(fmt::format("{} failed: {}", call, text));
}

}  // namespace sparsesync::mpi
