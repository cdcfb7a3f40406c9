# How tests are declared: one line a test, in tests/CMakeLists.txt. A listed test whose file does not exist
# stops the configuration at its end; scripts/check-registered finds the file that is not listed.

find_package(GTest REQUIRED)

# GoogleTest's headers take 2 to 3 s to read; every test reads the outcome of this target instead.
# An executable, because the compiler's flags must be those of the tests.
set(sparsesync_prelude ${CMAKE_CURRENT_BINARY_DIR}/prelude.cpp)
file(GENERATE OUTPUT ${sparsesync_prelude} CONTENT "int main() { return 0; }\n")
add_executable(sparsesync_test_prelude ${sparsesync_prelude})
set_target_properties(sparsesync_test_prelude PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
target_precompile_headers(sparsesync_test_prelude PRIVATE <gmock/gmock.h> <gtest/gtest.h>)

function(sparsesync_test_options target)
  target_compile_definitions(${target} PRIVATE SPARSESYNC_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # -fpch-preprocess: without it ccache cannot keep what uses a precompiled header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  target_link_libraries(${target} PRIVATE sparsesync_options GTest::gtest_main GTest::gmock)
endfunction()
sparsesync_test_options(sparsesync_test_prelude)

# A target for all tests of a folder: tests_kernels, tests_schemes, ...
function(sparsesync_add_to_folder folder target)
  if(NOT TARGET tests_${folder})
    add_custom_target(tests_${folder})
  endif()
  add_dependencies(tests_${folder} ${target})
endfunction()

# sparsesync_test(FOLDER/NAME [LIBRARIES ...] [WORKERS n]): tests/FOLDER/NAME_test.cpp, in ctest as
# FOLDER.NAME with the label FOLDER. Links the topmost floor, and so all of them, where no libraries are given.
# With WORKERS it runs as so many processes under mpirun, with the label mpi, too.
function(sparsesync_test test)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "WORKERS" "LIBRARIES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "sparsesync_test(${test}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_LIBRARIES)
    set(arg_LIBRARIES sparsesync_engine)
  endif()
  sparsesync_require_test(${test}_test.cpp found)
  if(NOT found)
    return()
  endif()
  sparsesync_split_test_name(${test})
  set(target ${folder}_${name}_test)
  add_executable(${target} ${test}_test.cpp)
  sparsesync_test_options(${target})
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
  target_precompile_headers(${target} REUSE_FROM sparsesync_test_prelude)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${folder})
  set(labels ${folder})
  if(arg_WORKERS)
    target_sources(${target} PRIVATE support/mpi_main.cpp)
    list(APPEND labels mpi)
    add_test(NAME ${folder}.${name}
             COMMAND ${PROJECT_SOURCE_DIR}/cmake/mpirun.sh -np ${arg_WORKERS} $<TARGET_FILE:${target}>)
    set_tests_properties(${folder}.${name} PROPERTIES PROCESSORS 2)
  else()
    add_test(NAME ${folder}.${name} COMMAND ${target})
  endif()
  set_tests_properties(${folder}.${name} PROPERTIES
    LABELS "${labels}"
    ENVIRONMENT "SPARSESYNC_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/sparsesync")
  sparsesync_add_to_folder(${folder} ${target})
endfunction()

# sparsesync_python_test(FOLDER/NAME [LABELS ...]): tests/FOLDER/NAME_test.py, run by pytest in .venv, in ctest as
# FOLDER.NAME with the labels FOLDER, python and those given. Skipped, by name, where there is no .venv.
function(sparsesync_python_test test)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "sparsesync_python_test(${test}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  sparsesync_require_test(${test}_test.py found)
  if(NOT found)
    return()
  endif()
  sparsesync_split_test_name(${test})
  set(labels ${folder} python ${arg_LABELS})
  add_test(NAME ${folder}.${name}
           COMMAND ${PROJECT_SOURCE_DIR}/cmake/python-test.sh ${PROJECT_SOURCE_DIR}
                   ${CMAKE_CURRENT_SOURCE_DIR}/${test}_test.py)
  set_tests_properties(${folder}.${name} PROPERTIES
    LABELS "${labels}"
    SKIP_RETURN_CODE 77
    ENVIRONMENT "SPARSESYNC_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/sparsesync;SPARSESYNC_SOURCE_DIR=${PROJECT_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1")
endfunction()

# Sets folder and name where it is called.
function(sparsesync_split_test_name test)
  if(NOT test MATCHES "^([a-z_]+)/([a-z0-9_]+)$")
    message(FATAL_ERROR "'${test}' is not FOLDER/NAME")
  endif()
  set(folder ${CMAKE_MATCH_1} PARENT_SCOPE)
  set(name ${CMAKE_MATCH_2} PARENT_SCOPE)
endfunction()

function(sparsesync_require_test file found)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    set(${found} TRUE PARENT_SCOPE)
  else()
    set(${found} FALSE PARENT_SCOPE)
    set_property(GLOBAL APPEND PROPERTY SPARSESYNC_MISSING_TESTS tests/${file})
  endif()
endfunction()

# Call it last: one error that names every listed test without a file.
function(sparsesync_end_of_tests)
  get_property(missing GLOBAL PROPERTY SPARSESYNC_MISSING_TESTS)
  if(missing)
    list(JOIN missing "\n  " missing)
    message(FATAL_ERROR "tests/CMakeLists.txt lists tests that do not exist:\n  ${missing}")
  endif()
endfunction()
