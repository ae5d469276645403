// An environment whose files are encrypted (see src/encrypted_env.rs): RocksDB's own wrapper of a file system, with our cipher.
// It stands on the files of files.cc: places that are noted, and bytes that are brought, are those of the encrypted file.

#include <cstdint>
#include <memory>
#include <string>

#include "rocksdb/env.h"
#include "rocksdb/env_encryption.h"
#include "rocksdb/file_system.h"

using namespace ROCKSDB_NAMESPACE;

extern "C" {

// The layout of src/encrypted_env.rs.
struct pando_calls {
  const void* key;
  size_t header_bytes;
  void (*make)(const void* key, char* header, size_t length);
  void* (*open)(const void* key, const char* header, size_t length);
  void (*apply)(const void* cipher, uint64_t offset, char* bytes, size_t length);
  void (*close)(void* cipher);
};

}  // extern "C"

// Of files.cc.
std::shared_ptr<FileSystem> PandoFiles();

namespace {

class Stream : public BlockAccessCipherStream {
 public:
  Stream(const pando_calls& calls, void* cipher)
      : calls_(calls), cipher_(cipher) {}
  ~Stream() override { calls_.close(cipher_); }

  size_t BlockSize() override { return 16; }

  Status Encrypt(uint64_t offset, char* bytes, size_t length) override {
    calls_.apply(cipher_, offset, bytes, length);
    return Status::OK();
  }

  Status Decrypt(uint64_t offset, char* bytes, size_t length) override {
    return Encrypt(offset, bytes, length);
  }

 protected:
  // Only the base's Encrypt and Decrypt ask for these.
  void AllocateScratch(std::string&) override {}
  Status EncryptBlock(uint64_t, char*, char*) override {
    return Status::NotSupported();
  }
  Status DecryptBlock(uint64_t, char*, char*) override {
    return Status::NotSupported();
  }

 private:
  const pando_calls calls_;
  void* const cipher_;
};

class Provider : public EncryptionProvider {
 public:
  explicit Provider(const pando_calls& calls) : calls_(calls) {}

  const char* Name() const override { return "PandoEncryption"; }
  size_t GetPrefixLength() const override { return calls_.header_bytes; }

  Status CreateNewPrefix(const std::string&, char* prefix,
                         size_t length) const override {
    calls_.make(calls_.key, prefix, length);
    return Status::OK();
  }

  Status AddCipher(const std::string&, const char*, size_t, bool) override {
    return Status::NotSupported();
  }

  Status CreateCipherStream(
      const std::string& path, const EnvOptions&, Slice& prefix,
      std::unique_ptr<BlockAccessCipherStream>* result) override {
    void* cipher = calls_.open(calls_.key, prefix.data(), prefix.size());
    if (cipher == nullptr) {
      return Status::Corruption(
          "the header of the encrypted file is damaged, or of another key",
          path);
    }
    *result = std::make_unique<Stream>(calls_, cipher);
    return Status::OK();
  }

 private:
  const pando_calls calls_;
};

}  // namespace

// It lives for ever.
extern "C" void* pando_encrypted_env(const pando_calls* calls) {
  auto provider = std::make_shared<Provider>(*calls);
  return NewCompositeEnv(NewEncryptedFS(PandoFiles(), provider)).release();
}
