# What `cmake --install` leaves behind: the program, the libraries with their exported targets, and the public headers.
#   find_package(sparsesync) gives sparsesync::sparsesync, which links all floors.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sparsesync)

# The engine is the topmost floor: a user of the library names no other.
set_target_properties(sparsesync_engine PROPERTIES EXPORT_NAME sparsesync)
set_target_properties(sparsesync_options PROPERTIES EXPORT_NAME options)
set_target_properties(sparsesync_kernels PROPERTIES EXPORT_NAME kernels)
set_target_properties(sparsesync_schemes_files PROPERTIES EXPORT_NAME schemes_files)
set_target_properties(sparsesync_schemes PROPERTIES EXPORT_NAME schemes)
set_target_properties(sparsesync_analysis PROPERTIES EXPORT_NAME analysis)
set_target_properties(sparsesync_memory PROPERTIES EXPORT_NAME memory)

install(TARGETS sparsesync)
# For `sparsesync simulate`.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models DESTINATION ${CMAKE_INSTALL_DATADIR}/sparsesync FILES_MATCHING PATTERN "*.json")
install(
  TARGETS sparsesync_options sparsesync_kernels sparsesync_schemes_files sparsesync_schemes sparsesync_analysis
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

install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")
set(destination \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/sparsesync\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install-headers.cmake)
