#pragma once

#include "genai/base/mapped_files.h"
#include "genai/kernels/nbits_weights.h"
#include "genai/kernels/packed_file.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace genai::kernels {

/// Gives the kernels of one session their packed weights. Those of the same constants are shared with other sessions
/// of the process, and through a file with other processes and later ones. Thread-safe.
///
///     const auto store = std::make_shared<PackedStore>(PackedStore::Options{.folder = folder, .max_bytes = 1 << 30});
///     ...  // a session is made, whose kernels call get()
///     store->finish();
class PackedStore {
 public:
  struct Options {
    std::string folder;          ///< of the files, absolute; made when there is something to put there; empty: no files
    std::int64_t max_bytes = 0;  ///< of all files together
    std::uint64_t graph = 0;     ///< tells graphs whose weights are in the same file apart
  };
  explicit PackedStore(Options options) : options_(std::move(options)) {}

  /// Weights for `sources`, at most kMatricesInTurn of them: shared, mapped, or packed now.
  /// Requires: the constants stay where they are until finish().
  std::shared_ptr<const PackedWeights> get(NBitsMatrices sources, bool exact);
  std::shared_ptr<const PackedWeights> get(const NBitsWeights& source, bool exact) {
    return get(NBitsMatrices(&source, 1), exact);
  }

  /// Shares the weights and, if they were packed now, keeps them in a file.
  void finish();

  /// What became of the weights, for people: "mapped from FILE", "copied from FILE", "packed into FILE", "packed in
  /// memory: WHY"; empty before finish() and when there are none.
  std::string summary() const;

 private:
  void open_file(const PackedKey& first);
  std::shared_ptr<const PackedWeights> make(const PackedKey& key, NBitsMatrices sources, bool exact);
  bool sources_changed() const;
  std::string finish_files();

  const Options options_;
  mutable std::mutex mutex_;
  // All below belongs to mutex_.
  MappedFiles mapped_;
  std::map<FileIdentity, std::span<const std::uint8_t>> sources_;  ///< files with codes, and some of these
  bool opened_ = false;
  std::string missed_;          ///< why some weights were not asked of a file; empty when all were
  bool is_incomplete_ = false;  ///< the file lacks some weights
  bool is_fast_ = true;         ///< file_ may be read in place
  std::string path_;
  std::string reason_ = "this is switched off";  ///< why weights are packed in memory
  std::string summary_;
  std::shared_ptr<const PackedFile> file_;
  std::unique_ptr<PackedFileWriter> writer_;
  std::map<PackedKey, std::shared_ptr<const PackedWeights>> made_;  ///< to be shared by finish()
};

/// Packs `sources` into memory, or gives weights that are in use already if they were packed from the same places of
/// the same files. Thread-safe.
std::shared_ptr<const PackedWeights> packed_weights(NBitsMatrices sources, bool exact);
inline std::shared_ptr<const PackedWeights> packed_weights(const NBitsWeights& source, bool exact) {
  return packed_weights(NBitsMatrices(&source, 1), exact);
}

}  // namespace genai::kernels
