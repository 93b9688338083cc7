#include "genai/engine/sequence_output.h"

#include <algorithm>
#include <utility>

namespace genai::engine {

SequenceOutput::SequenceOutput(int choice, const SamplingParams& params, std::span<const TokenId> eos_ids,
                               std::shared_ptr<const TokenTable> table)
    : choice_(choice),
      stop_token_ids_(params.stop_token_ids),
      detokenizer_(std::move(table), params.skip_special_tokens, params.visible_special_tokens),
      stop_checker_(params.stop, params.include_stop) {
  if (!params.ignore_eos) eos_ids_.assign(eos_ids.begin(), eos_ids.end());
}

void SequenceOutput::finish_text(Event& event) {
  const sampling::StopChecker::Output tail = stop_checker_.append(detokenizer_.flush());
  event.text += tail.text;
  if (tail.matched) {
    event.finish = FinishReason::kStop;
    event.stop_index = tail.matched;
  } else {
    event.text += stop_checker_.flush();
  }
}

Event SequenceOutput::append(TokenId token, std::optional<TokenLogprob> logprob, bool is_last) {
  Event event;
  event.choice = choice_;
  event.tokens.push_back(token);
  if (logprob) event.logprobs.push_back(std::move(*logprob));
  ++num_tokens_;

  const bool is_eos = std::ranges::find(eos_ids_, token) != eos_ids_.end();
  const bool is_stop_id = !is_eos && std::ranges::find(stop_token_ids_, token) != stop_token_ids_.end();
  if (is_eos || is_stop_id) {
    event.finish = FinishReason::kStop;
    finish_text(event);
    if (is_stop_id && !event.stop_index) event.stop_token = token;
    return event;
  }
  const sampling::StopChecker::Output output = stop_checker_.append(detokenizer_.append(token));
  event.text = output.text;
  if (output.matched) {
    event.finish = FinishReason::kStop;
    event.stop_index = output.matched;
  } else if (is_last) {
    event.finish = FinishReason::kLength;
    finish_text(event);
  }
  return event;
}

void SequenceOutput::stop_here(Event& event) {
  if (event.finish) return;
  event.finish = FinishReason::kStop;
  finish_text(event);
}

Event SequenceOutput::end(FinishReason reason) {
  Event event;
  event.choice = choice_;
  event.finish = reason;
  finish_text(event);
  if (event.stop_index) {  // the held-back tail completed a stop string; the reason of the end stays
    event.stop_index.reset();
    event.finish = reason;
  }
  return event;
}

}  // namespace genai::engine
