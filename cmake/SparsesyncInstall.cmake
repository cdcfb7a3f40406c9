# Installs the library with its exported targets, the public headers, and the program.
#   find_package(sparsesync) defines sparsesync::sparsesync, the whole library.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sparsesync)

# The engine is the topmost layer of the library; users link no other target.
set_target_properties(sparsesync_engine PROPERTIES EXPORT_NAME sparsesync)
set_target_properties(sparsesync_options PROPERTIES EXPORT_NAME options)
set_target_properties(sparsesync_kernels PROPERTIES EXPORT_NAME kernels)
set_target_properties(sparsesync_schemes_files PROPERTIES EXPORT_NAME schemes_files)
set_target_properties(sparsesync_schemes PROPERTIES EXPORT_NAME schemes)
set_target_properties(sparsesync_memory PROPERTIES EXPORT_NAME memory)

install(
  TARGETS sparsesync_options sparsesync_kernels sparsesync_schemes_files sparsesync_schemes
          sparsesync_memory sparsesync_engine
  EXPORT sparsesync
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT sparsesync NAMESPACE sparsesync:: FILE sparsesync-targets.cmake DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/sparsesync-config.cmake.in sparsesync-config.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(sparsesync-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparsesync-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/sparsesync-config-version.cmake
        DESTINATION ${package_dir})

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
