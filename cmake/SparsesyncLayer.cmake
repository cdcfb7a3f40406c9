# sparsesync_layer(TARGET LAYER): TARGET finds the headers of LAYER, as "LAYER/...", and those of the layers that it links.
# Each layer has an include root of its own, a folder of the build with one link in it: an include of a layer above does
# not compile.
function(sparsesync_layer target layer)
  set(root ${PROJECT_BINARY_DIR}/include-roots/${layer})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${root}/${layer} SYMBOLIC)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}>)
  target_link_libraries(${target} PUBLIC sparsesync_options)
endfunction()
