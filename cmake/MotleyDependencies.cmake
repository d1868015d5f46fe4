# Every library that Motley builds on, found once, here. `scripts/setup.sh` installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(LibArchive REQUIRED)
find_package(CLI11 REQUIRED)

# dnnl's own package file asks for OpenCL headers that the CPU build does not need.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(motley_dnnl INTERFACE)
target_include_directories(motley_dnnl SYSTEM INTERFACE "${DNNL_INCLUDE_DIR}")
target_link_libraries(motley_dnnl INTERFACE "${DNNL_LIBRARY}")

# The OpenMP runtime that oneDNN itself runs on. Named here, and not found as a package, because
# another compiler would bring another runtime, and setting that one's threads would change nothing.
find_library(GOMP_LIBRARY NAMES libgomp.so.1 REQUIRED)
target_link_libraries(motley_dnnl INTERFACE "${GOMP_LIBRARY}")

find_path(CBLAS_INCLUDE_DIR openblas_config.h PATH_SUFFIXES openblas openblas-pthread REQUIRED)
find_library(OPENBLAS_LIBRARY openblas REQUIRED)
add_library(motley_openblas INTERFACE)
target_include_directories(motley_openblas SYSTEM INTERFACE "${CBLAS_INCLUDE_DIR}")
target_link_libraries(motley_openblas INTERFACE "${OPENBLAS_LIBRARY}")

find_path(GLOO_INCLUDE_DIR gloo/allreduce.h REQUIRED)
find_library(GLOO_LIBRARY gloo REQUIRED)
add_library(motley_gloo INTERFACE)
target_include_directories(motley_gloo SYSTEM INTERFACE "${GLOO_INCLUDE_DIR}")
target_link_libraries(motley_gloo INTERFACE "${GLOO_LIBRARY}")

# LibTorch is optional: without it, the torch devices say that this build has none. Its own package
# file stops the configuration where gflags or glog is missing. A vendor's build, for GPUs, is found
# through CMAKE_PREFIX_PATH. Sanitizers report too much about it, so their builds do without.
set(MOTLEY_HAVE_TORCH OFF)
if(NOT MOTLEY_SANITIZE)
  find_path(TORCH_INCLUDE_DIR ATen/ATen.h)
  find_library(TORCH_LIBRARY torch)
  find_library(TORCH_CPU_LIBRARY torch_cpu)
  find_library(C10_LIBRARY c10)
  if(TORCH_INCLUDE_DIR AND TORCH_LIBRARY AND TORCH_CPU_LIBRARY AND C10_LIBRARY)
    set(MOTLEY_HAVE_TORCH ON)
  endif()
endif()
if(MOTLEY_HAVE_TORCH)
  add_library(motley_torch INTERFACE)
  target_include_directories(motley_torch SYSTEM INTERFACE "${TORCH_INCLUDE_DIR}")
  # Nothing calls into `torch` itself, but it brings the operators for GPUs.
  target_link_libraries(motley_torch INTERFACE
    "-Wl,--push-state,--no-as-needed,${TORCH_LIBRARY},--pop-state"
    "${TORCH_CPU_LIBRARY}" "${C10_LIBRARY}")
else()
  message(STATUS "LibTorch: not used; devices of kind torch are left out")
endif()
