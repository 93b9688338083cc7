#include "genai/grammar/library.h"

#include "genai/base/error.h"

#include "llguidance/abi.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

namespace genai::grammar {
namespace {

Error not_usable(const std::string& path, const std::string& why) {
  return {ErrorCode::kUnsupported, path + ": " + why + " Install it anew: pip install --upgrade llguidance"};
}

template <typename Function>
void find(void* handle, const std::string& path, const char* name, Function*& out) {
  void* const symbol = dlsym(handle, name);
  if (symbol == nullptr) throw not_usable(path, std::string("it does not export ") + name + ".");
  out = reinterpret_cast<Function*>(symbol);
}

llg_abi::Functions find_all(void* handle, const std::string& path) {
  llg_abi::Functions f{};
  find(handle, path, "llg_new_tokenizer_v2", f.new_tokenizer_v2);
  find(handle, path, "llg_free_tokenizer", f.free_tokenizer);
  find(handle, path, "llg_constraint_init_set_defaults", f.constraint_init_set_defaults);
  find(handle, path, "llg_new_matcher", f.new_matcher);
  find(handle, path, "llg_clone_matcher", f.clone_matcher);
  find(handle, path, "llg_free_matcher", f.free_matcher);
  find(handle, path, "llg_matcher_get_error", f.matcher_get_error);
  find(handle, path, "llg_matcher_get_mask_byte_size", f.matcher_get_mask_byte_size);
  find(handle, path, "llg_matcher_compute_mask_into", f.matcher_compute_mask_into);
  find(handle, path, "llg_matcher_consume_tokens", f.matcher_consume_tokens);
  find(handle, path, "llg_matcher_validate_tokens", f.matcher_validate_tokens);
  find(handle, path, "llg_matcher_rollback", f.matcher_rollback);
  find(handle, path, "llg_matcher_compute_ff_tokens", f.matcher_compute_ff_tokens);
  find(handle, path, "llg_matcher_is_accepting", f.matcher_is_accepting);
  find(handle, path, "llg_matcher_is_stopped", f.matcher_is_stopped);
  return f;
}

/// Tokens "a", "b" and an end; the regex a must allow just "a". Finds a changed layout here and not as a crash later.
void check_anchor(const llg_abi::Functions& f, const std::string& path) {
  constexpr std::array<std::uint32_t, 3> kLens = {1, 1, 0};
  constexpr std::array<std::uint8_t, 2> kBytes = {'a', 'b'};
  llg_abi::TokenizerInit init{};
  init.struct_size = sizeof(init);
  init.vocab_size = 3;
  init.eos = 2;
  init.token_lens = kLens.data();
  init.token_bytes = kBytes.data();
  init.use_approximate_greedy_tokenize_fn = true;
  std::array<char, 256> error{};
  llg_abi::Tokenizer* const tokenizer = f.new_tokenizer_v2(&init, error.data(), error.size());
  if (tokenizer == nullptr) throw not_usable(path, std::string("it refuses a tokenizer (") + error.data() + ").");
  llg_abi::ConstraintInit constraint{};
  f.constraint_init_set_defaults(&constraint, tokenizer);
  constraint.tokenizer = tokenizer;
  constraint.log_stderr_level = 0;
  llg_abi::Matcher* const matcher = f.new_matcher(&constraint, "regex", "a");
  std::uint32_t mask = 0;
  const bool right = f.matcher_get_error(matcher) == nullptr && f.matcher_get_mask_byte_size(matcher) == sizeof(mask) &&
                     f.matcher_compute_mask_into(matcher, &mask, sizeof(mask)) == 0 && mask == 1U &&
                     !f.matcher_is_accepting(matcher);
  f.free_matcher(matcher);
  f.free_tokenizer(tokenizer);
  if (!right) throw not_usable(path, "its C interface is not the expected one.");
}

}  // namespace

Library::Library(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    throw not_usable(path, std::string("it cannot be opened (") + (why == nullptr ? "unknown" : why) + ").");
  }
  auto functions = std::make_unique<llg_abi::Functions>(find_all(handle, path));
  check_anchor(*functions, path);
  functions_ = functions.release();
}

const Library& Library::load(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Library>> libraries;  // guarded by mutex
  if (!std::filesystem::path(path).is_absolute()) {
    throw Error(ErrorCode::kInvalidArgument, "the path of llguidance is \"" + path + "\"; allowed: an absolute path");
  }
  if (!std::filesystem::exists(path)) throw Error(ErrorCode::kNotFound, path + ": no such file");
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = libraries[path];
  if (!library) library.reset(new Library(path));
  return *library;
}

}  // namespace genai::grammar
