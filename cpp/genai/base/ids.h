#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace genai {

/// A token of the vocabulary. A plain integer because rows of them are handed to kernels as they are.
using TokenId = std::int32_t;

/// Strong integer id: ids of different kinds do not mix.
template <typename Tag>
struct Id {
  std::uint64_t value = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
};

/// What a user submitted.
using RequestId = Id<struct RequestTag>;
/// One token stream of a request (a request with n > 1 has n sequences).
using SequenceId = Id<struct SequenceTag>;

}  // namespace genai

template <typename Tag>
struct std::hash<genai::Id<Tag>> {
  std::size_t operator()(const genai::Id<Tag>& id) const noexcept { return std::hash<std::uint64_t>{}(id.value); }
};
