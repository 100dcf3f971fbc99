# Transport modules (modules/): shared libraries that a worker loads at run time; nothing links them.
function(tandem_module name)
  add_library(${name} MODULE ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/modules)
  set_target_properties(${name} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/modules)
endfunction()

# The conformance suite over one module's file. ARGN: environment of the run.
function(tandem_module_conformance test module)
  add_test(NAME ${test} COMMAND kv_transfer_test --gtest_filter=*TransportConformance*/module)
  set_tests_properties(${test} PROPERTIES TIMEOUT 120
    ENVIRONMENT "TANDEM_TRANSPORT_MODULE=$<TARGET_FILE:${module}>;${ARGN}")
endfunction()

pkg_check_modules(UCX QUIET IMPORTED_TARGET ucx)
if(UCX_FOUND)
  tandem_module(tandem_transport_ucx modules/ucx/ucx_module.cc modules/ucx/ucx_engine.cc)
  target_link_libraries(tandem_transport_ucx PRIVATE PkgConfig::UCX)
  tandem_module_conformance(module_ucx tandem_transport_ucx
    "TANDEM_TRANSPORT_MODULE_SETTINGS=bind_host=127.0.0.1")
  tandem_module_conformance(module_ucx_tcp tandem_transport_ucx
    "TANDEM_TRANSPORT_MODULE_SETTINGS=ucx.TLS=tcp\nbind_host=127.0.0.1\nmax_bytes_in_flight=8388608")
else()
  message(STATUS "UCX is not installed (libucx-dev): its transport module is not built")
endif()

tandem_module(tandem_transport_mooncake modules/mooncake/mooncake_module.cc
  modules/mooncake/mooncake_engine.cc modules/mooncake/mooncake_functions.cc)
target_link_libraries(tandem_transport_mooncake PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
tandem_module(stub_transfer_engine modules/mooncake/stub_engine.cc)  # stands in for Mooncake in tests
target_link_libraries(stub_transfer_engine PRIVATE Threads::Threads)
tandem_module_conformance(module_mooncake tandem_transport_mooncake
  "TANDEM_TRANSPORT_MODULE_SETTINGS=library=$<TARGET_FILE:stub_transfer_engine>")

add_executable(modules_test modules/module_support_test.cc modules/mooncake/mooncake_module_test.cc)
target_include_directories(modules_test PRIVATE ${CMAKE_SOURCE_DIR}/modules)
target_link_libraries(modules_test PRIVATE tandem_kv_transfer GTest::gtest_main)
target_compile_definitions(modules_test PRIVATE
  TANDEM_MOONCAKE_MODULE="$<TARGET_FILE:tandem_transport_mooncake>"
  TANDEM_STUB_LIBRARY="$<TARGET_FILE:stub_transfer_engine>")
add_dependencies(modules_test tandem_transport_mooncake stub_transfer_engine)
set_target_properties(modules_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_test(NAME modules COMMAND modules_test)
set_tests_properties(modules PROPERTIES TIMEOUT 120)

if(TANDEM_FUZZERS)
  add_executable(module_descriptor_fuzz modules/module_descriptor_fuzz.cc)
  target_include_directories(module_descriptor_fuzz PRIVATE
    ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/modules)
  target_compile_options(module_descriptor_fuzz PRIVATE -fsanitize=fuzzer)
  target_link_options(module_descriptor_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(module_descriptor_fuzz PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endif()
