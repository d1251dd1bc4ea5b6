# Finds ONNX Runtime's C API headers: a given folder, the system, the cache, a pinned download.
# Result: OnnxRuntimeHeaders_INCLUDE_DIR, which contains onnxruntime_ep_c_api.h.
set(NPU_ONNXRUNTIME_INCLUDE_DIR "" CACHE PATH "Folder that contains onnxruntime_ep_c_api.h")
# The plugin interface this provider is written against; older headers lack parts of it.
set(required_api 27)

function(npu_onnxruntime_api_version include_dir result)
  set(version 0)
  if(EXISTS "${include_dir}/onnxruntime_c_api.h" AND EXISTS "${include_dir}/onnxruntime_ep_c_api.h")
    file(STRINGS "${include_dir}/onnxruntime_c_api.h" line REGEX "^#define ORT_API_VERSION [0-9]+")
    string(REGEX REPLACE "[^0-9]" "" version "${line}")
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

find_path(OnnxRuntimeHeaders_INCLUDE_DIR onnxruntime_ep_c_api.h
          HINTS "${NPU_ONNXRUNTIME_INCLUDE_DIR}" "${NPU_ONNXRUNTIME_INCLUDE_DIR}/onnxruntime" PATH_SUFFIXES onnxruntime)
if(OnnxRuntimeHeaders_INCLUDE_DIR)
  npu_onnxruntime_api_version("${OnnxRuntimeHeaders_INCLUDE_DIR}" found_api)
  if(found_api LESS required_api)
    if(NPU_ONNXRUNTIME_INCLUDE_DIR)
      message(FATAL_ERROR "${OnnxRuntimeHeaders_INCLUDE_DIR} has ONNX Runtime API ${found_api}; ${required_api} or newer is needed.")
    endif()
    unset(OnnxRuntimeHeaders_INCLUDE_DIR CACHE)
  endif()
endif()
if(NOT OnnxRuntimeHeaders_INCLUDE_DIR)
  include(NpuFetchHeaders)
  npu_fetch_headers(onnxruntime fetched)
  set(OnnxRuntimeHeaders_INCLUDE_DIR "${fetched}" CACHE PATH "" FORCE)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntimeHeaders REQUIRED_VARS OnnxRuntimeHeaders_INCLUDE_DIR)
