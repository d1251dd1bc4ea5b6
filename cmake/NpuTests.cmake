# C++ tests (tests/cpp/<area>/*_test.cc, doctest; tests/cpp/main.cc holds doctest's main) and
# micro-benchmarks (benchmarks/cpp/*.cc).
find_package(Doctest REQUIRED)
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/cpp/*_test.cc")
add_executable(npu_tests "${PROJECT_SOURCE_DIR}/tests/cpp/main.cc" ${test_sources})
# The order of a session's runs, which needs no onnxruntime.
target_sources(npu_tests PRIVATE "${PROJECT_SOURCE_DIR}/ep/provider/device_state.cc"
                                 "${PROJECT_SOURCE_DIR}/ep/provider/session_runs.cc")
target_include_directories(npu_tests SYSTEM PRIVATE "${Doctest_INCLUDE_DIR}")
target_link_libraries(npu_tests PRIVATE npu_runtime)
target_compile_options(npu_tests PRIVATE -O1 -fopenmp-simd)  # kernel headers are written for it
set_target_properties(npu_tests PROPERTIES BUILD_RPATH "${NPU_LIBRARY_DIR}")
target_precompile_headers(npu_tests PRIVATE <algorithm> <cmath> <string> <vector> <doctest/doctest.h>
                          "${PROJECT_SOURCE_DIR}/ep/runtime/kernel_api.h")
set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/cpp/main.cc" PROPERTIES
  SKIP_PRECOMPILE_HEADERS ON)  # requests doctest's implementation before it includes it
foreach(isa IN LISTS isas)
  add_dependencies(npu_tests npu_kernels_${isa})
endforeach()
add_test(NAME npu_tests COMMAND npu_tests)

# The stress program (tests/stress), of which npu_tests runs a short form.
file(GLOB stress_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/stress/*.cc")
list(FILTER stress_sources EXCLUDE REGEX "runtime_stress\\.cc$")
add_library(npu_stress_work OBJECT ${stress_sources})
target_link_libraries(npu_stress_work PRIVATE npu_runtime)
target_compile_options(npu_stress_work PRIVATE -O1)
add_executable(npu_stress "${PROJECT_SOURCE_DIR}/tests/stress/runtime_stress.cc")
target_link_libraries(npu_stress PRIVATE npu_stress_work npu_runtime)
target_compile_options(npu_stress PRIVATE -O1)
set_target_properties(npu_stress PROPERTIES BUILD_RPATH "${NPU_LIBRARY_DIR}")
target_link_libraries(npu_tests PRIVATE npu_stress_work)

# Tile instructions in software, to preload (tests/cpp/emulation/tile_emulator.cc). Its registers are thread-local
# memory that a signal handler uses, so they must not be allocated at first use.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_library(npu_tile_emulator SHARED "${PROJECT_SOURCE_DIR}/tests/cpp/emulation/tile_emulator.cc")
  target_include_directories(npu_tile_emulator PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(npu_tile_emulator PRIVATE -O3 -ftls-model=initial-exec)
  set_target_properties(npu_tile_emulator PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  add_dependencies(npu_tests npu_tile_emulator)
endif()
# The kernel tests again at each level that was built, as older machines run them.
foreach(isa IN LISTS isas)
  add_test(NAME npu_kernel_tests_${isa} COMMAND npu_tests --source-file=*/tests/cpp/kernels/*)
  set_tests_properties(npu_kernel_tests_${isa} PROPERTIES
    ENVIRONMENT "ORT_NPU_ISA=${isa}" SKIP_REGULAR_EXPRESSION "ORT_NPU_ISA: this machine lacks")
endforeach()

file(GLOB bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/benchmarks/cpp/*.cc")
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL "${source}")  # cmake --build build/cmake --target <name>
  target_link_libraries(${name} PRIVATE npu_runtime)
  set_target_properties(${name} PROPERTIES BUILD_RPATH "${NPU_LIBRARY_DIR}")
endforeach()
