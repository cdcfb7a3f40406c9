// Translation of C++ exceptions to the Python exceptions of sparsesync/errors.py.
#include <nanobind/nanobind.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "kernels/base/printable.h"
#include "python/bindings/bindings.h"
#include "python/bindings/closed.h"
#include "schemes/transport.h"
#include "sparsesync/errors.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// The exception classes. Their references are never released.
struct Classes {
  PyObject* error;
  PyObject* input;
  PyObject* io;
  PyObject* budget;
  PyObject* device;
  PyObject* device_memory;
  PyObject* corrupt;
  PyObject* agreement;
  PyObject* order;
  PyObject* deadline;
  PyObject* unsupported;
  PyObject* protocol;
  PyObject* closed;
  PyObject* contract;
  PyObject* peer;
  PyObject* lost;
  PyObject* refused;
  PyObject* aborted;
};

/// Returns an error text as a Python string. It may quote arbitrary bytes, such as names in files
/// or other workers' messages, so it is made printable first.
nb::object text_of(std::string_view text) {
  const std::string shown = printable(text);
  return nb::steal(
      PyUnicode_DecodeUTF8(shown.data(), static_cast<Py_ssize_t>(shown.size()), "strict"));
}

void raise(PyObject* type, const std::exception& error) {
  PyErr_SetObject(type, text_of(error.what()).ptr());
}

/// Raises an error whose attribute `rank` is the worker that caused it.
void raise(PyObject* type, const PeerError& error) {
  const nb::object raised = nb::borrow(type)(text_of(error.what()));
  raised.attr("rank") = error.peer().value;
  PyErr_SetObject(type, raised.ptr());
}

/// Raises the Python counterpart of a C++ exception. Unknown exceptions pass to the next
/// translator.
void translate(const std::exception_ptr& thrown, void* payload) {
  const Classes& classes = *static_cast<const Classes*>(payload);
  try {
    std::rethrow_exception(thrown);
  } catch (const PeerLostError& error) {
    raise(classes.lost, error);
  } catch (const RefusedError& error) {
    raise(classes.refused, error);
  } catch (const AbortedError& error) {
    raise(classes.aborted, error);
  } catch (const PeerError& error) {
    raise(classes.peer, error);
  } catch (const InputError& error) {
    raise(classes.input, error);
  } catch (const IoError& error) {
    raise(classes.io, error);
  } catch (const BudgetError& error) {
    raise(classes.budget, error);
  } catch (const DeviceError& error) {
    raise(classes.device, error);
  } catch (const DeviceMemoryError& error) {
    raise(classes.device_memory, error);
  } catch (const CorruptDataError& error) {
    raise(classes.corrupt, error);
  } catch (const AgreementError& error) {
    raise(classes.agreement, error);
  } catch (const OrderError& error) {
    raise(classes.order, error);
  } catch (const DeadlineError& error) {
    raise(classes.deadline, error);
  } catch (const UnsupportedError& error) {
    raise(classes.unsupported, error);
  } catch (const ProtocolError& error) {
    raise(classes.protocol, error);
  } catch (const ClosedError& error) {
    raise(classes.closed, error);
  } catch (const Error& error) {
    raise(classes.error, error);
  } catch (const ContractError& error) {
    raise(classes.contract, error);
  } catch (const std::filesystem::filesystem_error& error) {
    raise(classes.io, error);
  } catch (const std::system_error& error) {
    raise(classes.error, error);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(classes.budget, "out of memory");
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  const nb::module_ errors = nb::module_::import_("sparsesync.errors");
  const auto taken = [&](const char* name) {
    nb::object type = errors.attr(name);
    module.attr(name) = type;
    return type.release().ptr();
  };
  static const Classes classes{taken("Error"),
                               taken("InputError"),
                               taken("IoError"),
                               taken("BudgetError"),
                               taken("DeviceError"),
                               taken("DeviceMemoryError"),
                               taken("CorruptDataError"),
                               taken("AgreementError"),
                               taken("OrderError"),
                               taken("DeadlineError"),
                               taken("UnsupportedError"),
                               taken("ProtocolError"),
                               taken("ClosedError"),
                               taken("ContractError"),
                               taken("PeerError"),
                               taken("PeerLostError"),
                               taken("RefusedError"),
                               taken("AbortedError")};
  nb::register_exception_translator(translate, const_cast<Classes*>(&classes));
}

}  // namespace sparsesync::python
