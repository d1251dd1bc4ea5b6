# Finds doctest's header (Debian: doctest-dev). Result: Doctest_INCLUDE_DIR, which contains doctest/doctest.h.
find_path(Doctest_INCLUDE_DIR doctest/doctest.h HINTS "${NPU_DOCTEST_INCLUDE_DIR}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Doctest REQUIRED_VARS Doctest_INCLUDE_DIR)
