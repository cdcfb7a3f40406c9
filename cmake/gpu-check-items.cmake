# The head of gpu_check/CTestTestfile.cmake, which ctest reads: how an item of scripts/gpu-check runs. Later lines
# declare the items. scripts/gpu-run sets the environment:
#   SPARSESYNC_GPU_ROOT        the folder that programs are relative to
#   SPARSESYNC_GPU_RESULTS     the folder of the results
#   SPARSESYNC_GPU_PROBLEM     why there is no GPU, or empty
#   SPARSESYNC_GPU_SANITIZER   compute-sanitizer, or empty
#   SPARSESYNC_GPU_NCCL        pair: two workers may share a GPU; alone: they may not; none: there is no NCCL
#   SPARSESYNC_GPU_ITEM_LIMIT  the timeout of each item in seconds, or empty: twice its estimate, at least 60
set(root "$ENV{SPARSESYNC_GPU_ROOT}")
set(results "$ENV{SPARSESYNC_GPU_RESULTS}")

# STEP SECONDS REGEX: the first expression that matches a name applies. Steps run in sequence, and the items of a step
# in the order of these lines. Seconds were measured on an H200 machine with 16 cores, 8 items at a time.
set(estimates
  "10 2 nccl"
  "9 60 ^racecheck[.]"                # assumed
  "9 40 ^synccheck[.]"                # assumed
  "11 60 ^initcheck[.]"               # assumed; initcheck does not see the host's writes to managed memory
  "4 33 ^memcheck[.]kernels[.]part_"
  "4 12 ^memcheck[.]"                 # assumed: the same cases in 19 programs
  "8 60 slow"                         # assumed
  "1 15 ^bench[.]kernels[.]compact_headline"
  "2 24 ^kernels[.]part_"
  "2 8 ^kernels[.]"                   # assumed: the same cases in 19 programs
  "3 6 ^bench[.]schemes[.]gpu_sync"
  "5 25 ^bench[.]kernels[.]residual"
  "5 12 ^bench[.]kernels[.](rows|aggregate)"
  "5 5 ^bench[.]kernels[.]partition"
  "5 30 ^bench[.]kernels[.](compact|index_code)"
  "5 5 ^bench[.]kernels[.](coalesce|owners)"
  "5 3 ^bench[.]kernels[.]memory"
  "5 1 ^bench[.]kernels[.]sort"
  "5 30 ^bench[.]"                    # assumed
  "6 120 ^python[.]"                  # assumed
  "6 20 ^example[.]"                  # assumed
  "7 40 ^floors[.]part_"              # assumed: 4 shards took more than 80 s each
  "7 20 .")                           # assumed

# ctest ignores the exit status of an item whose output an expression judges. The launcher prints the status.
set(launcher /bin/bash -c "\"$@\" || echo \"exit status $?\"" launcher)
set(tests_ran "[1-9][0-9]* tests? from [^\n]* ran[.]")
set(no_error "(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)")
# Tests with large inputs and tests of the host's threads are too slow under compute-sanitizer.
set(small "--gtest_filter=-*Many*:*many*:*Large*:*EveryCount*:*ThreadsChangeNothing*:*NumberOfThreads*:*threads_and_devices*")

# Ranks that share a device deadlock if a call waits for the whole device, for example to load a kernel.
set(nccl_environment NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32)

# schedule(NAME LABEL...): sets the labels, order, timeout and environment of an item.
function(schedule name)
  set(cost 1000)
  foreach(estimate IN LISTS estimates)
    string(REGEX MATCH "^([0-9]+) ([0-9]+) (.+)$" all "${estimate}")
    set(step ${CMAKE_MATCH_1})
    set(seconds ${CMAKE_MATCH_2})
    math(EXPR cost "${cost} - 1")
    if(name MATCHES "${CMAKE_MATCH_3}")
      break()
    endif()
  endforeach()
  math(EXPR limit "2 * ${seconds}")
  if(NOT "$ENV{SPARSESYNC_GPU_ITEM_LIMIT}" STREQUAL "")
    set(limit $ENV{SPARSESYNC_GPU_ITEM_LIMIT})
  elseif(limit LESS 60)
    set(limit 60)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "cuda;step_${step};${ARGN}" COST ${cost} TIMEOUT ${limit} ENVIRONMENT
    "SPARSESYNC_TEST_DEVICE=cuda;SPARSESYNC_BENCH_DEVICE=cuda;GTEST_OUTPUT=xml:${results}/tests/${name}.xml;${environment}")
  if(NOT "$ENV{SPARSESYNC_GPU_PROBLEM}" STREQUAL "")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU|no CUDA|SKIPPED: ")
  endif()
endfunction()

# item(KIND NAME PROGRAM [ARGUMENT...]); an argument shard=INDEX/COUNT takes a part of the tests.
function(item kind name program)
  set(environment)
  if(name MATCHES "nccl")
    set(environment ${nccl_environment})
  endif()
  if(ARGN MATCHES "shard=([0-9]+)/([0-9]+)")
    list(APPEND environment GTEST_SHARD_INDEX=${CMAKE_MATCH_1} GTEST_TOTAL_SHARDS=${CMAKE_MATCH_2})
    list(FILTER ARGN EXCLUDE REGEX "^shard=")
  endif()
  cmake_path(ABSOLUTE_PATH program BASE_DIRECTORY ${root})
  if(kind MATCHES "^(test|nccl)$")
    add_test(${name} ${launcher} ${program} ${ARGN})
    schedule(${name} tests)
    set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "${tests_ran}" FAIL_REGULAR_EXPRESSION "exit status [0-9]")
  elseif(kind STREQUAL "bench")
    add_test(${name} ${program} ${ARGN} --benchmark_out=${results}/benches/${name}.json --benchmark_out_format=json)
    schedule(${name} benches)
    set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "ERROR OCCURRED|Failed to match any benchmarks")
  elseif(kind STREQUAL "table")
    add_test(${name} ${program} ${ARGN} --json ${results}/benches/${name}.json)
    schedule(${name} benches)
  elseif(kind STREQUAL "python")
    set(environment PYTHONPATH=${root}/python PYTHONDONTWRITEBYTECODE=1 SPARSESYNC_PROGRAM=${root}/bin/sparsesync)
    add_test(${name} ${program} ${ARGN})
    schedule(${name} tests)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  else()
    message(FATAL_ERROR "${name}: unknown kind '${kind}'")
  endif()
  # Benches need the GPU for themselves. Ranks of NCCL that share a GPU wait for each other on it.
  if(kind MATCHES "^(bench|table|nccl)$")
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  if(kind STREQUAL "nccl")
    add_nccl_items(${name} ${program})
  endif()
  if(kind STREQUAL "test" AND name MATCHES "^kernels[.]")
    foreach(tool memcheck racecheck synccheck initcheck)
      add_test(${tool}.${name} ${launcher} "$ENV{SPARSESYNC_GPU_SANITIZER}" --tool ${tool} --error-exitcode 86 ${program} ${small}
               ${ARGN})
      schedule(${tool}.${name} sanitizer ${tool})
      set_tests_properties(${tool}.${name} PROPERTIES FAIL_REGULAR_EXPRESSION "exit status [0-9]"
        PASS_REGULAR_EXPRESSION "${tests_ran}.*${no_error};${no_error}.*${tests_ran}")
      if("$ENV{SPARSESYNC_GPU_SANITIZER}" STREQUAL "" OR NOT "$ENV{SPARSESYNC_GPU_PROBLEM}" STREQUAL "")
        set_tests_properties(${tool}.${name} PROPERTIES DISABLED ON)
      endif()
    endforeach()
  endif()
endfunction()

# add_nccl_items(NAME PROGRAM): adds the tests that this NCCL can run and disables the others. scripts/gpu-run first starts
# engine.nccl_probe, which passes if two workers may share a GPU. If they may not, only the tests of one worker run.
function(add_nccl_items name program)
  if(NOT "$ENV{SPARSESYNC_GPU_NCCL}" STREQUAL "pair")
    set_tests_properties(${name} PROPERTIES DISABLED ON)
  endif()
  if(name STREQUAL "engine.nccl_transport_cuda")
    add_test(engine.nccl_probe ${program} --gtest_filter=Nccl.two_workers_*)
    set_tests_properties(engine.nccl_probe PROPERTIES
      LABELS probe TIMEOUT 60 ENVIRONMENT "SPARSESYNC_TEST_DEVICE=cuda;${environment}")
    if("$ENV{SPARSESYNC_GPU_NCCL}" STREQUAL "alone")
      item(test engine.nccl_alone_cuda ${program} --gtest_filter=Nccl.*:-Nccl.two_workers_*)
      set_tests_properties(engine.nccl_alone_cuda PROPERTIES RUN_SERIAL ON)
    endif()
  endif()
endfunction()

# example(NAME WORKERS [ARGUMENT...]): compares all schemes on a synthetic trace; at least one must be correct.
function(example name workers)
  set(trace ${results}/${name}.trace)
  add_test(${name}_trace ${root}/bin/sparsesync trace synthetic --rows 400000 --width 64 --density 0.01 --zipf 1.1
           --workers ${workers} --steps 2 --seed 1 --out ${trace} --force)
  schedule(${name}_trace example)
  add_test(${name}_clean /bin/rm -r ${trace})
  set_tests_properties(${name}_trace PROPERTIES FIXTURES_SETUP ${name})
  set_tests_properties(${name}_clean PROPERTIES FIXTURES_CLEANUP ${name})
  set(json ${results}/benches/${name}.json)
  add_test(${name} ${launcher} /bin/bash -c "\"$@\" && cat ${json}" example ${root}/bin/sparsesync compare ${trace} ${ARGN} --json ${json})
  schedule(${name} example)
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED ${name} PASS_REGULAR_EXPRESSION "\"correct\": true"
    FAIL_REGULAR_EXPRESSION "exit status [0-9]")
endfunction()
set(environment)
example(example.compare 8 --device cuda --repeat 3)
set(environment ${nccl_environment})
example(example.compare_nccl 2 --transport nccl --repeat 3)
set_tests_properties(example.compare_nccl PROPERTIES RUN_SERIAL ON)
if(NOT "$ENV{SPARSESYNC_GPU_NCCL}" STREQUAL "pair")
  set_tests_properties(example.compare_nccl example.compare_nccl_trace example.compare_nccl_clean PROPERTIES DISABLED ON)
endif()

