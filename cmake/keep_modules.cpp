// With AddressSanitizer: modules stay where they are until the process ends. MPI unloads its own
// before LeakSanitizer looks, and a leak whose module is gone can be named by no suppression
// (cmake/lsan_mpi.supp).
extern "C" __attribute__((weak)) int dlclose(void* /*module*/) {
  return 0;
}
