#include "genai/engine/beam_group.h"

#include "genai/base/error.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace genai::engine {
namespace {

BeamConfig beam_config(const Request& request, std::span<const TokenId> eos_ids, std::int64_t max_total_tokens) {
  const SamplingParams& params = request.params;
  return {.num_beams = static_cast<std::size_t>(params.num_beams),
          .length_penalty = params.length_penalty,
          .early_stopping = params.early_stopping,
          .num_end_ids = end_ids(params, eos_ids).size(),
          .max_new_tokens = max_total_tokens - static_cast<std::int64_t>(request.prompt.size()),
          .keeps_logprobs = params.logprobs};
}

/// One event with everything that `path` says.
Event event_of(const BeamPath& path, SequenceOutput& output, std::optional<FinishReason> reason) {
  Event whole;
  whole.choice = output.choice();
  for (std::size_t i = 0; i < path.tokens.size() && !whole.finish; ++i) {
    const bool is_last = !reason && i + 1 == path.tokens.size();
    Event piece = output.append(path.tokens[i], std::nullopt, is_last);
    whole.text += piece.text;
    whole.finish = piece.finish;
    whole.stop_index = piece.stop_index;
    whole.stop_token = piece.stop_token;
  }
  if (!whole.finish) {
    whole.text += output.end(reason.value_or(FinishReason::kLength)).text;
  }
  if (reason) whole.finish = reason;
  whole.tokens = path.tokens;
  whole.logprobs = path.logprobs;
  whole.score = static_cast<double>(path.score);
  return whole;
}

}  // namespace

std::vector<TokenId> end_ids(const SamplingParams& params, std::span<const TokenId> eos_ids) {
  std::vector<TokenId> ids = params.stop_token_ids;
  if (!params.ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::ranges::sort(ids);
  const auto rest = std::ranges::unique(ids);
  ids.erase(rest.begin(), rest.end());
  return ids;
}

BeamGroup::BeamGroup(const Request& request, std::span<const TokenId> eos_ids, std::shared_ptr<const TokenTable> table,
                     std::int64_t max_total_tokens, SequenceId first)
    : search_(beam_config(request, eos_ids, max_total_tokens)),
      end_ids_(end_ids(request.params, eos_ids)),
      num_choices_(request.params.n),
      max_total_tokens_(max_total_tokens),
      priority_(request.priority),
      cache_salt_(request.cache_salt),
      beams_(1) {
  beams_.front().id = first;
  if (!request.params.stop.empty()) {
    beams_.front().text.emplace(0, request.params, eos_ids, std::move(table));
  }
}

BeamRow* BeamGroup::row_to_fill(std::size_t index) {
  Beam& beam = beams_[index];
  return beam.has_row ? nullptr : &beam.row;
}

bool BeamGroup::all_rows_filled() const {
  return !beams_.empty() && std::ranges::all_of(beams_, &Beam::has_row);
}

bool BeamGroup::ends(std::size_t parent, TokenId token) const {
  if (std::ranges::binary_search(end_ids_, token)) return true;
  const std::optional<SequenceOutput>& text = beams_[parent].text;
  return text && SequenceOutput(*text).append(token, std::nullopt, false).finish.has_value();
}

void BeamGroup::advance(sched::Scheduler& scheduler, const std::function<SequenceId()>& new_id, double now) {
  std::vector<BeamRow> rows;
  rows.reserve(beams_.size());
  for (Beam& beam : beams_) rows.push_back(std::move(beam.row));
  const std::vector<BeamSearch::Next> next =
      search_.advance(rows, [&](std::size_t parent, TokenId token) { return ends(parent, token); });
  if (search_.done()) {
    remove_sequences(scheduler);
  } else {
    start_next(next, scheduler, new_id, now);
  }
}

void BeamGroup::start_next(std::span<const BeamSearch::Next> next, sched::Scheduler& scheduler,
                           const std::function<SequenceId()>& new_id, double now) {
  std::vector<std::size_t> num_children(beams_.size(), 0);
  for (const BeamSearch::Next& each : next) ++num_children[each.parent];
  for (std::size_t i = 0; i < beams_.size(); ++i) {
    if (num_children[i] == 0) scheduler.remove(beams_[i].id);  // first, so that the forks find room
  }
  std::vector<Beam> beams;
  beams.reserve(next.size());
  for (const BeamSearch::Next& each : next) {
    Beam beam;
    const Beam& parent = beams_[each.parent];
    if (parent.text) {
      beam.text = parent.text;
      beam.text->append(each.token, std::nullopt, false);
    }
    // The last child goes on in its parent's sequence, because a fork needs the parent as it is.
    if (--num_children[each.parent] == 0) {
      beam.id = parent.id;
    } else {
      beam.id = new_id();
      std::vector<TokenId> tokens = scheduler.tokens(parent.id);
      tokens.push_back(each.token);
      scheduler.fork(parent.id,
                     {.id = beam.id,
                      .prompt = std::move(tokens),
                      .max_total_tokens = max_total_tokens_,
                      .priority = priority_,
                      .cache_salt = cache_salt_},
                     now);
    }
    beams.push_back(std::move(beam));
  }
  for (std::size_t i = 0; i < beams.size(); ++i) {
    if (beams[i].id == beams_[next[i].parent].id) scheduler.append(beams[i].id, next[i].token);
  }
  beams_ = std::move(beams);
}

void BeamGroup::remove_sequences(sched::Scheduler& scheduler) {
  for (const Beam& beam : beams_) scheduler.remove(beam.id);
  beams_.clear();
}

Event BeamGroup::result(std::size_t rank, SequenceOutput& output) const {
  const std::vector<BeamPath> paths = search_.finished(rank + 1);
  if (rank < paths.size()) return event_of(paths[rank], output, std::nullopt);
  Event event = output.end(FinishReason::kError);
  event.error =
      Error(ErrorCode::kInvalidArgument,
            "beam search found " + std::to_string(paths.size()) + " sequences that the processors allow, but " +
                std::to_string(num_choices_) + " were asked (n); forbid fewer tokens or ask for fewer");
  return event;
}

Event BeamGroup::given_up(std::size_t rank, SequenceOutput& output, FinishReason reason) const {
  const std::vector<BeamPath> paths = search_.so_far(rank + 1);
  return rank < paths.size() ? event_of(paths[rank], output, reason) : output.end(reason);
}

}  // namespace genai::engine
