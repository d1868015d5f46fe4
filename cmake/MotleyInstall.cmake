# `cmake --install`: the program, the libraries with their headers, and a package that
# `find_package(Motley)` finds. tests/install uses it as a stranger would.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/Motley")
install(TARGETS motley RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
set(optional_targets)
if(MOTLEY_HAVE_TORCH)
  list(APPEND optional_targets motley_torch)
  install(TARGETS motley_torch_module LIBRARY DESTINATION lib/motley)
endif()
install(TARGETS motley_base motley_graph motley_data motley_engine motley_engine_torch
                motley_engine_torch_loader motley_optim
                motley_telemetry motley_energy motley_run motley_plan motley_tune motley_cluster
                motley_cluster_proto motley_sim motley_gloo motley_dnnl motley_openblas
                ${optional_targets}
  EXPORT MotleyTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY motley/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/motley"
  FILES_MATCHING PATTERN "*.h")
install(DIRECTORY "${PROJECT_BINARY_DIR}/motley/cluster/generated/motley"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(EXPORT MotleyTargets NAMESPACE motley:: DESTINATION "${package_folder}")
configure_package_config_file(cmake/MotleyConfig.cmake.in
  "${PROJECT_BINARY_DIR}/MotleyConfig.cmake" INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/MotleyConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/MotleyConfig.cmake"
              "${PROJECT_BINARY_DIR}/MotleyConfigVersion.cmake"
  DESTINATION "${package_folder}")
