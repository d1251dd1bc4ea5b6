# npu_fetch_headers(<what> <result>): the include directory of pinned headers, from the cache or downloaded.
set(NPU_CACHE_DIR "" CACHE PATH "Where downloaded headers are kept (default: the user's cache folder)")

function(npu_fetch_headers what result)
  set(cache "${NPU_CACHE_DIR}")
  if(NOT cache)
    if(DEFINED ENV{XDG_CACHE_HOME})
      set(cache "$ENV{XDG_CACHE_HOME}/onnxruntime-npu")
    else()
      set(cache "$ENV{HOME}/.cache/onnxruntime-npu")
    endif()
  endif()
  message(STATUS "Looking for the headers of ${what} in the cache, else fetching them")
  execute_process(COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/fetch_headers.py" ${what} --cache "${cache}"
                  OUTPUT_VARIABLE include_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_VARIABLE error ERROR_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  string(TOUPPER "${what}" variable)
  if(failed)
    message(FATAL_ERROR "${error}\nGive their folder with -DNPU_${variable}_INCLUDE_DIR=DIR.")
  endif()
  set(${result} "${include_dir}" PARENT_SCOPE)
endfunction()
