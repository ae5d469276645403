// A block cache that tells what leaves it and what comes in (see src/ghost.rs).

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "rocksdb/advanced_cache.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"

using namespace ROCKSDB_NAMESPACE;

extern "C" {

// The layout of src/ghost.rs. A block is known by 64 bits of its key.
struct pando_cache_events {
  void* state;
  void (*left)(void* state, uint64_t block, size_t charge);
  void (*comes)(void* state, uint64_t block);
  void (*done)(void* state);
};

}  // extern "C"

namespace {

// Keys of blocks have 16 bytes, which differ little from each other; what else is in the cache stands for memory used elsewhere.
bool BlockOf(const Slice& key, uint64_t* block) {
  uint64_t halves[2];
  if (key.size() != sizeof(halves)) return false;
  memcpy(halves, key.data(), sizeof(halves));
  const auto product =
      static_cast<unsigned __int128>(halves[0] ^ 0x9e3779b97f4a7c15u) *
      (halves[1] ^ 0xe7037ed1a0b428dbu);
  *block = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  return true;
}

struct Events {
  explicit Events(const pando_cache_events& e) : raw(e) {}
  ~Events() { raw.done(raw.state); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  const pando_cache_events raw;
};

class WatchedCache : public CacheWrapper {
 public:
  WatchedCache(std::shared_ptr<Cache> target, std::shared_ptr<Events> events)
      : CacheWrapper(std::move(target)), events_(std::move(events)) {}

  const char* Name() const override { return "PandoCache"; }

  Status Insert(const Slice& key, ObjectPtr value,
                const CacheItemHelper* helper, size_t charge, Handle** handle,
                Priority priority, const Slice& compressed,
                CompressionType type) override {
    uint64_t block;
    if (BlockOf(key, &block)) events_->raw.comes(events_->raw.state, block);
    return target_->Insert(key, value, helper, charge, handle, priority,
                           compressed, type);
  }

 private:
  const std::shared_ptr<Events> events_;
};

}  // namespace

extern "C" {

// Has the block cache that these options (rocksdb_options_t, which hold nothing but the options) share tell of its blocks. To be
// called before it is used, once; `done` is called when nobody can tell anything any more.
void pando_cache_watch(void* const* options, size_t count,
                       const pando_cache_events* events) {
  auto shared = std::make_shared<Events>(*events);
  std::shared_ptr<Cache> watched;
  for (size_t i = 0; i < count; i++) {
    auto* table = static_cast<Options*>(options[i])
                      ->table_factory->GetOptions<BlockBasedTableOptions>();
    if (table == nullptr || table->block_cache == nullptr) continue;
    if (watched == nullptr) {
      Cache* cache = table->block_cache.get();
      cache->SetEvictionCallback(
          [shared, cache](const Slice& key, Cache::Handle* handle, bool) {
            uint64_t block;
            if (BlockOf(key, &block)) {
              shared->raw.left(shared->raw.state, block,
                               cache->GetCharge(handle));
            }
            return false;
          });
      watched = std::make_shared<WatchedCache>(table->block_cache, shared);
    }
    table->block_cache = watched;
  }
}

}  // extern "C"
