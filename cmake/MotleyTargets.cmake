# motley_library(NAME SOURCES … PUBLIC … PRIVATE … [BUSY]): the static library motley_NAME, alias
# motley::NAME. The folder's sources are listed, never globbed.
#
# BUSY: tests and fuzzers spend their time here, so it is optimised under ASan as well, where the
# rest is not: compiling it takes half as long, and running it hardly longer. In a development build
# the rest is optimised a little.
function(motley_library name)
  cmake_parse_arguments(ARG "BUSY" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(motley_${name} STATIC ${ARG_SOURCES})
  add_library(motley::${name} ALIAS motley_${name})
  set_target_properties(motley_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(motley_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(motley_${name} PUBLIC cxx_std_20)
  target_link_libraries(motley_${name}
    PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE}
           $<BUILD_INTERFACE:motley_warnings> $<BUILD_INTERFACE:motley_sanitizers>)
  if(ARG_BUSY AND MOTLEY_SANITIZE STREQUAL "address")
    target_compile_options(motley_${name} PRIVATE -O1)
  elseif(NOT ARG_BUSY AND NOT MOTLEY_SANITIZE AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    target_compile_options(motley_${name} PRIVATE -O1)
  endif()
endfunction()

# Everything that the sanitizer builds run, so that they build nothing else.
add_custom_target(sanitize_tests)  # ASan
add_custom_target(threads_tests)   # TSan

# motley_test(NAME SOURCES … DEPS … [LABELS …] [TIMEOUT seconds] [WHOLE] [BUSY]): a GoogleTest program;
# every case becomes a CTest test. Labels: root, data, torch, sanitize, threads, kernels.
#
# Programs that start slowly become one CTest test as a whole: those that are WHOLE because they
# load LibTorch, and under a sanitizer all of them, where every process of cluster_test makes its
# data and chooses its kernels for seconds before it tests anything. BUSY: its own loops take long.
function(motley_test name)
  cmake_parse_arguments(ARG "WHOLE;BUSY" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE
    ${ARG_DEPS} GTest::gtest GTest::gtest_main motley_warnings motley_sanitizers)
  # Nobody waits for a test's own code, but everybody for the compiler. ThreadSanitizer's code would
  # be too slow.
  if(ARG_BUSY OR MOTLEY_SANITIZE STREQUAL "thread")
    target_compile_options(${name} PRIVATE -O1)
  else()
    target_compile_options(${name} PRIVATE -O0)
  endif()
  foreach(source ${ARG_SOURCES})
    set_property(GLOBAL APPEND PROPERTY MOTLEY_TEST_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
  endforeach()
  foreach(label sanitize threads)
    if(label IN_LIST ARG_LABELS)
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
  # As one word, because CMake 3.25 cannot hand a list through; CTest looks for parts of it.
  string(REPLACE ";" "+" labels "${ARG_LABELS}")
  # What may take longest starts first, so that nothing long is left to run alone at the end.
  if(ARG_WHOLE OR MOTLEY_SANITIZE)
    math(EXPR timeout "5 * ${ARG_TIMEOUT}")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES
      TIMEOUT ${timeout} COST ${ARG_TIMEOUT} LABELS "${labels}")
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} LABELS "${labels}")
  endif()
endfunction()

# motley_leave_out(SOURCES…): tests of an optional part that this build does without.
function(motley_leave_out)
  foreach(source ${ARGN})
    set_property(GLOBAL APPEND PROPERTY MOTLEY_TEST_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
  endforeach()
endfunction()

# Fails when a *_test.cc below `root` belongs to no motley_test: a test that does not run is worse
# than none.
function(motley_check_every_test_is_listed root)
  get_property(listed GLOBAL PROPERTY MOTLEY_TEST_SOURCES)
  file(GLOB_RECURSE present CONFIGURE_DEPENDS "${root}/*_test.cc")
  foreach(file ${present})
    if(NOT file IN_LIST listed)
      message(FATAL_ERROR "${file} is listed in no motley_test(): add it to its CMakeLists.txt")
    endif()
  endforeach()
endfunction()
