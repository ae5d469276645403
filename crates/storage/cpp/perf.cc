// What iterators have passed, counted by the engine for each thread (see src/hidden_keys.rs), and
// where one stopped that has passed too much (see src/engine_scan.rs).

#include <cstdint>
#include <string>

#include "rocksdb/iterator.h"
#include "rocksdb/perf_context.h"
#include "rocksdb/perf_level.h"

using namespace ROCKSDB_NAMESPACE;

// As in RocksDB's db/c.cc.
struct rocksdb_iterator_t {
  Iterator* rep;
};

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

// Gives the key at which the iterator stopped to `take`.
void pando_scan_place(rocksdb_iterator_t* iterator, void* into,
                      void (*take)(void* into, const uint8_t* key, size_t length)) {
  std::string key;
  if (iterator->rep->GetProperty("rocksdb.iterator.internal-key", &key).ok()) {
    take(into, reinterpret_cast<const uint8_t*>(key.data()), key.size());
  }
}

}  // extern "C"
