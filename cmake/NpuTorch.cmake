# _torch: the device `npu` for the torch that is installed for this Python. Built only if torch is installed; its
# headers and libraries are found in its package, without importing it.
execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c
    "import importlib.util as u, pathlib as p, runpy
spec = u.find_spec('torch')
home = p.Path(spec.submodule_search_locations[0])
print(home, runpy.run_path(str(home / 'version.py'))['__version__'], sep=';', end='')"
  OUTPUT_VARIABLE torch_facts RESULT_VARIABLE torch_missing ERROR_QUIET)
if(torch_missing)
  message(STATUS "torch is not installed for ${Python3_EXECUTABLE}: building without the torch device")
  return()
endif()
list(GET torch_facts 0 torch_home)
list(GET torch_facts 1 torch_version)
message(STATUS "Building the torch device for torch ${torch_version}")
file(GLOB torch_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/csrc/torch/*.cc")
list(APPEND torch_sources "${PROJECT_SOURCE_DIR}/python/csrc/errors.cc")
pybind11_add_module(_torch MODULE NO_EXTRAS ${torch_sources})
target_compile_definitions(_torch PRIVATE AT_PER_OPERATOR_HEADERS)
target_precompile_headers(_torch PRIVATE <ATen/core/Tensor.h> <torch/library.h>)
target_include_directories(_torch SYSTEM PRIVATE "${torch_home}/include"
                           "${torch_home}/include/torch/csrc/api/include")
# torch's profiler receives a device's events through Kineto, whose headers need {fmt} but not its library.
set_source_files_properties("${PROJECT_SOURCE_DIR}/python/csrc/torch/profiler.cc" PROPERTIES
  SKIP_PRECOMPILE_HEADERS ON COMPILE_DEFINITIONS "USE_KINETO;FMT_HEADER_ONLY"
  INCLUDE_DIRECTORIES "${torch_home}/include/kineto")
# Most of a source's compilation is torch's headers and templates, so several sources share one translation unit. The
# names in their unnamed namespaces must therefore be unique in the folder.
set_target_properties(_torch PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
# No path to torch is stored: Python imports torch first, and the loader then finds these libraries by name.
foreach(name torch_python torch_cpu c10)
  target_link_libraries(_torch PRIVATE "${torch_home}/lib/lib${name}.so")
endforeach()
target_link_libraries(_torch PRIVATE npu_runtime)
# The kernels do the work: at -O3 these call templates take a third more of the build's longest part.
target_compile_options(_torch PRIVATE -O1 -fopenmp-simd)  # kernel headers are written for it
set_target_properties(_torch PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN"
                      INSTALL_RPATH_USE_LINK_PATH OFF LINK_OPTIONS "LINKER:--allow-shlib-undefined")
# Python compares this version with the installed torch before it loads the library.
file(CONFIGURE OUTPUT "${NPU_LIBRARY_DIR}/_torch_build.py" CONTENT
"\"\"\"Written by the build: the torch that _torch was built for.\"\"\"

TORCH_VERSION = \"${torch_version}\"
" @ONLY)

# _torch_distributed: the process group `hccl`. Its classes derive from torch's, so it is built with torch's pybind11,
# and it is only loaded where torch has torch.distributed.
file(GLOB distributed_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/csrc/torch_distributed/*.cc")
Python3_add_library(_torch_distributed MODULE WITH_SOABI ${distributed_sources})
target_compile_definitions(_torch_distributed PRIVATE AT_PER_OPERATOR_HEADERS USE_DISTRIBUTED USE_C10D)
target_include_directories(_torch_distributed SYSTEM PRIVATE "${torch_home}/include"
                           "${torch_home}/include/torch/csrc/api/include")
foreach(name torch_python torch_cpu c10)
  target_link_libraries(_torch_distributed PRIVATE "${torch_home}/lib/lib${name}.so")
endforeach()
target_link_libraries(_torch_distributed PRIVATE npu_runtime)
target_compile_options(_torch_distributed PRIVATE -O1)
set_target_properties(_torch_distributed PROPERTIES UNITY_BUILD ON BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN"
                      INSTALL_RPATH_USE_LINK_PATH OFF LINK_OPTIONS "LINKER:--allow-shlib-undefined"
                      CXX_VISIBILITY_PRESET hidden)
