// Data files that can say what they would read from the disk instead of reading it (see src/missing.rs).
//
// The engine's reads block. A thread that must not block, an event loop, has the calling side note where they are to go: a read
// that finds its bytes neither among those that were brought nor in the system's page cache is noted, and ends as a read from
// nothing but the cache would ("incomplete"). For threads that have not asked for it nothing changes.

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"

using namespace ROCKSDB_NAMESPACE;

extern "C" {

// The layouts of src/missing.rs.
struct pando_read {
  uint64_t file;
  uint64_t offset;
  uint64_t length;
  void* open;  // keeps the file open; ends with pando_file_close
  int fd;
};

struct pando_block {
  uint64_t file;
  uint64_t offset;
  uint64_t asked;  // what was asked for; what came is shorter at the end of the file
  const char* bytes;
  uint64_t came;
};

struct pando_reads {
  const pando_block* blocks;
  size_t block_count;
  pando_read* missing;
  size_t room;
  size_t missing_count;
  bool refused;  // something is missing that has no place in the list
};

}  // extern "C"

namespace {

thread_local pando_reads* reads_of_thread = nullptr;

// Of so many reads one goes through the system's page cache, the others past it; 0 when it cannot be told what is in it.
std::atomic<uint32_t> one_in{1};
std::atomic<uint64_t> noted{0};

// A read past the page cache begins and ends here.
constexpr uint64_t kSector = 4096;

#ifdef OS_LINUX

// Whether all of this is in the page cache. Kernels before 6.5 cannot say: then reads do not go past it.
bool IsCached(int fd, uint64_t offset, size_t n) {
  constexpr long kCachestat = 451;
  const uint64_t range[2] = {offset, n};
  uint64_t pages[5] = {0};  // the first: those in the cache
  if (syscall(kCachestat, fd, range, pages, 0) != 0) {
    one_in.store(0, std::memory_order_relaxed);
    return true;
  }
  const uint64_t first = offset / kSector, last = (offset + n - 1) / kSector;
  return pages[0] * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) >=
         (last - first + 1) * kSector;
}

// Reads what is in the page cache. Where not all is there, this begins to read it, and does not wait.
bool ReadIfCached(int fd, uint64_t offset, size_t n, char* into) {
  const iovec place = {into, n};
  const ssize_t got =
      preadv2(fd, &place, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  return got >= 0 && static_cast<size_t>(got) == n;
}

// A descriptor for reading in single blocks: nothing around one is worth reading with it.
int OpenForBlocks(const char* path, bool past_cache) {
  const int fd =
      ::open(path, O_RDONLY | O_CLOEXEC | (past_cache ? O_DIRECT : 0));
  if (fd >= 0 && !past_cache) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  return fd;
}

#else

// This system cannot say what is in its page cache, nor read only what is there: all reads that miss the block cache are noted, and
// go through the page cache.
bool IsCached(int, uint64_t, size_t) {
  one_in.store(0, std::memory_order_relaxed);
  return true;
}

bool ReadIfCached(int, uint64_t, size_t, char*) { return false; }

int OpenForBlocks(const char* path, bool past_cache) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) fcntl(fd, past_cache ? F_NOCACHE : F_RDAHEAD, past_cache ? 1 : 0);
  return fd;
}

#endif

struct Open {
  explicit Open(int f) : fd(f) {}
  ~Open() { close(fd); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  const int fd;
};

class File : public FSRandomAccessFileOwnerWrapper {
 public:
  File(std::unique_ptr<FSRandomAccessFile>&& file, std::string path,
       bool direct)
      : FSRandomAccessFileOwnerWrapper(std::move(file)),
        id_(next_id.fetch_add(1, std::memory_order_relaxed)),
        path_(std::move(path)),
        direct_(direct) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options,
                Slice* result, char* scratch,
                IODebugContext* dbg) const override {
    pando_reads* reads = reads_of_thread;
    if (reads == nullptr) {
      return target()->Read(offset, n, options, result, scratch, dbg);
    }
    for (size_t i = 0; i < reads->block_count; i++) {
      const pando_block& block = reads->blocks[i];
      if (block.file != id_ || offset < block.offset) continue;
      const uint64_t skipped = offset - block.offset;
      if (skipped > block.asked || n > block.asked - skipped) continue;
      const size_t got =
          skipped < block.came
              ? static_cast<size_t>(std::min<uint64_t>(n, block.came - skipped))
              : 0;
      memcpy(scratch, block.bytes + skipped, got);
      *result = Slice(scratch, got);
      return IOStatus::OK();
    }
    const std::shared_ptr<Open>& open = direct_ ? past_.Get(*this) : own_.Get(*this);
    const bool past = !direct_ && GoesPast();
    if (open != nullptr && !direct_ && (!past || IsCached(open->fd, offset, n)) &&
        ReadIfCached(open->fd, offset, n, scratch)) {
      *result = Slice(scratch, n);
      return IOStatus::OK();
    }
    Note(reads, open, past, offset, n);
    return status_to_io_status(Status::Incomplete("not read yet"));
  }

  IOStatus MultiRead(FSReadRequest* requests, size_t count,
                     const IOOptions& options, IODebugContext* dbg) override {
    if (reads_of_thread == nullptr) {
      return target()->MultiRead(requests, count, options, dbg);
    }
    for (size_t i = 0; i < count; i++) {
      FSReadRequest& r = requests[i];
      r.status = Read(r.offset, r.len, options, &r.result, r.scratch, dbg);
    }
    return IOStatus::OK();
  }

 private:
  // A descriptor of our own, opened when it is first needed; the engine does not let us have its own.
  struct Opened {
    const bool past_cache;
    std::once_flag once;
    std::shared_ptr<Open> open;

    const std::shared_ptr<Open>& Get(const File& file) {
      std::call_once(once, [&] {
        const int fd = OpenForBlocks(file.path_.c_str(), past_cache);
        if (fd >= 0) open = std::make_shared<Open>(fd);
      });
      return open;
    }
  };

  // A page that enters the page cache when there is no room puts out another, which costs as much as reading it, and mostly for
  // nothing: most are not asked for again before they are put out. So then only every so many is let in; those often asked for
  // come in all the same.
  bool GoesPast() const {
    thread_local uint32_t turn = 0;
    const uint32_t of = one_in.load(std::memory_order_relaxed);
    return of > 1 && ++turn % of != 0;
  }

  void Note(pando_reads* reads, std::shared_ptr<Open> open, bool past,
            uint64_t offset, size_t n) const {
    noted.fetch_add(1, std::memory_order_relaxed);
    if (past) {
      if (const auto& direct = past_.Get(*this); direct != nullptr) {
        open = direct;
        const uint64_t end = (offset + n + kSector - 1) / kSector * kSector;
        offset = offset / kSector * kSector;
        n = end - offset;
      }
    }
    for (size_t i = 0; i < reads->missing_count; i++) {
      const pando_read& other = reads->missing[i];
      if (other.file == id_ && other.offset == offset && other.length >= n) {
        return;
      }
    }
    if (open == nullptr || reads->missing_count == reads->room) {
      reads->refused = true;
      return;
    }
    reads->missing[reads->missing_count++] = {
        id_, offset, n, new std::shared_ptr<Open>(open), open->fd};
  }

  static std::atomic<uint64_t> next_id;

  const uint64_t id_;
  const std::string path_;
  const bool direct_;
  mutable Opened own_{false, {}, {}};
  mutable Opened past_{true, {}, {}};
};

std::atomic<uint64_t> File::next_id{1};

class Files : public FileSystemWrapper {
 public:
  explicit Files(const std::shared_ptr<FileSystem>& target)
      : FileSystemWrapper(target) {}

  static const char* kClassName() { return "PandoFiles"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewRandomAccessFile(const std::string& path,
                               const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* result,
                               IODebugContext* dbg) override {
    std::unique_ptr<FSRandomAccessFile> file;
    IOStatus status = target()->NewRandomAccessFile(path, options, &file, dbg);
    if (status.ok()) {
      *result = std::make_unique<File>(std::move(file), path,
                                       options.use_direct_reads);
    }
    return status;
  }
};

class UnsyncedFile : public FSWritableFileOwnerWrapper {
 public:
  explicit UnsyncedFile(std::unique_ptr<FSWritableFile>&& file)
      : FSWritableFileOwnerWrapper(std::move(file)) {}
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&,
                     IODebugContext*) override {
    return IOStatus::OK();
  }
};

class UnsyncedDirectory : public FSDirectoryWrapper {
 public:
  explicit UnsyncedDirectory(std::unique_ptr<FSDirectory>&& directory)
      : FSDirectoryWrapper(std::move(directory)) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus FsyncWithDirOptions(const IOOptions&, IODebugContext*,
                               const DirFsyncOptions&) override {
    return IOStatus::OK();
  }
};

// For data that is not kept: nothing waits for the disk.
class UnsyncedFiles : public Files {
 public:
  explicit UnsyncedFiles(const std::shared_ptr<FileSystem>& target)
      : Files(target) {}

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* dbg) override {
    return Unsynced(target()->NewWritableFile(path, options, result, dbg),
                    result);
  }

  IOStatus ReopenWritableFile(const std::string& path,
                              const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* result,
                              IODebugContext* dbg) override {
    return Unsynced(target()->ReopenWritableFile(path, options, result, dbg),
                    result);
  }

  IOStatus SyncFile(const std::string&, const FileOptions&, const IOOptions&,
                    bool, IODebugContext*) override {
    return IOStatus::OK();
  }

  IOStatus NewDirectory(const std::string& path, const IOOptions& options,
                        std::unique_ptr<FSDirectory>* result,
                        IODebugContext* dbg) override {
    std::unique_ptr<FSDirectory> directory;
    IOStatus status = target()->NewDirectory(path, options, &directory, dbg);
    if (status.ok()) {
      *result = std::make_unique<UnsyncedDirectory>(std::move(directory));
    }
    return status;
  }

 private:
  static IOStatus Unsynced(IOStatus status,
                           std::unique_ptr<FSWritableFile>* result) {
    if (status.ok()) *result = std::make_unique<UnsyncedFile>(std::move(*result));
    return status;
  }
};

}  // namespace

std::shared_ptr<FileSystem> PandoFiles() {
  return std::make_shared<Files>(FileSystem::Default());
}

extern "C" {

// `options` is a rocksdb_options_t, which holds nothing but the options; `other` an environment, or null: these files as they are,
// and whether they are synced.
void pando_files_use(void* options, void* other, bool syncs) {
  static Env* const env = NewCompositeEnv(PandoFiles()).release();
  static Env* const unsynced =
      NewCompositeEnv(std::make_shared<UnsyncedFiles>(FileSystem::Default()))
          .release();
  static_cast<Options*>(options)->env =
      other != nullptr ? static_cast<Env*>(other) : syncs ? env : unsynced;
}

// From now on this thread's reads go there; null: to the disk.
void pando_reads_go_to(pando_reads* reads) { reads_of_thread = reads; }

// Of so many reads that are noted from now on, one goes through the page cache.
void pando_let_one_in(uint32_t of) {
  uint32_t old = one_in.load(std::memory_order_relaxed);
  while (old != 0 && !one_in.compare_exchange_weak(old, of)) {
  }
}

// How many reads were noted.
uint64_t pando_reads_noted() { return noted.load(std::memory_order_relaxed); }

void pando_file_close(void* open) {
  delete static_cast<std::shared_ptr<Open>*>(open);
}

}  // extern "C"
