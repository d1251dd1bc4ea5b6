# Finds doctest's header (Debian: doctest-dev): a given folder, the system, the cache, a pinned download.
# Result: Doctest_INCLUDE_DIR, which contains doctest/doctest.h.
set(NPU_DOCTEST_INCLUDE_DIR "" CACHE PATH "Folder that contains doctest/doctest.h")
find_path(Doctest_INCLUDE_DIR doctest/doctest.h HINTS "${NPU_DOCTEST_INCLUDE_DIR}")
if(NOT Doctest_INCLUDE_DIR)
  include(NpuFetchHeaders)
  npu_fetch_headers(doctest fetched)
  set(Doctest_INCLUDE_DIR "${fetched}" CACHE PATH "" FORCE)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Doctest REQUIRED_VARS Doctest_INCLUDE_DIR)
