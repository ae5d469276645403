// What iterators have passed, counted by the engine for each thread (see src/hidden_keys.rs).

#include <cstdint>

#include "rocksdb/perf_context.h"
#include "rocksdb/perf_level.h"

using namespace ROCKSDB_NAMESPACE;

extern "C" {

// The layout of src/hidden_keys.rs.
struct pando_scan_counters_of_thread {
  const uint64_t* passed;
  const uint64_t* deleted;
  const uint64_t* newer;
};

// The counters of this thread; they live as long as it does. Has them count.
void pando_scan_counters(pando_scan_counters_of_thread* counters) {
  SetPerfLevel(PerfLevel::kEnableCount);
  const PerfContext* context = get_perf_context();
  counters->passed = &context->internal_key_skipped_count;
  counters->deleted = &context->internal_delete_skipped_count;
  counters->newer = &context->internal_recent_skipped_count;
}

}  // extern "C"
