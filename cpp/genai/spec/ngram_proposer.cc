#include "genai/spec/ngram_proposer.h"

#include "genai/base/error.h"

#include <algorithm>
#include <string>

namespace genai::spec {

namespace {

/// FNV-1a over whole tokens.
std::uint64_t hash_of(std::span<const TokenId> tokens) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const TokenId token : tokens) hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001b3;
  return hash;
}

}  // namespace

NgramProposer::NgramProposer(std::size_t order) : context_size_(order - 1) {
  if (order < 2) {
    throw Error(ErrorCode::kInvalidArgument, "order of n-grams is " + std::to_string(order) +
                                                 "; allowed: 2 or more, a token and at least one before it");
  }
}

void NgramProposer::extend(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    const std::size_t position = tokens_.size();
    tokens_.push_back(token);
    earlier_.push_back(kNone);
    if (position < context_size_) continue;
    const auto [entry, is_new] = last_.try_emplace(hash_before(position), position);
    if (is_new) continue;
    earlier_.back() = entry->second;
    entry->second = position;
  }
}

void NgramProposer::truncate(std::size_t size) {
  check(size <= tokens_.size(), "NgramProposer::truncate beyond the sequence");
  while (tokens_.size() > size) {
    const std::size_t position = tokens_.size() - 1;
    if (position >= context_size_) {
      const auto entry = last_.find(hash_before(position));
      if (earlier_.back() == kNone) {
        last_.erase(entry);
      } else {
        entry->second = earlier_.back();
      }
    }
    tokens_.pop_back();
    earlier_.pop_back();
  }
}

std::vector<TokenId> NgramProposer::propose(std::size_t limit, DraftStyle style) const {
  std::vector<TokenId> draft;
  if (tokens_.size() < context_size_) return draft;
  const std::span<const TokenId> all(tokens_);
  switch (style) {
    case DraftStyle::kCopied: {
      const std::size_t position = find(all.last(context_size_));
      if (position == kNone) return draft;
      const auto found = all.subspan(position, std::min(limit, all.size() - position));
      draft.assign(found.begin(), found.end());
      return draft;
    }
    case DraftStyle::kChained: {
      const auto begin = all.last(context_size_);
      std::vector<TokenId> context(begin.begin(), begin.end());
      while (draft.size() < limit) {
        const std::size_t position = find(context);
        if (position == kNone) break;
        draft.push_back(tokens_[position]);
        std::ranges::rotate(context, context.begin() + 1);
        context.back() = tokens_[position];
      }
      return draft;
    }
  }
  return draft;
}

std::uint64_t NgramProposer::hash_before(std::size_t position) const {
  return hash_of(std::span(tokens_).subspan(position - context_size_, context_size_));
}

std::size_t NgramProposer::find(std::span<const TokenId> context) const {
  const auto entry = last_.find(hash_of(context));
  std::size_t position = entry == last_.end() ? kNone : entry->second;
  // Different contexts with one hash share a chain.
  while (position != kNone &&
         !std::ranges::equal(context, std::span(tokens_).subspan(position - context_size_, context_size_))) {
    position = earlier_[position];
  }
  return position;
}

}  // namespace genai::spec
