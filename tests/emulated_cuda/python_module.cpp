// Controls of the emulated GPU for Python tests: `sparsesync._native.emulated`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "tests/emulated_cuda/controls.h"

namespace nb = nanobind;

namespace sparsesync::python {

void bind_emulated(
    nb::module_& module);  // declared in python/bindings/bindings.h, for the bindings only

namespace {

using Bytes = nb::ndarray<nb::device::cpu, nb::c_contig>;
using ConstBytes = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;

cudaStream_t stream_of(std::uintptr_t number) {
  return reinterpret_cast<cudaStream_t>(number);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

void bind_emulated(nb::module_& module) {
  nb::module_ emulated = module.def_submodule("emulated", "The emulated GPU: for tests.");
  emulated.def(
      "new_stream",
      [](int device) {
        int before = 0;
        cudaGetDevice(&before);
        if (cudaSetDevice(device) != cudaSuccess) throw nb::value_error("no such device");
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaSetDevice(before);
        return reinterpret_cast<std::uintptr_t>(stream);
      },
      nb::arg("device") = 0, "A stream, which does its work when somebody waits for it.");
  emulated.def(
      "write",
      [](const Bytes& to, const ConstBytes& from, std::uintptr_t stream) {
        if (to.nbytes() != from.nbytes()) throw nb::value_error("another size");
        const auto* const data = static_cast<const char*>(from.data());
        // Copy the data. The stream might release a reference to the array while it must not wait
        // for the GIL.
        emulated_cuda::enqueue(
            stream_of(stream),
            [to = to.data(), held = std::vector<char>(data, data + from.nbytes())] {
              if (!held.empty()) std::memcpy(to, held.data(), held.size());
            });
      },
      nb::arg("to"), nb::arg("from_"), nb::arg("stream"),
      "Lets a stream write what `from_` has now to `to`, when it comes to that. Who calls keeps "
      "`to`.");
  emulated.def(
      "synchronize",
      [](std::uintptr_t stream) {
        const nb::gil_scoped_release without_gil;
        cudaStreamSynchronize(stream_of(stream));
      },
      nb::arg("stream"), "Has a stream do all its work.");
  emulated.def(
      "array_on",
      [](int device_type, int device) {
        static float nothing[2]{};  // its contents are never read
        const std::size_t shape[]{1, 2};
        return nb::cast(nb::ndarray<nb::array_api>(nothing, 2, shape, nb::handle(), nullptr,
                                                   nb::dtype<float>(), device_type, device),
                        nb::rv_policy::reference);
      },
      nb::arg("device_type"), nb::arg("device"),
      "An array [1, 2] of f32 that says it is there; numbers as DLPack has them.");
  emulated.def(
      "set_devices", [](int devices) { emulated_cuda::limits().devices = devices; },
      nb::arg("devices"), "How many GPUs there are.");
}

}  // namespace sparsesync::python
