# libonnxruntime_providers_npu.so: the plugin. It never links libonnxruntime.
find_package(OnnxRuntimeHeaders REQUIRED)
file(GLOB_RECURSE provider_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ep/provider/*.cc")
add_library(onnxruntime_providers_npu SHARED ${provider_sources})
set_target_properties(onnxruntime_providers_npu PROPERTIES UNITY_BUILD ON)  # its headers cost more than its sources
target_include_directories(onnxruntime_providers_npu SYSTEM PRIVATE "${OnnxRuntimeHeaders_INCLUDE_DIR}")
target_link_libraries(onnxruntime_providers_npu PRIVATE npu_runtime)
set(version_file "${PROJECT_SOURCE_DIR}/python/onnxruntime_npu/version.py")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${version_file}")
file(STRINGS "${version_file}" version REGEX "^__version__ = ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" version "${version}")
target_compile_definitions(onnxruntime_providers_npu PRIVATE NPU_VERSION="${version}")
target_link_options(onnxruntime_providers_npu PRIVATE -Wl,--no-undefined)
