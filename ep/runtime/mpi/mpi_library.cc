#include "ep/runtime/mpi/mpi_library.h"

#include <dlfcn.h>

#include "ep/runtime/error.h"

namespace npu {
namespace {

template <class F>
void LoadFunction(void* library, const std::string& file, const char* name, F& function) {
  void* address = dlsym(library, name);
  if (address == nullptr)
    Fail(ErrorCode::kUnsupported, "expected a library of MPI with the function ", name, ", got ", Printable(file));
  function = reinterpret_cast<F>(address);
}

}  // namespace

MpiLibrary::MpiLibrary(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    Fail(ErrorCode::kUnsupported, "expected a library of MPI, got ", Printable(dlerror()),
         "; `pip install mpich` provides one, and the provider option 'mpi_library' says where another is");
  // Only libraries with the standard's numbers for handles have this function.
  int (*abi_version)(int*, int*) = nullptr;
  LoadFunction(library, file, "MPI_Abi_get_version", abi_version);
  int major = 0, minor = 0;
  if (abi_version(&major, &minor) != mpi::kSuccess || major != 1)
    Fail(ErrorCode::kUnsupported, "expected a library with version 1 of MPI's binary interface, got version ", major,
         ".", minor, " in ", Printable(file), "; mpich calls it libmpi_abi.so.1");
  LoadFunction(library, file, "MPI_Initialized", Initialized);
  LoadFunction(library, file, "MPI_Finalized", Finalized);
  LoadFunction(library, file, "MPI_Init_thread", InitThread);
  LoadFunction(library, file, "MPI_Query_thread", QueryThread);
  LoadFunction(library, file, "MPI_Finalize", Finalize);
  LoadFunction(library, file, "MPI_Comm_rank", CommRank);
  LoadFunction(library, file, "MPI_Comm_size", CommSize);
  LoadFunction(library, file, "MPI_Comm_idup", CommIdup);
  LoadFunction(library, file, "MPI_Comm_set_errhandler", CommSetErrhandler);
  LoadFunction(library, file, "MPI_Isend_c", Isend);
  LoadFunction(library, file, "MPI_Irecv_c", Irecv);
  LoadFunction(library, file, "MPI_Test", Test);
  LoadFunction(library, file, "MPI_Iprobe", Iprobe);
  LoadFunction(library, file, "MPI_Error_string", ErrorString);
}

void MpiLibrary::Check(int result, const char* what) const {
  if (result == mpi::kSuccess) return;
  char text[mpi::kErrorTextBytes + 1] = {};
  int length = 0;
  if (ErrorString(result, text, &length) != mpi::kSuccess) text[0] = '\0';
  Fail(ErrorCode::kDeviceError, what, " failed in MPI: ", Printable(text));
}

}  // namespace npu
