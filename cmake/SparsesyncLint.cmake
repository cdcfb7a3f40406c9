# Included by project() in the preset lint: "compiling" a source runs clang-tidy on it. The object is the preprocessed text, from which
# Ninja takes the dependencies. CONFIGURATION is part of the command, so that a changed configuration analyzes all sources again.
set(configuration)
foreach(file .clang-tidy analysis/cli/.clang-tidy bench/kernels/.clang-tidy python/bindings/.clang-tidy tests/.clang-tidy requirements-test.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(MD5 ${CMAKE_SOURCE_DIR}/${file} hash)
  string(APPEND configuration ${hash})
endforeach()
string(MD5 configuration ${configuration})
# The analyzer takes four fifths of the time. Limiting its states per function (default: 225000) halves that.
set(analyzer "-Xclang -analyzer-config -Xclang max-nodes=25000")
set(CMAKE_CXX_COMPILE_OBJECT
  "${CMAKE_COMMAND} -E env CONFIGURATION=${configuration} ${CMAKE_SOURCE_DIR}/.venv/bin/clang-tidy --quiet <SOURCE> -- <DEFINES> <INCLUDES> <FLAGS> -Wno-deprecated-declarations ${analyzer}"
  "<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -E -o <OBJECT> <SOURCE>")
foreach(rule CREATE_SHARED_LIBRARY CREATE_SHARED_MODULE LINK_EXECUTABLE ARCHIVE_CREATE)
  set(CMAKE_CXX_${rule} "${CMAKE_COMMAND} -E touch <TARGET>") # some sources wait for a library
endforeach()

# Headers are compiled as sources, too: misc-include-cleaner checks the includes of the main file only.
function(sparsesync_lint_headers)
  foreach(layer kernels schemes engine analysis include)
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${layer}/*.h)
    list(FILTER headers EXCLUDE REGEX "/kernels/cuda/|/nccl_library.h") # need CUDA
    if(headers)
      set_source_files_properties(${headers} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-Wno-pragma-once-outside-header")
      add_library(lint_${layer} OBJECT ${headers})
      string(REGEX REPLACE include engine target sparsesync_${layer})
      target_link_libraries(lint_${layer} PRIVATE ${target} $<TARGET_NAME_IF_EXISTS:MPI::MPI_CXX>)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL sparsesync_lint_headers)
