#include "genai/embed/encoder.h"

#include "genai/base/cpu.h"
#include "genai/base/error.h"
#include "genai/embed/pooling.h"
#include "genai/kernels/convert.h"
#include "genai/ort/session.h"
#include "genai/runner/integer_tensor.h"
#include "genai/runner/session_options.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

namespace genai::embed {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(50);

[[noreturn]] void throw_closed() {
  throw Error(ErrorCode::kAborted, "the encoder is closed; open the model again to use it");
}

std::string output_text(const EncoderSpec& spec, const Dims& dims) {
  return spec.model_path + ": output \"" + spec.output + "\" has dims " + dims.text();
}

}  // namespace

/// Hands out turns in the order in which they were asked for. Thread-safe.
class Encoder::Turns {
 public:
  /// One turn; given back by the destructor.
  class Turn {
   public:
    Turn(Turns& owner, const std::function<void()>& while_waiting) : owner_(owner) { owner_.take(while_waiting); }
    ~Turn() { owner_.give_back(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& owner_;
  };

  /// Nobody gets a turn any more. Returns true to the first caller, when the turn that was running has ended.
  bool close() {
    std::unique_lock lock(mutex_);
    const bool is_first = !std::exchange(closed_, true);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !taken_; });
    return is_first;
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  EncoderMetrics metrics() const {
    const std::lock_guard lock(mutex_);
    return metrics_;
  }
  void count(const EncoderMetrics& more) {
    const std::lock_guard lock(mutex_);
    metrics_.num_texts += more.num_texts;
    metrics_.num_tokens += more.num_tokens;
    metrics_.num_padding += more.num_padding;
    metrics_.num_runs += more.num_runs;
    metrics_.run_seconds += more.run_seconds;
  }

 private:
  void take(const std::function<void()>& while_waiting) {
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = next_++;
    waiting_.push_back(ticket);
    const auto is_my_turn = [&] { return closed_ || (!taken_ && waiting_.front() == ticket); };
    try {
      while (!changed_.wait_for(lock, kLookEvery, is_my_turn)) {
        lock.unlock();
        while_waiting();
        lock.lock();
      }
      if (closed_) throw_closed();
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), ticket));
      changed_.notify_all();
      throw;
    }
    waiting_.pop_front();
    taken_ = true;
  }
  void give_back() {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> waiting_;
  std::uint64_t next_ = 0;
  bool taken_ = false;
  bool closed_ = false;
  EncoderMetrics metrics_;
};

/// The model in ONNX Runtime with the inputs of its runs. One thread at a time.
class Encoder::Loaded {
 public:
  Loaded(const EncoderSpec& spec, const runner::RunnerOptions& options, int intra_op_threads)
      : spec_(spec),
        ort_library_(ort::Library::load(options.ort_library)),
        session_(ort_library_, spec.model_path, runner::session_options(options, intra_op_threads)),
        run_options_(ort_library_),
        frame_(session_, input_names(), {spec.output}) {
    for (const InputPort& port : ports()) tensors_.emplace_back(port.dtype);
  }

  /// Runs the texts of a batch and writes their vectors, [num_texts, out_width], to `out`.
  void run(std::span<const Text> texts, const Batch& batch, std::size_t out_width, std::span<float> out) {
    fill(texts, batch);
    frame_.run(run_options_);
    const ort::Value output = frame_.take_output(0);
    const std::span<const float> values = as_floats(output, batch);
    const auto width = static_cast<std::size_t>(spec_.width);
    for (std::size_t row = 0; row < batch.texts.size(); ++row) {
      const Text& text = texts[batch.texts[row]];
      const std::span<float> vector = out.subspan(batch.texts[row] * out_width, out_width);
      if (spec_.is_pooled) {
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * width), width, vector.begin());
        continue;
      }
      const auto tokens = values.subspan(row * batch.longest * width, text.ids.size() * width);
      for (std::size_t i = 0; i < spec_.pooling.size(); ++i) {
        pool(spec_.pooling[i], tokens, text.num_skipped, vector.subspan(i * width, width));
      }
    }
  }

 private:
  /// Ids first, then those of the others that the graph has; the order of tensors_.
  std::vector<InputPort> ports() const {
    std::vector<InputPort> found = {spec_.input_ids};
    for (const auto& port : {spec_.attention_mask, spec_.token_types, spec_.position_ids}) {
      if (port) found.push_back(*port);
    }
    return found;
  }
  std::vector<std::string> input_names() const {
    std::vector<std::string> names;
    for (const InputPort& port : ports()) names.push_back(port.name);
    for (const KvPair& pair : spec_.pasts) names.push_back(pair.past);
    return names;
  }

  void fill(std::span<const Text> texts, const Batch& batch) {
    const Dims dims = {static_cast<std::int64_t>(batch.texts.size()), static_cast<std::int64_t>(batch.longest)};
    std::size_t place = 0;
    const auto fill_next = [&](auto element) {
      runner::IntegerTensor& tensor = tensors_[place];
      const bool is_new = tensor.reshape(dims);
      for (std::size_t row = 0; row < batch.texts.size(); ++row) {
        const Text& text = texts[batch.texts[row]];
        for (std::size_t t = 0; t < batch.longest; ++t) tensor.set(row * batch.longest + t, element(text, t));
      }
      if (is_new) frame_.set_input(place, tensor.value(ort_library_));
      ++place;
    };
    fill_next([&](const Text& text, std::size_t t) {
      return t < text.ids.size() ? static_cast<std::int64_t>(text.ids[t]) : spec_.pad_id;
    });
    if (spec_.attention_mask) {
      fill_next([](const Text& text, std::size_t t) { return std::int64_t{t < text.ids.size() ? 1 : 0}; });
    }
    if (spec_.token_types) {
      fill_next([](const Text& text, std::size_t t) {
        return t < text.types.size() ? std::int64_t{text.types[t]} : std::int64_t{0};
      });
    }
    if (spec_.position_ids) fill_next([](const Text&, std::size_t t) { return static_cast<std::int64_t>(t); });
    for (const KvPair& pair : spec_.pasts) {
      Dims empty(std::span<const std::int64_t>(pair.dims));
      empty[static_cast<std::size_t>(pair.batch_axis)] = dims[0];
      empty[static_cast<std::size_t>(pair.sequence_axis)] = 0;
      frame_.set_input(place++, ort::Value::allocate(ort_library_, pair.dtype, empty));
    }
  }

  /// The output's elements, after a look at its dims. A loan of `output` or of converted_.
  std::span<const float> as_floats(const ort::Value& output, const Batch& batch) {
    const Dims dims = output.dims();
    const auto rows = static_cast<std::int64_t>(batch.texts.size());
    const Dims expected =
        spec_.is_pooled ? Dims{rows, spec_.width} : Dims{rows, static_cast<std::int64_t>(batch.longest), spec_.width};
    if (dims != expected) {
      throw Error(ErrorCode::kBadPackage,
                  output_text(spec_, dims) + " for texts of that number and length; expected " + expected.text() + ".");
    }
    const auto count = static_cast<std::size_t>(dims.num_elements());
    if (spec_.output_dtype == DType::kFloat32) return {output.data_as<float>(), count};
    converted_.resize(count);
    if (spec_.output_dtype == DType::kFloat16) {
      kernels::convert_float16(output.data_as<std::uint16_t>(), converted_.data(), count);
    } else {
      kernels::convert_bfloat16(output.data_as<std::uint16_t>(), converted_.data(), count);
    }
    return converted_;
  }

  const EncoderSpec& spec_;  ///< of the Encoder
  const ort::Library& ort_library_;
  ort::Session session_;
  ort::RunOptions run_options_;
  ort::RunFrame frame_;
  std::vector<runner::IntegerTensor> tensors_;  ///< of ports(); each grows to the largest run
  std::vector<float> converted_;                ///< output of the run as float32, if it is of another type
};

Encoder::Encoder(const EncoderSpec& spec, const runner::RunnerOptions& options, std::int64_t max_batch_tokens)
    : spec_(spec),
      limits_{.max_tokens = max_batch_tokens, .max_rows = spec.max_batch, .equal_lengths = !spec.attention_mask},
      intra_op_threads_(options.intra_op_threads > 0 ? options.intra_op_threads : usable_physical_cores()),
      process_(static_cast<int>(getpid())),
      turns_(std::make_unique<Turns>()) {
  if (max_batch_tokens < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "max_batch_tokens is " + std::to_string(max_batch_tokens) + "; allowed: a whole number >= 1");
  }
  check(spec_.width > 0 && (spec_.is_pooled || !spec_.pooling.empty()), "an encoder has no width or no pooling");
  loaded_ = std::make_unique<Loaded>(spec_, options, intra_op_threads_);
}

Encoder::~Encoder() {
  // ONNX Runtime's threads are not in the child of a fork, and freeing the session would wait for them.
  if (process_ != static_cast<int>(getpid())) {
    static_cast<void>(loaded_.release());
    static_cast<void>(turns_.release());
  }
}

Vectors Encoder::encode(std::span<const Text> texts, const std::function<void()>& before_run) {
  check_usable();
  check_texts(texts);
  std::vector<std::size_t> lengths;
  lengths.reserve(texts.size());
  for (const Text& text : texts) lengths.push_back(text.ids.size());
  Vectors vectors;
  vectors.width = width();
  const auto row_size = static_cast<std::size_t>(vectors.width);
  vectors.values.resize(texts.size() * row_size);
  for (const Batch& batch : plan_batches(lengths, limits_)) {
    before_run();
    const Turns::Turn turn(*turns_, before_run);
    const auto start = std::chrono::steady_clock::now();
    loaded_->run(texts, batch, row_size, vectors.values);
    EncoderMetrics counted;
    counted.run_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    counted.num_runs = 1;
    counted.num_texts = static_cast<std::int64_t>(batch.texts.size());
    for (const std::size_t text : batch.texts) counted.num_tokens += static_cast<std::int64_t>(lengths[text]);
    counted.num_padding = static_cast<std::int64_t>(batch.texts.size() * batch.longest) - counted.num_tokens;
    turns_->count(counted);
    for (const std::size_t text : batch.texts) {
      const std::span<const float> vector(vectors.values.data() + text * row_size, row_size);
      if (std::all_of(vector.begin(), vector.end(), [](float value) { return std::isfinite(value); })) continue;
      throw Error(ErrorCode::kBackend, spec_.model_path + ": the vector of text " + std::to_string(text) +
                                           " is not finite; try the model in float32, or another text");
    }
  }
  return vectors;
}

void Encoder::close() {
  if (process_ != static_cast<int>(getpid())) return;
  if (turns_->close()) loaded_.reset();
}

bool Encoder::closed() const {
  return process_ != static_cast<int>(getpid()) || turns_->closed();
}

EncoderMetrics Encoder::metrics() const {
  check_usable();
  return turns_->metrics();
}

std::int64_t Encoder::width() const {
  return spec_.width * (spec_.is_pooled ? 1 : static_cast<std::int64_t>(spec_.pooling.size()));
}

int Encoder::intra_op_threads() const {
  return intra_op_threads_;
}

void Encoder::check_usable() const {
  if (process_ == static_cast<int>(getpid())) return;
  throw Error(ErrorCode::kAborted,
              "the encoder was loaded before this process was forked and cannot be used here; open the model again");
}

void Encoder::check_texts(std::span<const Text> texts) const {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    const std::string where = "text " + std::to_string(i);
    if (text.ids.empty()) throw Error(ErrorCode::kInvalidArgument, where + " has no token; allowed: at least one");
    check(text.types.empty() || text.types.size() == text.ids.size(), "token types are not one for each token");
    for (const TokenId id : text.ids) {
      if (id >= 0 && (spec_.vocab_size <= 0 || id < spec_.vocab_size)) continue;
      const std::string allowed = spec_.vocab_size > 0 ? "0.." + std::to_string(spec_.vocab_size - 1) : "0 or more";
      throw Error(ErrorCode::kInvalidArgument, where + " has the token id " + std::to_string(id) +
                                                   "; allowed: " + allowed + " (the model's vocabulary)");
    }
  }
}

}  // namespace genai::embed
