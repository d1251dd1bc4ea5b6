# _C: the runtime for Python (pybind11). No torch.
execute_process(COMMAND "${Python3_EXECUTABLE}" -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_dir
                OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE pybind11_missing)
if(pybind11_missing)
  message(FATAL_ERROR "pybind11 is not installed for ${Python3_EXECUTABLE}; run: ${Python3_EXECUTABLE} -m pip install pybind11")
endif()
set(PYTHON_EXECUTABLE "${Python3_EXECUTABLE}")
find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 CONFIG REQUIRED PATHS "${pybind11_dir}")
file(GLOB binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/csrc/*.cc")
# NO_EXTRAS: link-time optimisation of a thin binding costs every rebuild 20 s and gains nothing.
pybind11_add_module(_C MODULE NO_EXTRAS ${binding_sources})
target_link_libraries(_C PRIVATE npu_runtime)
# Nothing here is performance-critical, and -O1 shortens the build of its templates.
target_compile_options(_C PRIVATE -O1)
set_target_properties(_C PROPERTIES UNITY_BUILD ON)  # its headers cost more than its sources
target_precompile_headers(_C PRIVATE <pybind11/pybind11.h> <pybind11/stl.h> <pybind11/functional.h>)
