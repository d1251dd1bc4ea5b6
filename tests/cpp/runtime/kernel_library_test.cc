#include "ep/runtime/kernel_library.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "ep/runtime/error.h"
#include "tests/cpp/support/temporary_folder.h"

namespace npu {
namespace {

class LibraryFolder : public test::TemporaryFolder {
 public:
  void Add(const std::string& level) { std::ofstream(File(level)) << "not really a library"; }
  std::string File(const std::string& level) const { return path() + "/libnpu_kernels_host_" + level + ".so"; }
  std::string Plain() const { return path() + "/libnpu_kernels_host.so"; }
};

}  // namespace

TEST_CASE("the library of the highest allowed level is selected") {
  LibraryFolder folder;
  folder.Add("portable");
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kAmx, /*forced=*/false) == folder.File("portable"));
  folder.Add("avx2");
  folder.Add("avx512");
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kAmx, false) == folder.File("avx512"));
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kAvx512, false) == folder.File("avx512"));
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kAvx2, false) == folder.File("avx2"));
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kPortable, false) == folder.File("portable"));
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kNeonBf16, false) == folder.File("portable"));
  folder.Add("neon");
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kNeonBf16, false) == folder.File("neon"));
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kNeon, false) == folder.File("neon"));
}

TEST_CASE("a forced level requires its own library") {
  LibraryFolder folder;
  folder.Add("portable");
  folder.Add("avx512");
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kAmx, /*forced=*/true) == folder.File("avx512"));
  CHECK_THROWS_AS(ChooseKernelLibrary(folder.path(), "host", Isa::kNeonBf16, true), Error);
  CHECK_THROWS_WITH_AS(ChooseKernelLibrary(folder.path(), "host", Isa::kAvx2, true),
                       ("no kernel library for ORT_NPU_ISA=avx2: expected " + folder.File("avx2") + " or " +
                        folder.Plain() + "; build the package with this level in NPU_ISAS or unset ORT_NPU_ISA")
                           .c_str(),
                       Error);
}

TEST_CASE("a backend has its own libraries, or one for every level") {
  LibraryFolder folder;
  folder.Add("avx2");
  const std::string other = folder.path() + "/libnpu_kernels_other.so";
  CHECK_THROWS_WITH_AS(ChooseKernelLibrary(folder.path(), "other", Isa::kAvx2, false), doctest::Contains(other.c_str()),
                       Error);
  std::ofstream(other) << "not really a library";
  CHECK(ChooseKernelLibrary(folder.path(), "other", Isa::kAvx2, /*forced=*/true) == other);
  CHECK(ChooseKernelLibrary(folder.path(), "host", Isa::kAvx2, false) == folder.File("avx2"));
}

TEST_CASE("the error for a missing library lists the searched locations") {
  LibraryFolder folder;
  CHECK_THROWS_WITH_AS(
      ChooseKernelLibrary(folder.path(), "host", Isa::kAvx2, /*forced=*/false),
      ("no kernel library for this machine, avx2: expected " + folder.File("avx2") + " or " + folder.File("portable") +
       " or " + folder.Plain() + "; build the package with this level in NPU_ISAS")
          .c_str(),
      Error);
}

}  // namespace npu
