// One data file, read whole, every block against its checksum, past the block cache.

#include <cstring>
#include <string>

#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/sst_file_reader.h"

// `env`: the environment of an encrypted directory, or null. Null where all is well; else what RocksDB says, to be freed by rocksdb_free.
extern "C" char* pando_verify_file(const char* path, void* env) {
  rocksdb::Options options;
  if (env != nullptr) options.env = static_cast<rocksdb::Env*>(env);
  rocksdb::SstFileReader reader(options);
  rocksdb::Status status = reader.Open(path);
  if (status.ok()) {
    rocksdb::ReadOptions read;
    read.fill_cache = false;
    status = reader.VerifyChecksum(read);
  }
  return status.ok() ? nullptr : strdup(status.ToString().c_str());
}
