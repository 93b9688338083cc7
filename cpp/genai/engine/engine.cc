#include "genai/engine/engine.h"

#include "genai/base/error.h"
#include "genai/engine/engine_core.h"
#include "genai/runner/factory.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace genai::engine {
namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

Error closed_error() {
  return {ErrorCode::kAborted, "the engine is closed; open the model again to generate"};
}

Error own_thread_error(const std::string& call) {
  return {ErrorCode::kInvalidArgument,
          call +
              " was called from a logits processor or sampler of the same model, which would wait for itself for "
              "ever; call it outside of the processor, or use a second model"};
}

}  // namespace

struct Engine::Impl {
  struct Submission {
    RequestId id;
    Request request;
    std::uint64_t seed = 0;
  };

  Impl(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens, EngineOptions options)
      : max_queue(options.max_queue),
        owner_pid(getpid()),
        core(std::make_shared<EngineCore>(std::move(runner), std::move(tokens), std::move(options),
                                          [this](RequestId id, Event event) { on_event(id, std::move(event)); })),
        info(core->runner_info()),
        context_limit(core->context_limit()),
        context_source(core->context_source()),
        last_metrics(core->metrics()) {
    thread = std::thread([this] {
      thread_id = std::this_thread::get_id();
      loop();
      thread_id = std::thread::id();
      const std::unique_ptr<Impl> last_owner = std::move(self);
    });
  }

  /// A user's processor runs on the engine thread, and may call the engine or drop the last reference to it.
  bool on_own_thread() const { return std::this_thread::get_id() == thread_id; }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
  }

  /// Events leave at the end of a step, after its metrics: who has the result finds it counted.
  void on_event(RequestId id, Event event) { step_events.emplace_back(id, std::move(event)); }

  void publish_step() {
    {
      const std::lock_guard lock(mutex);
      last_metrics = core->metrics();
      for (const auto& [id, event] : step_events) {
        if (event.last) open_requests.erase(id);
      }
    }
    for (auto& [id, event] : step_events) outputs.push(id, std::move(event));
    step_events.clear();
  }

  void loop();
  void take_inbox(std::deque<Submission>& submissions, std::deque<RequestId>& aborts);

  void check_process() const {
    if (getpid() != owner_pid) {
      throw Error(ErrorCode::kAborted, "this model was opened in process " + std::to_string(owner_pid) +
                                           " and is used in process " + std::to_string(getpid()) +
                                           " after a fork; open the model in the process that uses it "
                                           "(multiprocessing: start method 'spawn', or load inside the worker)");
    }
  }

  const std::int64_t max_queue;
  const pid_t owner_pid;
  OutputQueue outputs;
  // Used by the engine thread, and shared with callers that are in the const validate(). Null after close(); the
  // pointer is guarded by mutex.
  std::shared_ptr<EngineCore> core;
  const runner::RunnerInfo info;
  const std::int64_t context_limit;
  const std::string context_source;

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<Submission> submissions;                    // guarded by mutex
  std::deque<RequestId> aborts;                          // guarded by mutex
  std::unordered_set<RequestId> open_requests;           // guarded by mutex; accepted and without a last event
  bool stopping = false;                                 // guarded by mutex
  std::uint64_t next_request = 1;                        // guarded by mutex
  Metrics last_metrics;                                  // guarded by mutex; written after each step
  std::vector<std::pair<RequestId, Event>> step_events;  // engine thread; of the step that runs

  std::mutex close_mutex;      // one close() at a time
  std::unique_ptr<Impl> self;  // engine thread; set when the Engine was dropped on it: the thread then frees all
  std::atomic<std::thread::id> thread_id;  // none when the thread has ended: the system may use its id again
  std::thread thread;
};

void Engine::Impl::take_inbox(std::deque<Submission>& taken_submissions, std::deque<RequestId>& taken_aborts) {
  std::unique_lock lock(mutex);
  wake.wait(lock, [&] { return stopping || core->has_work() || !submissions.empty() || !aborts.empty(); });
  taken_submissions.swap(submissions);
  taken_aborts.swap(aborts);
}

void Engine::Impl::loop() {
  for (;;) {
    std::deque<Submission> new_submissions;
    std::deque<RequestId> new_aborts;
    take_inbox(new_submissions, new_aborts);
    for (Submission& submission : new_submissions) {
      const RequestId id = submission.id;
      try {
        core->add(id, std::move(submission.request), submission.seed);
      } catch (const std::exception& error) {
        Event event;
        event.finish = FinishReason::kError;
        event.error = Error(ErrorCode::kInternal, error.what());
        event.last = true;
        on_event(id, std::move(event));
      }
    }
    new_submissions.clear();  // hooks are freed without the lock
    for (const RequestId id : new_aborts) core->abort(id);
    bool stop = false;
    {
      const std::lock_guard lock(mutex);
      stop = stopping;
    }
    if (stop) {
      core->abort_all(closed_error());
    } else {
      try {
        core->step();
      } catch (const std::exception& error) {
        core->abort_all(Error(ErrorCode::kInternal, error.what()));
      }
    }
    publish_step();
    const std::lock_guard lock(mutex);
    if (stop && submissions.empty()) return;
  }
}

std::unique_ptr<Engine> Engine::open(const ModelSpec& spec, const runner::RunnerOptions& runner_options,
                                     EngineOptions options, std::shared_ptr<const TokenTable> tokens) {
  if (spec.context_limit > 0 && (options.context_limit == 0 || spec.context_limit < options.context_limit)) {
    options.context_limit = spec.context_limit;
    options.context_source = spec.context_source;
  }
  return std::make_unique<Engine>(runner::make_runner(spec, runner_options), std::move(tokens), std::move(options));
}

Engine::Engine(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens,
               EngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(runner), std::move(tokens), std::move(options))) {}

Engine::~Engine() {
  if (getpid() != impl_->owner_pid) {
    // The thread does not exist in this process, and ONNX Runtime's own threads neither: freeing would hang.
    (void)impl_.release();
    return;
  }
  if (impl_->on_own_thread()) {
    // A processor held the last reference. The thread cannot wait for itself, so it frees everything when it is done.
    impl_->stop();
    impl_->thread.detach();
    Impl& impl = *impl_;
    impl.self = std::move(impl_);
    return;
  }
  close();
}

RequestId Engine::submit(Request request) {
  impl_->check_process();
  std::shared_ptr<const EngineCore> core;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping || !impl_->core) throw closed_error();
    core = impl_->core;
  }
  core->validate(request);
  RequestId id;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping) throw closed_error();
    if (static_cast<std::int64_t>(impl_->open_requests.size()) >= impl_->max_queue) {
      throw Error(ErrorCode::kResourceExhausted, "the queue is full: " + std::to_string(impl_->max_queue) +
                                                     " requests are open (max_queue); try again later");
    }
    id = RequestId{impl_->next_request++};
    impl_->outputs.open(id);
    impl_->open_requests.insert(id);
    impl_->submissions.push_back({.id = id, .request = std::move(request), .seed = random_seed()});
  }
  impl_->wake.notify_one();
  return id;
}

std::vector<Event> Engine::wait(RequestId id, std::chrono::milliseconds timeout, WaitFor wait_for) {
  impl_->check_process();
  if (impl_->on_own_thread()) throw own_thread_error("waiting for a result");
  return impl_->outputs.wait(id, timeout, wait_for);
}

void Engine::abort(RequestId id) {
  impl_->check_process();
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->open_requests.contains(id)) return;
    impl_->aborts.push_back(id);
  }
  impl_->wake.notify_one();
}

void Engine::drop(RequestId id) {
  if (getpid() != impl_->owner_pid) return;
  impl_->outputs.close(id);
  abort(id);
}

void Engine::close() {
  impl_->check_process();
  if (impl_->on_own_thread()) throw own_thread_error("close()");
  impl_->stop();
  const std::lock_guard one_close(impl_->close_mutex);
  if (!impl_->thread.joinable()) return;
  impl_->core->interrupt_runner();
  impl_->thread.join();
  std::shared_ptr<EngineCore> core;  // freed without the lock
  const std::lock_guard lock(impl_->mutex);
  core = std::exchange(impl_->core, nullptr);
}

bool Engine::closed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stopping;
}

Metrics Engine::metrics() const {
  impl_->check_process();
  const std::lock_guard lock(impl_->mutex);
  return impl_->last_metrics;
}

const runner::RunnerInfo& Engine::runner_info() const {
  return impl_->info;
}
std::int64_t Engine::context_limit() const {
  return impl_->context_limit;
}
const std::string& Engine::context_source() const {
  return impl_->context_source;
}

}  // namespace genai::engine
