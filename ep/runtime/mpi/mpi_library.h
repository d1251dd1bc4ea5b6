// MPI, loaded when it is asked for: a library with the binary interface of the MPI 5.0 standard (its chapter 20), as
// mpich's libmpi_abi. Nothing of it is needed to build this project.
#pragma once

#include <cstdint>
#include <string>

namespace npu {

// The standard's handles are pointers, and those of predefined objects small numbers.
using MpiHandle = void*;
using MpiCount = int64_t;

struct MpiStatus {
  int source, tag, error, reserved[5];
};

namespace mpi {
inline MpiHandle Predefined(uintptr_t number) { return reinterpret_cast<MpiHandle>(number); }
inline const MpiHandle kWorld = Predefined(0x101), kErrorsReturn = Predefined(0x143), kByte = Predefined(0x247),
                       kNoRequest = Predefined(0x180), kNoCommunicator = Predefined(0x100);
inline constexpr int kSuccess = 0, kThreadMultiple = 4096, kErrorTextBytes = 512;
inline constexpr int kGreatestTag = 32767;  // that every implementation has
}  // namespace mpi

class MpiLibrary {
 public:
  // `file` is a path, or a name that the dynamic linker finds. Throws Error(kUnsupported) for a file that is no such
  // library. It stays loaded.
  explicit MpiLibrary(const std::string& file);

  int (*Initialized)(int*) = nullptr;
  int (*Finalized)(int*) = nullptr;
  int (*InitThread)(int*, char***, int, int*) = nullptr;
  int (*QueryThread)(int*) = nullptr;
  int (*Finalize)() = nullptr;
  int (*CommRank)(MpiHandle, int*) = nullptr;
  int (*CommSize)(MpiHandle, int*) = nullptr;
  int (*CommIdup)(MpiHandle, MpiHandle*, MpiHandle*) = nullptr;
  int (*CommSetErrhandler)(MpiHandle, MpiHandle) = nullptr;
  int (*Isend)(const void*, MpiCount, MpiHandle, int, int, MpiHandle, MpiHandle*) = nullptr;
  int (*Irecv)(void*, MpiCount, MpiHandle, int, int, MpiHandle, MpiHandle*) = nullptr;
  int (*Test)(MpiHandle*, int*, MpiStatus*) = nullptr;
  int (*Iprobe)(int, int, MpiHandle, int*, MpiStatus*) = nullptr;
  int (*ErrorString)(int, char*, int*) = nullptr;

  // Throws Error(kDeviceError) with MPI's own text unless `result` is success.
  void Check(int result, const char* what) const;
};

}  // namespace npu
