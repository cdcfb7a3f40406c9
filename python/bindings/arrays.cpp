#include "python/bindings/arrays.h"

#include <nanobind/stl/string.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/base/device_stream.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "python/bindings/gil.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// Describes an object for an error message, such as "ndarray of int32 [4, 2]": type, dtype and
/// shape, as far as it has them.
std::string described(nb::handle given) {
  std::string text = nb::type_name(given.type()).c_str();
  for (const auto& [attribute, before] : {std::pair{"dtype", " of "}, std::pair{"shape", " "}}) {
    try {
      if (!nb::hasattr(given, attribute)) continue;
      const nb::object value = given.attr(attribute);
      text += before + std::string(nb::str(nb::handle(value)).c_str());
    } catch (nb::python_error&) {  // the type alone will do
    }
  }
  return text;
}

/// Names the owner of an array's memory.
/// @param type    DLPack's device type
/// @param number  DLPack's device number
std::string owner_of(int type, int number) {
  if (type == nb::device::cpu::value) return "the host";
  if (type == nb::device::cuda::value) return fmt::format("cuda:{}", number);
  return fmt::format("another device (DLPack's {}:{})", type, number);
}

bool is_there(int type, int number, Place place) {
  if (!place.gpu) return type == nb::device::cpu::value;
  // The memory of an emulated GPU is the host's.
  if (device_facts().emulated) return type == nb::device::cpu::value;
  return type == nb::device::cuda::value && number == *place.gpu;
}

/// Returns a view of an array, without a copy.
/// @param wanted  description of acceptable arrays, for the error message
/// @throws InputError if the array is of another kind, elsewhere, or misaligned
template <typename Wanted>
Wanted uncopied(nb::handle given, const std::string& what, Place place, const char* wanted) {
  Wanted array;
  constexpr bool kConvert = false;
  const std::string memory = place.gpu ? fmt::format("cuda:{}'s", *place.gpu) : "host";
  if (!nb::try_cast(given, array, kConvert)) {
    throw InputError(
        fmt::format("{}: give {} (NumPy or DLPack) in {} memory, contiguous "
                    "(numpy.ascontiguousarray), not {}",
                    what, wanted, memory, described(given)));
  }
  // The location of an empty array does not matter.
  if (array.size() > 0 && !is_there(array.device_type(), array.device_id(), place)) {
    throw InputError(fmt::format("{}: an array in the memory of {}: copy it to {} memory", what,
                                 owner_of(array.device_type(), array.device_id()), memory));
  }
  const auto alignment = static_cast<std::uintptr_t>(array.itemsize());
  if (array.size() > 0 && alignment > 1 &&
      reinterpret_cast<std::uintptr_t>(array.data()) % alignment != 0) {
    throw InputError(
        fmt::format("{}: its memory is not aligned to elements of {} bytes: give a copy", what,
                    array.itemsize()));
  }
  return array;
}

nb::dlpack::dtype type_in_numpy(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(element_bytes(dtype) * 8);
  if (dtype == DType::bf16) return nb::dtype<std::uint16_t>();
  const auto code = is_integer(dtype) ? nb::dlpack::dtype_code::Int : nb::dlpack::dtype_code::Float;
  return {static_cast<std::uint8_t>(code), bits, 1};
}

template <typename Element>
nb::object owning_array(std::unique_ptr<Element[]> memory, std::initializer_list<std::size_t> shape,
                        nb::dlpack::dtype type) {
  Element* const data = memory.get();
  const nb::capsule owner(data,
                          [](void* pointer) noexcept { delete[] static_cast<Element*>(pointer); });
  static_cast<void>(memory.release());
  nb::ndarray<nb::numpy> array(data, shape.size(), shape.begin(), owner, nullptr, type);
  return array.cast();
}

template <typename Element>
std::unique_ptr<Element[]> copy_of(std::span<const Element> elements) {
  const WithoutGil without_gil;
  auto memory = std::make_unique_for_overwrite<Element[]>(elements.size());
  if (!elements.empty()) std::memcpy(memory.get(), elements.data(), elements.size_bytes());
  return memory;
}

}  // namespace

ConstArray array_of(nb::handle given, const std::string& what, Place place) {
  return uncopied<ConstArray>(given, what, place, "an array");
}

Array writable_of(nb::handle given, const std::string& what, Place place) {
  return uncopied<Array>(given, what, place, "a writable array");
}

ConstIndices indices_of(nb::handle given, const std::string& what, Place place) {
  return uncopied<ConstIndices>(given, what, place, "an array of int64 with one dimension");
}

void expect_inside(std::span<const Index> indices, Index rows, const std::string& what) {
  const auto outside = std::find_if(indices.begin(), indices.end(),
                                    [&](Index index) { return index < 0 || index >= rows; });
  if (outside == indices.end()) return;
  throw InputError(fmt::format("{}: index {} at position {} is outside [0, {})", what, *outside,
                               outside - indices.begin(), rows));
}

DType dtype_of(nb::dlpack::dtype type, const std::string& what) {
  if (type == nb::dtype<std::uint16_t>()) return DType::bf16;
  for (const DType dtype : kDTypes) {
    const auto code = dtype == DType::bf16 ? nb::dlpack::dtype_code::Bfloat
                      : is_integer(dtype)  ? nb::dlpack::dtype_code::Int
                                           : nb::dlpack::dtype_code::Float;
    if (type == nb::dlpack::dtype{static_cast<std::uint8_t>(code),
                                  static_cast<std::uint8_t>(element_bytes(dtype) * 8), 1}) {
      return dtype;
    }
  }
  throw InputError(fmt::format("{}: its dtype is not one of {} (bf16 in NumPy: uint16)", what,
                               dtype_names(", ")));
}

ConstMatrix matrix_of(const ConstArray& array, const std::string& what) {
  if (array.ndim() == 0)
    throw InputError(fmt::format("{}: the array has no dimension: the first one is rows", what));
  Index width = 1;
  for (std::size_t i = 1; i < array.ndim(); ++i) width *= static_cast<Index>(array.shape(i));
  static constexpr std::byte kNothing{};  // address for an empty array, which may have none
  const auto* const data = static_cast<const std::byte*>(array.data());
  return {data == nullptr ? &kNothing : data, dtype_of(array.dtype(), what),
          static_cast<Index>(array.shape(0)), width};
}

nb::object new_indices(std::span<const Index> indices) {
  return new_indices(copy_of(indices), std::ssize(indices));
}

nb::object new_indices(std::unique_ptr<Index[]> indices, Index count) {
  return owning_array(std::move(indices), {static_cast<std::size_t>(count)},
                      nb::dtype<std::int64_t>());
}

nb::object new_values(ConstMatrix values) {
  return owning_array(
      copy_of(values.as_bytes()),
      {static_cast<std::size_t>(values.rows), static_cast<std::size_t>(values.width)},
      type_in_numpy(values.dtype));
}

}  // namespace sparsesync::python
