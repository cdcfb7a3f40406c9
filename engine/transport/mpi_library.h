// Open MPI, loaded at run time, so that a program without MPI transports does not need it. The
// headers of Open MPI 4 suffice for Open MPI 5, which kept the C interface of version 4.
#pragma once

#include <mpi.h>

#include <string>

#if !defined(OPEN_MPI)
#error "the transport mpi needs the headers of Open MPI: install them, or set SPARSESYNC_MPI=OFF"
#endif

namespace sparsesync::mpi {

/// MPI's functions, and addresses of its predefined objects. The macros of mpi.h for these objects,
/// such as MPI_COMM_WORLD, need a linked libmpi.
struct Library {
  decltype(&MPI_Allgather) allgather;
  decltype(&MPI_Allreduce) allreduce;
  decltype(&MPI_Cancel) cancel;
  decltype(&MPI_Comm_create_keyval) comm_create_keyval;
  decltype(&MPI_Comm_dup) comm_dup;
  decltype(&MPI_Comm_free) comm_free;
  decltype(&MPI_Comm_free_keyval) comm_free_keyval;
  decltype(&MPI_Comm_rank) comm_rank;
  decltype(&MPI_Comm_set_attr) comm_set_attr;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&MPI_Comm_size) comm_size;
  decltype(&MPI_Comm_split) comm_split;
  decltype(&MPI_Comm_split_type) comm_split_type;
  decltype(&MPI_Error_string) error_string;
  decltype(&MPI_Finalize) finalize;
  decltype(&MPI_Get_count) get_count;
  decltype(&MPI_Get_library_version) get_library_version;
  decltype(&MPI_Iallreduce) iallreduce;
  decltype(&MPI_Init_thread) init_thread;
  decltype(&MPI_Initialized) initialized;
  decltype(&MPI_Isend) isend;
  decltype(&MPI_Query_thread) query_thread;
  decltype(&MPI_Recv_init) recv_init;
  decltype(&MPI_Request_free) request_free;
  decltype(&MPI_Start) start;
  decltype(&MPI_Testsome) testsome;
  decltype(&MPI_Wait) wait;

  decltype(&MPI_COMM_NULL_COPY_FN) comm_null_copy_fn;
  MPI_Comm comm_self;
  MPI_Comm comm_world;
  MPI_Errhandler errors_return;
  MPI_Info info_null;
  MPI_Request request_null;
  MPI_Datatype byte_type;
  MPI_Datatype double_type;
  MPI_Datatype float_type;
  MPI_Datatype int_type;
  MPI_Datatype uint32_type;
  MPI_Datatype uint64_type;
  MPI_Op min;
  MPI_Op sum;
};

/// Returns MPI's functions. The first call in a process loads libmpi.so.40, the library of Open MPI
/// 3 to 5, or finds the loaded copy. Later calls repeat its outcome.
/// @throws UnsupportedError if Open MPI is missing or incomplete, or if the process uses MPICH
const Library& library();

/// Returns why library() fails, or an empty string if MPI is usable.
std::string why_no_mpi();

/// Checks the status of an MPI call.
/// @throws Error naming the call and MPI's reason, if it failed
void check(int status, const char* call);

}  // namespace sparsesync::mpi
