#include "genai/engine/kv_transfer.h"

#include "genai/base/error.h"

#include <new>
#include <string>

namespace genai::engine {
namespace {

Error no_memory(std::size_t size) {
  return {ErrorCode::kResourceExhausted,
          "out of memory for a copy of " + std::to_string(size) + " bytes of KV; save a shorter session"};
}

}  // namespace

KvBytes export_kv(const kv::KvManager& kv, const runner::ModelRunner& runner, std::span<const TokenId> tokens,
                  std::string_view salt) {
  KvBytes out;
  const auto block_bytes = static_cast<std::size_t>(runner.block_bytes());
  if (block_bytes == 0 || !runner.info().shares_blocks) return out;
  const std::vector<KvPlace> places = kv.find(tokens, salt);
  const std::size_t size = places.size() * block_bytes;
  try {
    out.bytes.resize(size);
  } catch (const std::bad_alloc&) {
    throw no_memory(size);
  }
  std::size_t done = 0;
  try {
    for (; done < places.size(); ++done) {
      runner.read_block(places[done], std::span(out.bytes).subspan(done * block_bytes, block_bytes));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBackend) throw;
    out.bytes.resize(done * block_bytes);  // a damaged block: what stands before it is still good
  }
  out.num_tokens = static_cast<std::int64_t>(done) * kv.config().block_size;
  return out;
}

std::int64_t import_kv(kv::KvManager& kv, runner::ModelRunner& runner, std::span<const TokenId> tokens,
                       std::string_view salt, std::span<const std::byte> bytes,
                       const std::function<bool()>& apply_ops) {
  const auto block_bytes = static_cast<std::size_t>(runner.block_bytes());
  if (block_bytes == 0 || !runner.info().shares_blocks) {
    if (bytes.empty()) return 0;
    throw Error(ErrorCode::kUnsupported, "the decoder \"" + runner.info().decoder +
                                             "\" keeps no KV in blocks, so none can be loaded; load the tokens alone");
  }
  const auto block_size = static_cast<std::size_t>(kv.config().block_size);
  const std::size_t num_blocks = tokens.size() / block_size;
  if (bytes.size() != num_blocks * block_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "KV has " + std::to_string(bytes.size()) + " bytes; allowed: " +
                    std::to_string(num_blocks * block_bytes) + " for " + std::to_string(tokens.size()) + " tokens (" +
                    std::to_string(num_blocks) + " blocks of " + std::to_string(block_size) + " tokens, " +
                    std::to_string(block_bytes) + " bytes each). It may come from another model or another KV type.");
  }
  const std::vector<kv::KvManager::Slot> slots = kv.insert(tokens, salt);
  try {
    if (!apply_ops()) {
      throw Error(ErrorCode::kBackend,
                  "blocks could not be moved to make room for the loaded KV, so none of it is used; "
                  "the tokens are computed again. Check the memory and the disk of the KV tiers.");
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].is_new) runner.write_block(slots[i].place, bytes.subspan(i * block_bytes, block_bytes));
    }
  } catch (...) {
    kv.clear_cache();  // blocks without their bytes must not be found
    throw;
  }
  return static_cast<std::int64_t>(slots.size() * block_size);
}

}  // namespace genai::engine
