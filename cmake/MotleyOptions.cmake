# Warnings and instrumentation as INTERFACE targets, so that nothing is set globally.
add_library(motley_warnings INTERFACE)
target_compile_options(motley_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual
  -Wcast-qual -Wformat=2 -Wundef -Wno-missing-field-initializers -Werror)
if(CMAKE_UNITY_BUILD)
  # GCC takes the sources that a unity file includes for headers.
  target_compile_options(motley_warnings INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

set(MOTLEY_SANITIZE "" CACHE STRING "address or thread: instrument everything with it")
add_library(motley_sanitizers INTERFACE)
if(MOTLEY_SANITIZE STREQUAL "address")
  target_compile_options(motley_sanitizers INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(motley_sanitizers INTERFACE -fsanitize=address,undefined)
elseif(MOTLEY_SANITIZE STREQUAL "thread")
  target_compile_options(motley_sanitizers INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(motley_sanitizers INTERFACE -fsanitize=thread)
elseif(MOTLEY_SANITIZE)
  message(FATAL_ERROR "MOTLEY_SANITIZE is '${MOTLEY_SANITIZE}'; it may be 'address' or 'thread'")
endif()
