# sparsesync_layer(TARGET LAYER [PUBLIC_HEADERS ...]): lets TARGET include the headers of LAYER, as "LAYER/...", and of the layers
# that it links. Each layer has a separate include root, a folder of links in the build, so that an include of a higher layer does
# not compile. PUBLIC_HEADERS lists the headers of include/sparsesync that the layer defines.
function(sparsesync_layer target layer)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "PUBLIC_HEADERS")
  set(root ${PROJECT_BINARY_DIR}/include-roots/${layer})
  file(MAKE_DIRECTORY ${root}/sparsesync/transports)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${root}/${layer} SYMBOLIC)
  foreach(header ${arg_PUBLIC_HEADERS})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/sparsesync/${header} ${root}/sparsesync/${header} SYMBOLIC)
    set_property(GLOBAL APPEND PROPERTY SPARSESYNC_PUBLIC_HEADERS ${header})
  endforeach()
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}>)
  target_link_libraries(${target} PUBLIC sparsesync_options)
endfunction()

# Every file of include/sparsesync belongs to a layer. Call it when all layers are declared.
function(sparsesync_check_public_headers)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include/sparsesync
       ${PROJECT_SOURCE_DIR}/include/sparsesync/*.h)
  get_property(claimed GLOBAL PROPERTY SPARSESYNC_PUBLIC_HEADERS)
  list(REMOVE_ITEM headers ${claimed})
  if(headers)
    message(FATAL_ERROR "include/sparsesync: no layer has ${headers}: name it in sparsesync_layer() of one")
  endif()
endfunction()
