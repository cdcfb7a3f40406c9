# How tests are declared: one line a test, in tests/CMakeLists.txt. A listed test whose file does not exist
# stops the configuration at its end; scripts/check-registered finds the file that is not listed.

find_package(GTest REQUIRED)
include(${CMAKE_CURRENT_LIST_DIR}/SparsesyncGpuCheck.cmake)

# GoogleTest's headers take 2 to 3 s to read; every test reads the outcome of this target instead.
# An executable, because the compiler's flags must be those of the tests.
set(sparsesync_prelude ${CMAKE_CURRENT_BINARY_DIR}/prelude.cpp)
file(GENERATE OUTPUT ${sparsesync_prelude} CONTENT "int main() { return 0; }\n")
add_executable(sparsesync_test_prelude ${sparsesync_prelude})
set_target_properties(sparsesync_test_prelude PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
target_precompile_headers(sparsesync_test_prelude PRIVATE <gmock/gmock.h> <gtest/gtest.h>)

function(sparsesync_test_options target)
  # -fpch-preprocess: without it ccache cannot keep what uses a precompiled header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  sparsesync_layer(${target} tests)
  target_link_libraries(${target} PRIVATE GTest::gtest_main GTest::gmock)
endfunction()
sparsesync_test_options(sparsesync_test_prelude)

# A target for all tests of a folder: tests_kernels, tests_schemes, ...
function(sparsesync_add_to_folder folder target)
  if(NOT TARGET tests_${folder})
    add_custom_target(tests_${folder})
  endif()
  add_dependencies(tests_${folder} ${target})
endfunction()

# The beginning of sparsesync_test and sparsesync_python_test, in whose place it stands: reads the arguments, sets
# folder, name and file, and returns from there if there is no such file.
macro(sparsesync_begin_test test extension options one_value more_values)
  cmake_parse_arguments(arg "${options}" "${one_value}" "${more_values}" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "${test}: wrong arguments: ${arg_UNPARSED_ARGUMENTS} ${arg_KEYWORDS_MISSING_VALUES}")
  endif()
  if(NOT "${test}" MATCHES "^([a-z]+)/([a-z_/]+/)?([a-z0-9_]+)$")
    message(FATAL_ERROR "'${test}' is not FOLDER/[SUBJECT/]NAME")
  endif()
  set(folder ${CMAKE_MATCH_1})
  set(name ${CMAKE_MATCH_3})
  set(file ${test}_test.${extension})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    set_property(GLOBAL APPEND PROPERTY SPARSESYNC_MISSING_TESTS tests/${file})
    return()
  endif()
endmacro()

# sparsesync_add_to_ctest(NAME SLOW ONLY WITHOUT LABELS COMMAND...): NAME, and beside it NAME_slow with the label slow, if
# `SLOW` names cases: ONLY and WITHOUT are the arguments that make the command run them alone, and all others. If `SLOW`
# is ALL, NAME itself has the label. Sets added, where it is called, to what it added.
function(sparsesync_add_to_ctest name slow only without labels)
  set(environment SPARSESYNC_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/sparsesync)
  list(APPEND environment SPARSESYNC_SOURCE_DIR=${PROJECT_SOURCE_DIR} PYTHONDONTWRITEBYTECODE=1)
  if(SPARSESYNC_PYTHON)
    list(APPEND environment PYTHONPATH=${PROJECT_BINARY_DIR}/python)
  endif()
  if(slow STREQUAL "" OR slow STREQUAL "ALL")
    set(parts ${name})
    add_test(NAME ${name} COMMAND ${ARGN})
  else()
    set(parts ${name} ${name}_slow)
    add_test(NAME ${name} COMMAND ${ARGN} ${without})
    add_test(NAME ${name}_slow COMMAND ${ARGN} ${only})
  endif()
  set_tests_properties(${parts} PROPERTIES
    LABELS "${labels}"
    ENVIRONMENT "${environment}"
    FAIL_REGULAR_EXPRESSION "Running 0 tests from 0 test suites")  # GoogleTest takes it for success
  if(NOT slow STREQUAL "")
    list(GET parts -1 last)
    # The longest begin first.
    set_tests_properties(${last} PROPERTIES LABELS "${labels};slow" COST 100)
  endif()
  set(added ${parts} PARENT_SCOPE)
endfunction()

# sparsesync_test(FOLDER/NAME [DEVICES [NCCL] [RACES] [SHARDS n]] [LIBRARIES ...] [WORKERS n] [SLOW ALL|CASE...]): tests/FOLDER/NAME_test.cpp, in ctest as
# FOLDER.NAME with the label FOLDER. Links the topmost floor, and so all of them, where no libraries are given; tests of kernels link these and memory.
# With WORKERS it runs as so many processes under mpirun, with the label mpi, too. Cases with `SLOW` in their names are
# FOLDER.NAME_slow, with the label slow, too. With DEVICES all of it runs a second time where the build has CUDA, as
# FOLDER.NAME_cuda with the label cuda, too: tests/support/devices.h. Skipped, by name, where there is no GPU. NCCL: its workers
# are connected by NCCL. RACES: the second run has the label races, too; every run of scripts/test looks there for races between
# blocks. SHARDS: scripts/gpu-check runs what is slow in so many parts.
function(sparsesync_test test)
  sparsesync_begin_test(${test} cpp "DEVICES;NCCL;RACES" "WORKERS;SHARDS" "LIBRARIES;SLOW" ${ARGN})
  if(arg_WORKERS AND NOT SPARSESYNC_MPI)
    return()
  endif()
  if(NOT arg_LIBRARIES)
    set(arg_LIBRARIES sparsesync_engine)
    if(folder STREQUAL "kernels")
      set(arg_LIBRARIES sparsesync_memory)
    elseif(folder STREQUAL "analysis")
      set(arg_LIBRARIES sparsesync_analysis)
    endif()
  endif()
  set(target ${folder}_${name}_test)
  add_executable(${target} ${file})
  sparsesync_test_options(${target})
  target_link_libraries(${target} PRIVATE sparsesync_static ${arg_LIBRARIES})
  target_precompile_headers(${target} REUSE_FROM sparsesync_test_prelude)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${folder})
  set(labels ${folder})
  set(command $<TARGET_FILE:${target}>)
  if(arg_WORKERS)
    target_sources(${target} PRIVATE support/mpi_main.cpp)
    list(APPEND labels mpi)
    set(command ${PROJECT_SOURCE_DIR}/cmake/mpirun.sh -np ${arg_WORKERS} ${command})
  endif()
  list(TRANSFORM arg_SLOW REPLACE "(.+)" "*\\1*" OUTPUT_VARIABLE cases)
  list(JOIN cases ":" cases)
  sparsesync_add_to_ctest(${folder}.${name} "${arg_SLOW}" "--gtest_filter=${cases}" "--gtest_filter=-${cases}"
                          "${labels}" ${command})
  if(arg_WORKERS)
    set_tests_properties(${added} PROPERTIES PROCESSORS 2)
  endif()
  if(arg_DEVICES AND SPARSESYNC_CUDA)
    if(NOT SPARSESYNC_CUDA STREQUAL "EMULATED")
      target_sources(${target} PRIVATE support/managed_new.cpp support/cuda_main.cpp)
    endif()
    list(APPEND labels cuda)
    if(arg_RACES)
      list(APPEND labels races)
    endif()
    sparsesync_add_to_ctest(${folder}.${name}_cuda "${arg_SLOW}" "--gtest_filter=${cases}" "--gtest_filter=-${cases}"
                            "${labels}" ${command})
    set_property(TEST ${added} APPEND PROPERTY ENVIRONMENT SPARSESYNC_TEST_DEVICE=cuda)
    set_tests_properties(${added} PROPERTIES SKIP_RETURN_CODE 77)  # support/cuda_main.cpp
    sparsesync_gpu_check_tests(${folder}.${name}_cuda ${target} "${cases}" "${arg_NCCL}" "${arg_SHARDS}")
  endif()
  sparsesync_add_to_folder(${folder} ${target})
endfunction()

# sparsesync_python_test(FOLDER/NAME [EMULATED [QUICK]] [LABELS ...] [SLOW ALL|CASE...]): tests/FOLDER/NAME_test.py, run by pytest in .venv,
# in ctest as FOLDER.NAME with the labels FOLDER, python and those given. Skipped, by name, where there is no .venv.
# With the label cuda scripts/gpu-check runs it, too.
# Cases with `SLOW` in their names are FOLDER.NAME_slow, with the label slow, too. With EMULATED all of it runs a second time
# where the build has the emulated GPU, on it, as FOLDER.NAME_emulated with the label emulated, too: tests/python/conftest.py. QUICK:
# but for what is SLOW.
function(sparsesync_python_test test)
  sparsesync_begin_test(${test} py "EMULATED;QUICK" "" "LABELS;SLOW" ${ARGN})
  set(labels ${folder} python ${arg_LABELS})
  list(JOIN arg_SLOW " or " cases)
  sparsesync_add_to_ctest(${folder}.${name} "${arg_SLOW}" "-k;${cases}" "-k;not (${cases})"
                          "${labels}" ${PROJECT_SOURCE_DIR}/cmake/python-test.sh ${PROJECT_SOURCE_DIR}
                          ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  set_tests_properties(${added} PROPERTIES SKIP_RETURN_CODE 77)
  if(arg_EMULATED AND SPARSESYNC_CUDA STREQUAL "EMULATED")
    set(some)
    if(arg_QUICK)
      set(some -k "not (${cases})")
    endif()
    sparsesync_add_to_ctest(${folder}.${name}_emulated "" "" "" "${labels};emulated"
                            ${PROJECT_SOURCE_DIR}/cmake/python-test.sh ${PROJECT_SOURCE_DIR}
                            ${CMAKE_CURRENT_SOURCE_DIR}/${file} ${some})
    set_tests_properties(${added} PROPERTIES SKIP_RETURN_CODE 77)
    set_property(TEST ${added} APPEND PROPERTY ENVIRONMENT SPARSESYNC_TEST_DEVICE=emulated)
  endif()
  if("cuda" IN_LIST labels AND SPARSESYNC_CUDA)
    sparsesync_gpu_check_program(python ${folder}.${name} ${PROJECT_SOURCE_DIR}/cmake/python-test.sh ${PROJECT_SOURCE_DIR}
                                 ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endif()
endfunction()

# Call it last: one error that names every listed test without a file.
function(sparsesync_end_of_tests)
  if(TARGET gpu_tests)
    sparsesync_end_of_bundle()
  endif()
  get_property(missing GLOBAL PROPERTY SPARSESYNC_MISSING_TESTS)
  if(missing)
    list(JOIN missing "\n  " missing)
    message(FATAL_ERROR "tests/CMakeLists.txt lists tests that do not exist:\n  ${missing}")
  endif()
endfunction()
