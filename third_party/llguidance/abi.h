#pragma once

// Our own declaration of the part of llguidance's C ABI that genai uses; see README.md beside this file.

#include <cstddef>
#include <cstdint>

namespace llg_abi {

struct Matcher;
struct Tokenizer;

struct ParserLimits {
  std::size_t max_items_in_row;
  std::uint64_t initial_lexer_fuel;
  std::uint64_t step_lexer_fuel;
  std::size_t step_max_items;
  std::size_t max_lexer_states;
  std::size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
};

struct ConstraintInit {
  const Tokenizer* tokenizer;
  std::uint32_t log_buffer_level;
  std::uint32_t log_stderr_level;
  bool ff_tokens_ok;
  bool backtrack_ok;
  ParserLimits limits;
  // Fields that later versions may add are written by llg_constraint_init_set_defaults.
  std::uint64_t reserved[16];
};

using TokenizeFn = std::size_t (*)(const void* user_data, const std::uint8_t* bytes, std::size_t num_bytes,
                                   std::uint32_t* tokens, std::size_t capacity);

struct TokenizerInit {
  std::size_t struct_size;
  std::uint32_t vocab_size;
  std::uint32_t eos;
  const std::uint32_t* token_lens;
  const std::uint8_t* token_bytes;
  const char* tokenizer_json;
  bool tokenize_assumes_string;
  TokenizeFn tokenize_fn;
  bool use_approximate_greedy_tokenize_fn;
  const void* tokenize_user_data;
  const char* const* slices;
  const std::uint32_t* eos_extra;
  std::uint32_t eos_extra_count;
};

/// The functions, by the names under which the library exports them (behind "llg_").
struct Functions {
  Tokenizer* (*new_tokenizer_v2)(const TokenizerInit*, char* error, std::size_t error_size);
  void (*free_tokenizer)(Tokenizer*);
  void (*constraint_init_set_defaults)(ConstraintInit*, const Tokenizer*);
  Matcher* (*new_matcher)(const ConstraintInit*, const char* type, const char* data);
  Matcher* (*clone_matcher)(const Matcher*);
  void (*free_matcher)(Matcher*);
  const char* (*matcher_get_error)(Matcher*);
  std::size_t (*matcher_get_mask_byte_size)(const Matcher*);
  std::int32_t (*matcher_compute_mask_into)(Matcher*, std::uint32_t* mask, std::size_t mask_bytes);
  std::int32_t (*matcher_consume_tokens)(Matcher*, const std::uint32_t* tokens, std::size_t count);
  std::int32_t (*matcher_validate_tokens)(Matcher*, const std::uint32_t* tokens, std::size_t count);
  std::int32_t (*matcher_rollback)(Matcher*, std::size_t count);
  std::int32_t (*matcher_compute_ff_tokens)(Matcher*, std::uint32_t* tokens, std::size_t capacity);
  bool (*matcher_is_accepting)(Matcher*);
  bool (*matcher_is_stopped)(const Matcher*);
};

}  // namespace llg_abi
