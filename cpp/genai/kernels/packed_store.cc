#include "genai/kernels/packed_store.h"

#include "genai/base/checksum.h"
#include "genai/base/memory.h"
#include "genai/kernels/packed_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

namespace genai::kernels {
namespace {

/// Weights of all sessions of the process that can be told from others. Thread-safe.
class SharedWeights {
 public:
  std::shared_ptr<const PackedWeights> find(const PackedKey& key) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? nullptr : found->second.lock();
  }

  void add(const PackedKey& key, const std::shared_ptr<const PackedWeights>& weights) {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    known_[key] = weights;
  }

 private:
  std::mutex mutex_;
  std::map<PackedKey, std::weak_ptr<const PackedWeights>> known_;
};

SharedWeights& shared_weights() {
  static auto& weights = *new SharedWeights;
  return weights;
}

/// Checksum of some lines, spread over the bytes of a file. Cost: some page faults; the pages are given back.
std::uint64_t sample_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kLines = 8;
  constexpr std::size_t kLine = 64;
  if (bytes.size() <= kLines * kLine) return checksum(bytes);
  std::array<std::byte, kLines * kLine> sample;
  for (std::size_t i = 0; i < kLines; ++i) {
    const std::size_t at = (bytes.size() - kLine) / (kLines - 1) * i;
    std::memcpy(sample.data() + i * kLine, bytes.data() + at, kLine);
  }
  release_file_pages(bytes.data(), bytes.size());
  return checksum(sample);
}

/// nullopt when the bytes are in a file that could be written to without a trace.
std::optional<PackedPiece> piece_of(MappedFiles& mapped, std::span<const std::byte> bytes, bool with_sample = false) {
  if (bytes.empty()) return PackedPiece{};
  const std::optional<MappedFiles::Place> place = mapped.find(bytes.data(), bytes.size());
  if (!place) return PackedPiece{{}, checksum(bytes), 0};
  if (!is_settled(place->file, file_clock_ns())) return std::nullopt;
  return PackedPiece{place->file, place->offset, with_sample ? sample_of(bytes) : 0};
}

/// nullopt when the constants cannot be told from others. Cost: reads those that are in no file.
std::optional<PackedConstants> constants_of(MappedFiles& mapped, const NBitsWeights& source) {
  const auto scales =
      piece_of(mapped, source.scales.empty() ? std::as_bytes(source.scales16) : std::as_bytes(source.scales));
  const auto codes = piece_of(mapped, std::as_bytes(source.codes), true);
  const auto zero_points = piece_of(mapped, std::as_bytes(source.zero_points));
  if (!codes || !scales || !zero_points) return std::nullopt;
  return PackedConstants{*codes,
                         *scales,
                         *zero_points,
                         source.first,
                         std::ssize(source.scales) + std::ssize(source.scales16),
                         std::ssize(source.zero_points)};
}

/// As constants_of().
std::optional<PackedKey> key_of(MappedFiles& mapped, NBitsMatrices sources, bool exact) {
  PackedKey key;
  for (std::size_t m = 0; m < sources.size(); ++m) {
    const std::optional<PackedConstants> constants = constants_of(mapped, sources[m]);
    if (!constants) return std::nullopt;
    key.matrices[m] = *constants;
  }
  const NBitsWeights& source = sources.front();
  key.depth = source.depth;
  key.columns = source.columns;
  key.bits = source.bits;
  key.block = source.block;
  key.layout = static_cast<std::int64_t>(source.layout);
  key.is_signed = source.is_signed ? 1 : 0;
  key.width = source.width();
  key.scale_bits = source.scales.empty() ? 16 : 32;
  key.exact = exact ? 1 : 0;
  return key;
}

bool are_mapped(MappedFiles& mapped, NBitsMatrices sources) {
  return std::ranges::all_of(sources, [&](const NBitsWeights& source) {
    return mapped.find(source.codes.data(), source.codes.size()).has_value();
  });
}

/// A copy in memory of the process; the file's pages leave it, so that an image is in memory once.
std::shared_ptr<const std::byte> copied(const std::byte& image, std::size_t size_bytes) {
  const std::shared_ptr<std::byte> copy = allocate_weights(size_bytes);
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  for (std::size_t at = 0; at < size_bytes; at += kPiece) {
    const std::size_t size = std::min(kPiece, size_bytes - at);
    std::memcpy(copy.get() + at, &image + at, size);
    release_file_pages(&image + at, size);
  }
  return copy;
}

/// Of the file for a graph's weights; the same again when the file with the constants was written to.
std::string file_name(const FileIdentity& constants, std::uint64_t graph) {
  const std::array<std::uint64_t, 4> parts = {constants.device, constants.inode, graph, kPackedVersion};
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(parts)))));
  return std::string(text.data()) + kPackedSuffix;
}

}  // namespace

std::shared_ptr<const PackedWeights> PackedStore::get(NBitsMatrices sources, bool exact) {
  const std::lock_guard lock(mutex_);
  if (!are_mapped(mapped_, sources)) return std::make_shared<const PackedWeights>(sources, exact);
  const std::optional<PackedKey> key = key_of(mapped_, sources, exact);
  if (!key) {
    missed_ = "their file was just written";
    return std::make_shared<const PackedWeights>(sources, exact);
  }
  if (const auto found = made_.find(*key); found != made_.end()) return found->second;
  if (std::shared_ptr<const PackedWeights> shared = shared_weights().find(*key)) {
    missed_ = "they are shared with another session";
    return shared;
  }
  for (std::size_t m = 0; m < sources.size(); ++m) {
    sources_.try_emplace(key->matrices[m].codes.file, sources[m].codes);
  }
  if (!options_.folder.empty() && !std::exchange(opened_, true)) open_file(*key);
  return made_[*key] = make(*key, sources, exact);
}

void PackedStore::open_file(const PackedKey& first) {
  path_ = options_.folder + "/" + file_name(first.matrices.front().codes.file, options_.graph);
  file_ = PackedFile::open(path_, reason_);
  if (file_ && file_->find(first) != nullptr) {
    is_fast_ = file_->is_fast();
    if (!is_fast_) file_->release_pages();
    return;
  }
  file_ = nullptr;  // the constants were written to since
  reason_ = prepare_packed_folder(options_.folder);
  if (reason_.empty() &&
      first.matrices.front().codes.file.size_bytes > static_cast<std::uint64_t>(options_.max_bytes)) {
    reason_ = "all files together may have " + std::to_string(options_.max_bytes) + " bytes, which this model exceeds";
  }
  if (reason_.empty()) {
    remove_abandoned(options_.folder);
    // Packed weights are about as large as their constants, and others need room, too.
    const auto needed = static_cast<std::int64_t>(2 * first.matrices.front().codes.file.size_bytes);
    writer_ = PackedFileWriter::create(path_, {options_.max_bytes, needed}, reason_);
  }
}

std::shared_ptr<const PackedWeights> PackedStore::make(const PackedKey& key, NBitsMatrices sources, bool exact) {
  if (file_) {
    if (const PackedEntry* const entry = file_->find(key)) {
      const PackedShape shape(sources, exact, entry->has_zero_points != 0);
      if (shape.image_bytes() == entry->size_bytes) {
        const std::shared_ptr<const std::byte> image(file_, file_->image(*entry));
        return std::make_shared<const PackedWeights>(shape, is_fast_ ? image : copied(*image, entry->size_bytes));
      }
    }
  } else if (writer_) {
    const PackedShape shape(sources, exact, std::ranges::any_of(sources, &NBitsWeights::has_zero_points));
    const auto image = writer_->add(key, shape.image_bytes(), shape.zero_points,
                                    [&](std::byte* to) { pack_weights(sources, exact, shape, to); });
    if (image) return std::make_shared<const PackedWeights>(shape, image);
  }
  is_incomplete_ = true;
  return std::make_shared<const PackedWeights>(sources, exact);
}

void PackedStore::finish() {
  const std::lock_guard lock(mutex_);
  summary_ = finish_files();
  for (const auto& [key, weights] : made_) shared_weights().add(key, weights);
  made_.clear();
  sources_.clear();
  file_ = nullptr;
  writer_ = nullptr;
}

std::string PackedStore::finish_files() {
  if (file_) {
    if (is_incomplete_) unlink(path_.c_str());  // the next session packs all of them anew
    return (is_fast_ ? "mapped from " : "copied from ") + path_;
  }
  if (writer_) {
    if (missed_.empty() && sources_changed()) missed_ = "their file was written to";
    if (missed_.empty()) {
      make_room(options_.folder, options_.max_bytes - writer_->size_bytes());
      if (writer_->finish()) return "packed into " + path_;
    }
    reason_ = writer_->failure().empty() ? missed_ : path_ + ": " + writer_->failure();
  } else if (opened_) {
    reason_ = path_ + ": " + reason_;
  } else if (!missed_.empty()) {
    reason_ = missed_;
  } else if (made_.empty()) {
    return {};
  }
  return "packed in memory: " + reason_;
}

bool PackedStore::sources_changed() const {
  MappedFiles mapped;
  return std::ranges::any_of(sources_, [&](const auto& source) {
    const std::optional<MappedFiles::Place> place = mapped.find(source.second.data(), source.second.size());
    return !place || place->file != source.first;
  });
}

std::string PackedStore::summary() const {
  const std::lock_guard lock(mutex_);
  return summary_;
}

std::shared_ptr<const PackedWeights> packed_weights(NBitsMatrices sources, bool exact) {
  MappedFiles mapped;
  // Of codes in memory not even a checksum is taken: there may be many of them.
  const std::optional<PackedKey> key = are_mapped(mapped, sources) ? key_of(mapped, sources, exact) : std::nullopt;
  if (!key) return std::make_shared<const PackedWeights>(sources, exact);
  if (std::shared_ptr<const PackedWeights> shared = shared_weights().find(*key)) return shared;
  const auto made = std::make_shared<const PackedWeights>(sources, exact);
  shared_weights().add(*key, made);
  return made;
}

}  // namespace genai::kernels
