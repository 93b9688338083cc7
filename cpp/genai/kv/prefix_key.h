#pragma once

#include "genai/base/ids.h"
#include "genai/core/kv.h"

#include <span>
#include <string_view>

namespace genai::kv {

/// Keys of prefixes: a chain. The root is the key of the salt's bytes, and each block's key is made from the key before
/// it and the block's tokens. Everything is defined on numbers, not on bytes in memory, so the keys are the same on
/// every machine:
///
///     fold(x, y)        = low half xor high half of the 128-bit product x * y
///     absorb(key, word) = { fold(key.low  xor word xor C0,                key.high xor C1),
///                           fold(key.high xor rotate_left(word, 32) xor C2, key.low xor C3) }
///     root(salt)  = absorb over {C0, C2}: the salt in 8-byte words (the first byte is the lowest, zeros behind the
///                   end), then its size in bytes, then C1
///     child(p, t) = absorb over p: the tokens in pairs (the first is the low half, a token is its 32 bits, zero behind
///                   an odd end), then their number, then C3
///
/// C0 to C3 are the first 256 bits of the fraction of pi. All sums of two tokens reach both halves twice, so keys of
/// different prefixes are equal with a chance of about 2^-126; nobody's KV depends on that, because PrefixIndex
/// compares tokens as well. The keys are not a secret: who knows the rule can make two prefixes with one key, which
/// costs them a cache hit. Source of the multiply-and-fold step: Wang Yi, "wyhash" (public domain), 2019.

/// Key of the empty prefix. `salt`: any bytes.
PrefixKey root_key(std::string_view salt);

/// Key of `parent`'s prefix followed by `tokens`. Cost: O(tokens), about three nanoseconds a token.
PrefixKey child_key(const PrefixKey& parent, std::span<const TokenId> tokens);

}  // namespace genai::kv
