# libnpu_kernels_host_<isa>.so: every kernel of the host backend, compiled once per instruction-set level. The runtime
# loads exactly one of them, so code built for a wider ISA can never be picked by the linker for a machine
# that lacks it (docs/decisions/0001-one-kernel-library-per-isa.md).
set(NPU_CONTRIB_OPS_DIR "${PROJECT_SOURCE_DIR}/contrib_ops" CACHE PATH "The npu:: operators: <family>/<op>.{py,cc}")
option(NPU_STANDARD_KERNELS "Build the kernels of the standard ONNX operators" ON)
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS "${NPU_CONTRIB_OPS_DIR}/*.cc")
if(NPU_STANDARD_KERNELS)
  file(GLOB_RECURSE standard_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ep/kernels/*.cc")
  list(APPEND kernel_sources ${standard_sources})
else()
  list(APPEND kernel_sources "${PROJECT_SOURCE_DIR}/ep/kernels/onnx_def.cc")  # what definitions call
endif()
file(GLOB_RECURSE op_definitions CONFIGURE_DEPENDS "${NPU_CONTRIB_OPS_DIR}/*.py")
file(GLOB op_generator CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/onnxruntime_npu/opdef/*.py")

# The signatures of the npu:: operators, the positions of their arguments (contrib_ops/<family>/<op>.h, which the kernel
# beside the definition includes) and the type stubs of their functions: build outputs, never committed.
# codegen.py runs as a script, without installed packages (-S): a build may lack them, or pip may be unpacking them.
set(op_table "${PROJECT_BINARY_DIR}/generated/npu_op_table.cc")
set(op_stubs "${NPU_LIBRARY_DIR}/ops.pyi")
set(op_headers ${op_definitions})
list(FILTER op_headers INCLUDE REGEX "^${NPU_CONTRIB_OPS_DIR}/[^/]+/[^/_][^/]*[.]py$")
# An operator that consists of standard ones has no kernel beside it, and no header.
foreach(definition ${op_headers})
  string(REGEX REPLACE "[.]py$" ".cc" kernel "${definition}")
  if(NOT EXISTS "${kernel}")
    list(REMOVE_ITEM op_headers "${definition}")
  endif()
endforeach()
list(TRANSFORM op_headers REPLACE "^${NPU_CONTRIB_OPS_DIR}/(.*)[.]py$" "${PROJECT_BINARY_DIR}/generated/contrib_ops/\\1.h")
add_custom_command(
  OUTPUT "${op_table}" "${op_stubs}"
  BYPRODUCTS ${op_headers}
  COMMAND "${Python3_EXECUTABLE}" -B -S "${PROJECT_SOURCE_DIR}/python/onnxruntime_npu/opdef/codegen.py"
          "${NPU_CONTRIB_OPS_DIR}" "${op_table}" "${PROJECT_BINARY_DIR}/generated/contrib_ops" "${op_stubs}"
  DEPENDS ${op_definitions} ${op_generator}
  COMMENT "Generating the npu:: operator table"
  VERBATIM)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(all_isas portable avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(all_isas portable neon)
else()
  set(all_isas portable)
endif()
set(NPU_ISAS all CACHE STRING "Instruction-set levels to build kernels for: all, native (this machine's), or names")
set(isas ${NPU_ISAS})
if(NPU_ISAS STREQUAL "all")
  set(isas ${all_isas})
elseif(NPU_ISAS STREQUAL "native")
  try_run(ran compiled "${PROJECT_BINARY_DIR}/native_isa" "${PROJECT_SOURCE_DIR}/cmake/native_isa.cc"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}"
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
    COMPILE_OUTPUT_VARIABLE compile_output RUN_OUTPUT_VARIABLE isas)
  if(NOT compiled OR NOT ran EQUAL 0)
    message(FATAL_ERROR "NPU_ISAS=native: this machine's instruction-set level cannot be told; name one of "
                        "${all_isas}\n${compile_output}${isas}")
  endif()
  string(STRIP "${isas}" isas)
  message(STATUS "Kernels for this machine's instruction set only: ${isas}")
endif()
set(NPU_ISA_FLAGS_portable "")
set(NPU_ISA_FLAGS_avx2 -march=x86-64-v3)
# Every processor with AVX-512 has PREFETCHW, which x86-64-v4 does not include. gcc warns about its own AVX-512 headers
# (gcc bug 105593).
set(NPU_ISA_FLAGS_avx512 -march=x86-64-v4 -mprfchw -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)
set(NPU_ISA_FLAGS_neon -march=armv8.2-a+fp16+dotprod)

# These must give the same results on every processor: a contracted product and sum would round once, not twice.
file(GLOB_RECURSE exact_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ep/kernels/random/*.cc"
     "${PROJECT_SOURCE_DIR}/ep/kernels/generator/linspace.cc" "${PROJECT_SOURCE_DIR}/ep/kernels/quantization/*.cc"
     "${PROJECT_SOURCE_DIR}/ep/kernels/*_exact.cc")
set_source_files_properties(${exact_sources} PROPERTIES COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)

# A table of constants: compiled once, for any machine.
add_library(npu_op_table OBJECT "${op_table}")
target_link_libraries(npu_op_table PRIVATE npu_runtime)
target_compile_options(npu_op_table PRIVATE -O0)
set_target_properties(npu_op_table PROPERTIES POSITION_INDEPENDENT_CODE ON)

# With the vectorizer's full cost model -O2 gives kernels as fast as -O3 (129 elementwise and reduction cases: 0.99 of its
# time on geometric average) in four fifths of the build time. Sanitizers check the same accesses at any level, and the
# portable kernels must run anywhere, not fast: -O1 halves their build time.
set(vectorized -O2 -ftree-vectorize -fvect-cost-model=dynamic)
foreach(isa IN LISTS isas)
  set(optimization ${vectorized})
  if(isa STREQUAL portable OR NPU_SANITIZE)
    set(optimization -O1)
  endif()
  # The table last: of an inline function compiled twice the linker takes the first, the one for this level.
  add_library(npu_kernels_${isa} SHARED ${kernel_sources} $<TARGET_OBJECTS:npu_op_table>)
  add_dependencies(npu_kernels_${isa} npu_op_table)  # and the headers generated with it
  set_target_properties(npu_kernels_${isa} PROPERTIES OUTPUT_NAME npu_kernels_host_${isa})
  target_link_libraries(npu_kernels_${isa} PRIVATE npu_runtime)
  target_include_directories(npu_kernels_${isa} PRIVATE "${PROJECT_BINARY_DIR}/generated")
  target_compile_options(npu_kernels_${isa} PRIVATE ${optimization} -fopenmp-simd -ffp-contract=fast ${NPU_ISA_FLAGS_${isa}})
  target_compile_definitions(npu_kernels_${isa} PRIVATE NPU_KERNEL_ISA_${isa}=1)
  # Headers that most kernels include, parsed once per level and not once per source; the last brings <immintrin.h>, a
  # quarter of a second.
  target_precompile_headers(npu_kernels_${isa} PRIVATE <algorithm> <cmath> <cstring> <functional> <limits> <memory> <string>
                            <utility> <vector> "${PROJECT_SOURCE_DIR}/ep/runtime/kernel_api.h"
                            "${PROJECT_SOURCE_DIR}/ep/kernels/convert.h")
endforeach()
