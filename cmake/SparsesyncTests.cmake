# Declares every tests/FOLDER/[SUBJECT/]NAME_test.cpp (GoogleTest) and NAME_test.py (pytest) as FOLDER.NAME, with the label
# FOLDER. A comment in the test sets options: `// ctest: DEVICES RACES`, `# ctest: SLOW every_dtype`.
#   NEEDS X...      declared only where the build has MPI, UCX, ANALYSIS, PYTHON, CUDA (real or emulated) or EMULATED_CUDA
#   LABELS ...      further labels
#   PROCESSORS n    ctest reserves n processors, because the test starts processes
#   COST seconds    approximate duration; ctest starts the longest tests first (default: 100 if SLOW, otherwise the time of the
#                   last run, or 0)
#   SLOW ALL|CASE.. cases with CASE in their names form FOLDER.NAME_slow, labeled slow; ALL labels the whole test
# C++:
#   WORKERS n       runs as n processes under mpirun, labeled mpi
#   LIBRARIES ...   further libraries to link; the default is the layer that the folder tests
#   DEVICES         runs a second time as FOLDER.NAME_cuda where the build has CUDA: tests/support/devices.h
#   NCCL            NCCL connects the workers of that run
#   RACES           labels that run races: every scripts/test searches it for races between blocks
#   SHARDS n        scripts/gpu-check runs the slow cases in n parts
#   NOT_QUICK       takes more than 3 s; every other test without WORKERS and SLOW has the label quick: `ctest -L quick`
# Python (skipped by name without .venv; tests of about a second have the label quick, too):
#   EMULATED        runs a second time as FOLDER.NAME_emulated where the build has the emulated GPU: tests/python/conftest.py
#   QUICK           that run leaves out SLOW cases
# A wrong option stops the configuration.

find_package(GTest REQUIRED)
include(${CMAKE_CURRENT_LIST_DIR}/SparsesyncGpuCheck.cmake)

# Parsing GoogleTest's headers takes 2 to 3 s, so all tests share this target's precompiled header.
# It is an executable because its compiler flags must equal those of the tests.
set(sparsesync_prelude ${CMAKE_CURRENT_BINARY_DIR}/prelude.cpp)
file(GENERATE OUTPUT ${sparsesync_prelude} CONTENT "int main() { return 0; }\n")
add_executable(sparsesync_test_prelude ${sparsesync_prelude})
set_target_properties(sparsesync_test_prelude PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
target_precompile_headers(sparsesync_test_prelude PRIVATE <gmock/gmock.h> <gtest/gtest.h>)

function(sparsesync_test_options target)
  # -fpch-preprocess: ccache cannot cache sources with a precompiled header without it.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  sparsesync_layer(${target} tests)
  target_link_libraries(${target} PRIVATE GTest::gtest_main GTest::gmock)
endfunction()
sparsesync_test_options(sparsesync_test_prelude)

# Adds a target to the tests of a folder: tests_kernels, tests_schemes, ...
function(sparsesync_add_to_folder folder target)
  if(NOT TARGET tests_${folder})
    add_custom_target(tests_${folder})
  endif()
  add_dependencies(tests_${folder} ${target})
endfunction()

# Set needs_X for each X after NEEDS.
set(needs_MPI ${SPARSESYNC_MPI})
set(needs_UCX ${SPARSESYNC_UCX})
set(needs_ANALYSIS ${SPARSESYNC_ANALYSIS})
set(needs_PYTHON ${SPARSESYNC_PYTHON})
set(needs_CUDA ${SPARSESYNC_CUDA})
string(COMPARE EQUAL "${SPARSESYNC_CUDA}" EMULATED needs_EMULATED_CUDA)

# sparsesync_tests(): declares all tests. CMake runs again when a test changes, because its options may have changed.
function(sparsesync_tests)
  file(GLOB_RECURSE files RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *_test.cpp *_test.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  foreach(file IN LISTS files)
    file(STRINGS ${file} options REGEX "^(//|#) ctest: ")
    string(REGEX REPLACE "(^|;)(//|#) ctest: " " " options "${options}")
    separate_arguments(options)
    sparsesync_test(${file} ${options})
  endforeach()
  if(TARGET gpu_tests)
    sparsesync_end_of_bundle()
  endif()
endfunction()

# sparsesync_test(FILE [OPTION...])
function(sparsesync_test file)
  if(NOT file MATCHES "^([a-z]+)/([a-z_]+/)*([a-z0-9_]+)_test\\.(cpp|py)$")
    message(FATAL_ERROR "tests/${file} is not FOLDER/[SUBJECT/]NAME_test.cpp or .py")
  endif()
  set(folder ${CMAKE_MATCH_1})
  set(name ${CMAKE_MATCH_3})
  set(extension ${CMAKE_MATCH_4})
  if(extension STREQUAL "cpp")
    cmake_parse_arguments(arg "DEVICES;NCCL;NOT_QUICK;RACES" "COST;PROCESSORS;WORKERS;SHARDS" "NEEDS;LABELS;LIBRARIES;SLOW" ${ARGN})
  else()
    cmake_parse_arguments(arg "EMULATED;QUICK" "COST;PROCESSORS" "NEEDS;LABELS;SLOW" ${ARGN})
  endif()
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "tests/${file}: wrong options: ${arg_UNPARSED_ARGUMENTS} ${arg_KEYWORDS_MISSING_VALUES}")
  endif()
  if(folder MATCHES "^(analysis|cli|fuzz|report)$")
    list(APPEND arg_NEEDS ANALYSIS)
  elseif(folder STREQUAL "python")
    list(APPEND arg_NEEDS PYTHON)
  elseif(file MATCHES "^kernels/cuda/")
    list(APPEND arg_NEEDS EMULATED_CUDA)
  endif()
  if(arg_WORKERS)
    list(APPEND arg_NEEDS MPI)
  endif()
  foreach(need IN LISTS arg_NEEDS)
    if(NOT DEFINED needs_${need})
      message(FATAL_ERROR "tests/${file}: NEEDS ${need} is unknown")
    elseif(NOT needs_${need})
      return()
    endif()
  endforeach()
  if(extension STREQUAL "cpp")
    sparsesync_cpp_test()
  else()
    sparsesync_python_test()
  endif()
endfunction()

# sparsesync_add_to_ctest(NAME SLOW ONLY WITHOUT LABELS COMMAND...): adds NAME and, if
# `SLOW` lists cases, NAME_slow with the label slow. The argument ONLY makes the command run these cases alone, WITHOUT all others.
# If `SLOW` is ALL, NAME has the label. Sets `added` in the caller to the names of the tests.
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
    FAIL_REGULAR_EXPRESSION "Running 0 tests from 0 test suites")  # GoogleTest reports success then
  if(NOT slow STREQUAL "")
    list(GET parts -1 last)
    set_tests_properties(${last} PROPERTIES LABELS "${labels};slow" COST 100)
  endif()
  set(added ${parts} PARENT_SCOPE)
endfunction()

# The rest of sparsesync_test for GoogleTest; a macro, because it reads the variables of its caller.
macro(sparsesync_cpp_test)
  set(libraries sparsesync_engine)
  if(folder STREQUAL "kernels")
    set(libraries sparsesync_memory)
  elseif(folder STREQUAL "analysis")
    set(libraries sparsesync_analysis)
  endif()
  set(target ${folder}_${name}_test)
  add_executable(${target} ${file})
  sparsesync_test_options(${target})
  target_link_libraries(${target} PRIVATE sparsesync_static ${libraries} ${arg_LIBRARIES})
  target_precompile_headers(${target} REUSE_FROM sparsesync_test_prelude)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${folder})
  set(labels ${folder} ${arg_LABELS})
  set(command $<TARGET_FILE:${target}>)
  if(arg_WORKERS)
    target_sources(${target} PRIVATE support/mpi_main.cpp)
    list(APPEND labels mpi)
    set(command ${PROJECT_SOURCE_DIR}/cmake/mpirun.sh -np ${arg_WORKERS} ${command})
  endif()
  list(TRANSFORM arg_SLOW REPLACE "(.+)" "*\\1*" OUTPUT_VARIABLE cases)
  list(JOIN cases ":" cases)
  set(quick)
  if(NOT arg_WORKERS AND NOT arg_SLOW AND NOT arg_NOT_QUICK)
    set(quick quick)
  endif()
  sparsesync_add_to_ctest(${folder}.${name} "${arg_SLOW}" "--gtest_filter=${cases}" "--gtest_filter=-${cases}"
                          "${labels};${quick}" ${command})
  if(arg_WORKERS AND NOT arg_PROCESSORS)
    set(arg_PROCESSORS 2)
  endif()
  sparsesync_schedule_tests()
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
  foreach(label ${folder} ${arg_LABELS})
    sparsesync_add_to_folder(${label} ${target})
  endforeach()
endmacro()

# Sets the processors and cost of the added tests.
macro(sparsesync_schedule_tests)
  if(arg_PROCESSORS)
    set_tests_properties(${added} PROPERTIES PROCESSORS ${arg_PROCESSORS})
  endif()
  if(arg_COST)
    list(GET added 0 first)
    set_tests_properties(${first} PROPERTIES COST ${arg_COST})
  endif()
endmacro()

# The rest of sparsesync_test for pytest. scripts/gpu-check also runs tests with the label cuda.
macro(sparsesync_python_test)
  set(labels ${folder} python ${arg_LABELS})
  list(JOIN arg_SLOW " or " cases)
  sparsesync_add_to_ctest(${folder}.${name} "${arg_SLOW}" "-k;${cases}" "-k;not (${cases})"
                          "${labels}" ${PROJECT_SOURCE_DIR}/cmake/python-test.sh ${PROJECT_SOURCE_DIR}
                          ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  set_tests_properties(${added} PROPERTIES SKIP_RETURN_CODE 77)
  sparsesync_schedule_tests()
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
    sparsesync_schedule_tests()
  endif()
  if("cuda" IN_LIST labels AND SPARSESYNC_CUDA)
    sparsesync_gpu_check_program(python ${folder}.${name} ${PROJECT_SOURCE_DIR}/cmake/python-test.sh ${PROJECT_SOURCE_DIR}
                                 ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endif()
endmacro()
