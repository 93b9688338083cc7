#include "genai/runner/kv_storage.h"

#include "genai/base/error.h"
#include "genai/base/huge_pages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace genai::runner {
namespace {

constexpr std::int64_t kDefaultHotBytes = std::int64_t{1} << 30;
/// Of blocks, and of elements of a tensor: indices of either fit an int32.
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

/// The tensors of a layer, still without blocks.
std::vector<KvStorage::Tensor> tensors_of(const PagedLayer& layer, std::int64_t block_size) {
  std::vector<KvStorage::Tensor> tensors;
  const auto add = [&](const std::string& name, DType dtype, const Dims& dims, const std::string& present) {
    const auto elements = static_cast<std::size_t>(dims.product(1, dims.rank()));
    tensors.push_back({.name = name,
                       .dtype = dtype,
                       .dims = dims,
                       .block_bytes = elements * size_bytes(dtype),
                       .buffer = {},
                       .present = present,
                       .next = {}});
  };
  if (layer.order == BlockOrder::kPositionsFirst) {
    add(layer.key_cache, layer.dtype, {0, block_size, layer.kv_heads, layer.head_dim}, layer.key_present);
    add(layer.value_cache, layer.dtype, {0, block_size, layer.kv_heads, layer.value_dim}, layer.value_present);
    return tensors;
  }
  add(layer.key_cache, layer.dtype, {0, layer.kv_heads, layer.head_dim, block_size}, "");
  add(layer.value_cache, layer.dtype, {0, layer.kv_heads, block_size, layer.value_dim}, "");
  for (const std::string& scale : {layer.key_scale, layer.value_scale}) {
    if (!scale.empty()) add(scale, DType::kFloat32, {0, layer.kv_heads, block_size}, "");
  }
  return tensors;
}

}  // namespace

std::int64_t KvStorage::block_bytes_of(const std::vector<PagedLayer>& layers, int block_size) {
  std::size_t bytes = 0;
  for (const PagedLayer& layer : layers) {
    for (const Tensor& tensor : tensors_of(layer, block_size)) bytes += tensor.block_bytes;
  }
  return static_cast<std::int64_t>(bytes);
}

KvStorage::KvStorage(const std::vector<PagedLayer>& layers, int block_size, const KvMemory& memory)
    : KvStorage(layers, block_size, memory, memory.cold_bytes > 0 ? open_cold_file(memory.cold_folder) : nullptr) {}

KvStorage::KvStorage(const std::vector<PagedLayer>& layers, int block_size, const KvMemory& memory,
                     std::unique_ptr<ColdFile> cold_file) {
  check(!layers.empty() && block_size >= 1, "KV storage without layers or without a block size");
  for (const PagedLayer& layer : layers) {
    for (Tensor& tensor : tensors_of(layer, block_size)) tensors_.push_back(std::move(tensor));
  }
  std::int64_t largest = 1;
  for (const Tensor& tensor : tensors_) {
    block_bytes_ += tensor.block_bytes;
    largest = std::max(largest, tensor.dims.product(1, tensor.dims.rank()));
  }
  const auto block_bytes = static_cast<std::int64_t>(block_bytes_);

  const std::int64_t hot_bytes = memory.hot_bytes > 0 ? memory.hot_bytes : kDefaultHotBytes;
  num_hot_blocks_ = std::max<std::int64_t>(1, std::min(hot_bytes / block_bytes, kMaxCount / largest));
  for (Tensor& tensor : tensors_) {
    tensor.dims[0] = num_hot_blocks_;
    tensor.buffer =
        tensor::Buffer(tensor.block_bytes * static_cast<std::size_t>(num_hot_blocks_), tensor::Pages::kSmall);
    if (!tensor.present.empty()) tensor.next = tensor::Buffer(tensor.buffer.size_bytes());
  }
  num_warm_blocks_ = std::min(memory.warm_bytes / block_bytes, kMaxCount);
  warm_ = tensor::Buffer(block_bytes_ * static_cast<std::size_t>(num_warm_blocks_));
  warm_full_.resize(static_cast<std::size_t>(num_warm_blocks_));
  if (cold_file) {
    cold_ = ColdTier(std::move(cold_file), block_bytes, memory.cold_bytes);
    staging_.resize(block_bytes_);
  }
}

void KvStorage::take_presents() {
  for (Tensor& tensor : tensors_) std::swap(tensor.buffer, tensor.next);
}

bool KvStorage::join_pages(std::int64_t num_written) {
  for (std::size_t looked = 0; looked < tensors_.size(); ++looked) {
    Tensor& tensor = tensors_[next_join_];
    next_join_ = (next_join_ + 1) % tensors_.size();
    const bool is_swapped = !tensor.present.empty();
    if (is_swapped || tensor.joined_bytes + kHugePage > static_cast<std::size_t>(num_written) * tensor.block_bytes)
      continue;
    tensor.buffer.join_pages(tensor.joined_bytes);
    tensor.joined_bytes += kHugePage;
    return true;
  }
  return false;
}

std::int64_t KvStorage::num_blocks(KvTier tier) const {
  switch (tier) {
    case KvTier::kHot:
      return num_hot_blocks_;
    case KvTier::kWarm:
      return num_warm_blocks_;
    case KvTier::kCold:
      return cold_.num_blocks();
  }
  return 0;
}

std::size_t KvStorage::check_hot(std::int32_t index) const {
  check(index >= 0 && index < num_hot_blocks_, "a KV block outside of the hot tier");
  return static_cast<std::size_t>(index);
}

std::span<std::byte> KvStorage::warm_block(std::int32_t index) const {
  check(index >= 0 && index < num_warm_blocks_, "a KV block outside of the warm tier");
  return {warm_.data() + static_cast<std::size_t>(index) * block_bytes_, block_bytes_};
}

std::span<const std::byte> KvStorage::full_warm_block(std::int32_t index) const {
  const std::span<const std::byte> block = warm_block(index);
  if (warm_full_[static_cast<std::size_t>(index)]) return block;
  throw Error(ErrorCode::kBackend, "block " + std::to_string(index) + " of the warm KV tier is empty");
}

void KvStorage::copy(BlockId from, BlockId to) {
  const std::size_t source = check_hot(from);
  const std::size_t target = check_hot(to);
  if (source == target) return;
  for (const Tensor& tensor : tensors_) {
    std::byte* const data = tensor.buffer.data();
    std::memcpy(data + target * tensor.block_bytes, data + source * tensor.block_bytes, tensor.block_bytes);
  }
}

void KvStorage::move(KvPlace from, KvPlace to) {
  check(from != to, "a KV block was moved to where it is");
  try {
    if (to.tier == KvTier::kWarm) {
      read(from, warm_block(to.index));
      warm_full_[static_cast<std::size_t>(to.index)] = true;
    } else if (from.tier == KvTier::kWarm) {
      write(to, full_warm_block(from.index));
    } else {
      staging_.resize(block_bytes_);
      read(from, staging_);
      write(to, staging_);
    }
  } catch (...) {
    clear(from);
    clear(to);
    throw;
  }
  clear(from);
}

void KvStorage::clear(KvPlace place) {
  switch (place.tier) {
    case KvTier::kHot:
      return;
    case KvTier::kWarm:
      (void)warm_block(place.index);
      warm_full_[static_cast<std::size_t>(place.index)] = false;
      return;
    case KvTier::kCold:
      cold_.clear(place.index);
      return;
  }
}

void KvStorage::read(KvPlace place, std::span<std::byte> bytes) const {
  check(bytes.size() == block_bytes_, "a KV block was read into memory of another size");
  switch (place.tier) {
    case KvTier::kHot: {
      const std::size_t index = check_hot(place.index);
      std::byte* target = bytes.data();
      for (const Tensor& tensor : tensors_) {
        std::memcpy(target, tensor.buffer.data() + index * tensor.block_bytes, tensor.block_bytes);
        target += tensor.block_bytes;
      }
      return;
    }
    case KvTier::kWarm: {
      const std::span<const std::byte> block = full_warm_block(place.index);
      std::memcpy(bytes.data(), block.data(), block.size());
      return;
    }
    case KvTier::kCold:
      cold_.read(place.index, bytes);
      return;
  }
}

void KvStorage::write(KvPlace place, std::span<const std::byte> bytes) {
  check(bytes.size() == block_bytes_, "a KV block was written from memory of another size");
  switch (place.tier) {
    case KvTier::kHot: {
      const std::size_t index = check_hot(place.index);
      const std::byte* source = bytes.data();
      for (const Tensor& tensor : tensors_) {
        std::memcpy(tensor.buffer.data() + index * tensor.block_bytes, source, tensor.block_bytes);
        source += tensor.block_bytes;
      }
      return;
    }
    case KvTier::kWarm:
      std::memcpy(warm_block(place.index).data(), bytes.data(), block_bytes_);
      warm_full_[static_cast<std::size_t>(place.index)] = true;
      return;
    case KvTier::kCold:
      cold_.write(place.index, bytes);
      return;
  }
}

}  // namespace genai::runner
