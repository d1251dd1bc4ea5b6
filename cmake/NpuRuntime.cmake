# libnpu_runtime.so: devices, allocator, streams, registry. No ORT, no torch, no Python.
file(GLOB_RECURSE runtime_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ep/runtime/*.cc")
add_library(npu_runtime SHARED ${runtime_sources})
target_include_directories(npu_runtime PUBLIC "${PROJECT_SOURCE_DIR}")
# Kernels and the provider use the runtime's C++ interface across the library boundary.
set_target_properties(npu_runtime PROPERTIES CXX_VISIBILITY_PRESET default)
target_link_libraries(npu_runtime PUBLIC Threads::Threads PRIVATE ${CMAKE_DL_LIBS})
