#include "genai/engine/engine.h"

#include "genai/base/error.h"
#include "genai/engine/engine_core.h"
#include "genai/runner/factory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
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

constexpr std::size_t kMaxCalls = 64;              // that wait for the engine thread
constexpr std::chrono::milliseconds kIdleWait{2};  // before a step that found nothing to run is tried again

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
    double submitted = 0.0;
  };
  /// What other threads left for the engine thread.
  struct Inbox {
    std::deque<Submission> submissions;
    std::deque<RequestId> aborts;
    std::deque<std::packaged_task<void(EngineCore*)>> calls;  ///< get null when the engine closes
    bool empty() const { return submissions.empty() && aborts.empty() && calls.empty(); }
  };

  Impl(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens, EngineOptions options)
      : max_queue(options.max_queue),
        owner_pid(getpid()),
        core(std::make_shared<EngineCore>(std::move(runner), std::move(tokens), std::move(options),
                                          [this](RequestId id, Event event) { on_event(id, std::move(event)); })),
        info(core->runner_info()),
        context_limit(core->context_limit()),
        context_source(core->context_source()),
        block_bytes(core->block_bytes()),
        helper_id(core->helper_id()),
        tracer(core->tracer()),
        trace(tracer->thread(TraceThread::kEngine)),
        last_metrics(core->metrics()) {
    thread = std::thread([this] {
      thread_id = std::this_thread::get_id();
      loop();
      thread_id = std::thread::id();
      const std::unique_ptr<Impl> last_owner = std::move(self);
    });
  }

  /// A user's processor runs on the engine thread, and may call the engine or drop the last reference to it. So may
  /// Python's garbage collector, on any thread that runs Python: a grammar's tokenizer, or the grammar itself.
  bool on_own_thread() const {
    const std::thread::id here = std::this_thread::get_id();
    return here == thread_id || here == *helper_id;
  }

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
    const TraceSpan span(trace, TraceName::kPublish);
    const double start = seconds_now();
    const Metrics metrics = core->metrics();
    core->trace_counters(metrics);
    {
      const std::lock_guard lock(mutex);
      last_metrics = metrics;
      last_metrics.publish_seconds = publish_seconds;
      last_kv_failure = core->last_kv_failure();
      for (const auto& [id, event] : step_events) {
        if (event.last) open_requests.erase(id);
      }
    }
    for (auto& [id, event] : step_events) outputs.push(id, std::move(event));
    step_events.clear();
    publish_seconds += seconds_now() - start;
  }

  void loop();
  Inbox take_inbox(bool can_run);
  bool handle(Inbox& news);
  void add(Submission submission);
  template <typename Result>
  struct Outcome {
    std::optional<Result> value;
    ErrorCode code = ErrorCode::kInternal;  ///< without a value
    std::string message;
  };
  /// Runs `work` on the engine thread and returns what it returns.
  template <typename Result>
  Result call(const std::string& name, std::function<Result(EngineCore&)> work);

  void check_process() const {
    if (getpid() != owner_pid) {
      throw Error(ErrorCode::kAborted, "this model was opened in process " + std::to_string(owner_pid) +
                                           " and is used in process " + std::to_string(getpid()) +
                                           " after a fork; open the model in the process that uses it "
                                           "(multiprocessing: start method 'spawn', or load inside the worker)");
    }
  }

  /// For calls of its const methods that any thread may make.
  std::shared_ptr<const EngineCore> open_core() const {
    const std::lock_guard lock(mutex);
    if (stopping || !core) throw closed_error();
    return core;
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
  const std::int64_t block_bytes;
  const std::shared_ptr<const std::atomic<std::thread::id>> helper_id;
  const std::shared_ptr<Tracer> tracer;  // outlives the core: what was recorded can be taken after close()
  TraceBuffer& trace;                    // of tracer; engine thread

  mutable std::mutex mutex;
  std::condition_variable wake;
  Inbox inbox;                                           // guarded by mutex
  std::unordered_set<RequestId> open_requests;           // guarded by mutex; accepted and without a last event
  bool stopping = false;                                 // guarded by mutex
  std::uint64_t next_request = 1;                        // guarded by mutex
  Metrics last_metrics;                                  // guarded by mutex; written after each step
  std::string last_kv_failure;                           // guarded by mutex; written after each step
  double publish_seconds = 0.0;                          // engine thread
  std::vector<std::pair<RequestId, Event>> step_events;  // engine thread; of the step that runs

  std::mutex close_mutex;      // one close() at a time
  std::unique_ptr<Impl> self;  // engine thread; set when the Engine was dropped on it: the thread then frees all
  std::atomic<std::thread::id> thread_id;  // none when the thread has ended: the system may use its id again
  std::thread thread;
};

/// Waits while there is nothing to do; a while when there is work of which nothing can run now.
Engine::Impl::Inbox Engine::Impl::take_inbox(bool can_run) {
  std::unique_lock lock(mutex);
  const auto has_news = [&] { return stopping || !inbox.empty(); };
  if (!core->has_work()) {
    const TraceSpan span(trace, TraceName::kWait);
    wake.wait(lock, has_news);
  } else if (!can_run) {
    const TraceSpan span(trace, TraceName::kWait);
    wake.wait_for(lock, kIdleWait, has_news);
  }
  return std::exchange(inbox, {});
}

void Engine::Impl::add(Submission submission) {
  const RequestId id = submission.id;
  try {
    core->add(id, std::move(submission.request), submission.seed, seconds_now(), submission.submitted);
  } catch (const std::exception& error) {
    Event event;
    event.finish = FinishReason::kError;
    event.error = Error(ErrorCode::kInternal, error.what());
    event.last = true;
    on_event(id, std::move(event));
  }
}

void Engine::Impl::loop() {
  for (bool can_run = true;;) {
    Inbox news = take_inbox(can_run);
    const bool stop = handle(news);
    if (stop) {
      core->abort_all(closed_error());
    } else {
      try {
        can_run = core->step(seconds_now());
      } catch (const std::exception& error) {
        core->abort_all(Error(ErrorCode::kInternal, error.what()));
      }
    }
    publish_step();
    const std::lock_guard lock(mutex);
    if (stop && inbox.empty()) break;
  }
  outputs.shut();
}

/// True when the engine is to stop.
bool Engine::Impl::handle(Inbox& news) {
  const TraceSpan span(trace, TraceName::kInbox);
  for (Submission& submission : news.submissions) add(std::move(submission));
  news.submissions.clear();  // hooks are freed without the lock
  for (const RequestId id : news.aborts) core->abort(id);
  bool stop = false;
  {
    const std::lock_guard lock(mutex);
    stop = stopping;
  }
  for (auto& call : news.calls) call(stop ? nullptr : core.get());
  return stop;
}

template <typename Result>
Result Engine::Impl::call(const std::string& name, std::function<Result(EngineCore&)> work) {
  check_process();
  if (on_own_thread()) throw own_thread_error(name);
  // Errors travel as values: an exception object that two threads share would be freed by the one that is later.
  std::packaged_task<Outcome<Result>(EngineCore*)> task([&](EngineCore* engine) -> Outcome<Result> {
    try {
      if (engine == nullptr) throw closed_error();
      return {.value = work(*engine), .code = {}, .message = {}};
    } catch (const Error& error) {
      return {.value = std::nullopt, .code = error.code(), .message = error.what()};
    } catch (const std::exception& error) {
      return {.value = std::nullopt, .code = ErrorCode::kInternal, .message = error.what()};
    }
  });
  std::future<Outcome<Result>> future = task.get_future();
  {
    const std::lock_guard lock(mutex);
    if (stopping) throw closed_error();
    if (inbox.calls.size() >= kMaxCalls) {
      throw Error(ErrorCode::kQueueFull, name + " cannot wait: " + std::to_string(kMaxCalls) +
                                             " such calls wait for the engine already; try again later");
    }
    inbox.calls.emplace_back([task = std::move(task)](EngineCore* engine) mutable { task(engine); });
  }
  wake.notify_one();
  Outcome<Result> outcome = future.get();
  if (!outcome.value) throw Error(outcome.code, outcome.message);
  return std::move(*outcome.value);
}

std::unique_ptr<Engine> Engine::open(const ModelSpec& spec, const runner::RunnerOptions& runner_options,
                                     EngineOptions options, std::shared_ptr<const TokenTable> tokens) {
  options.tracer = std::make_shared<Tracer>();
  runner::RunnerOptions traced = runner_options;
  traced.tracer = options.tracer;
  if (spec.context_limit > 0 && (options.context_limit == 0 || spec.context_limit < options.context_limit)) {
    options.context_limit = spec.context_limit;
    options.context_source = spec.context_source;
  }
  return std::make_unique<Engine>(runner::make_runner(spec, traced), std::move(tokens), std::move(options));
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
    // The last reference was dropped amid a step. The thread cannot wait for itself, so it frees everything when it is
    // done; nor can it for a thread that it waits for.
    impl_->stop();
    impl_->thread.detach();
    Impl& impl = *impl_;
    impl.self = std::move(impl_);
    return;
  }
  close();
}

std::shared_ptr<const Adapter> Engine::load_adapter(const AdapterFile& file) const {
  impl_->check_process();
  return impl_->open_core()->load_adapter(file);
}

RequestId Engine::submit(Request request, Delivery delivery) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return submit_all(std::move(requests), delivery).front();
}

std::vector<RequestId> Engine::submit_all(std::vector<Request> requests, Delivery delivery) {
  impl_->check_process();
  const std::shared_ptr<const EngineCore> core = impl_->open_core();
  for (const Request& request : requests) core->validate(request);
  std::vector<RequestId> ids;
  ids.reserve(requests.size());
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping) throw closed_error();
    const std::int64_t num_open = std::ssize(impl_->open_requests);
    if (num_open + std::ssize(requests) > impl_->max_queue) {
      throw Error(ErrorCode::kQueueFull, "the queue is full: " + std::to_string(num_open) + " open and " +
                                             std::to_string(requests.size()) + " new requests, but max_queue is " +
                                             std::to_string(impl_->max_queue) + "; try again later");
    }
    for (Request& request : requests) {
      const RequestId id{impl_->next_request++};
      impl_->outputs.open(id, delivery);
      impl_->open_requests.insert(id);
      impl_->inbox.submissions.push_back(
          {.id = id, .request = std::move(request), .seed = random_seed(), .submitted = seconds_now()});
      ids.push_back(id);
    }
  }
  impl_->wake.notify_one();
  return ids;
}

std::vector<Event> Engine::wait(RequestId id, std::chrono::milliseconds timeout, WaitFor wait_for) {
  impl_->check_process();
  if (impl_->on_own_thread()) throw own_thread_error("waiting for a result");
  return impl_->outputs.wait(id, timeout, wait_for);
}

std::vector<OutputQueue::Ready> Engine::wait_any(std::chrono::milliseconds timeout) {
  impl_->check_process();
  if (impl_->on_own_thread()) throw own_thread_error("waiting for a result");
  return impl_->outputs.wait_any(timeout);
}

void Engine::abort(RequestId id) {
  impl_->check_process();
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->open_requests.contains(id)) return;
    impl_->inbox.aborts.push_back(id);
  }
  impl_->wake.notify_one();
}

void Engine::drop(RequestId id) {
  if (getpid() != impl_->owner_pid) return;
  impl_->outputs.close(id);
  abort(id);
}

bool Engine::preempt(RequestId id) {
  return impl_->call<bool>("preempt()", [&](EngineCore& core) { return core.preempt(id); });
}

KvBytes Engine::export_kv(std::vector<TokenId> tokens, std::string salt) {
  return impl_->call<KvBytes>("export_kv()", [&](EngineCore& core) { return core.export_kv(tokens, salt); });
}

std::int64_t Engine::import_kv(std::vector<TokenId> tokens, std::string salt, std::span<const std::byte> bytes) {
  return impl_->call<std::int64_t>("import_kv()",
                                   [&](EngineCore& core) { return core.import_kv(tokens, salt, bytes); });
}

void Engine::clear_prefix_cache() {
  impl_->call<bool>("clear_prefix_cache()", [](EngineCore& core) {
    core.clear_prefix_cache();
    return true;
  });
}

void Engine::start_trace(TraceLevel level, std::size_t max_events, std::string ops_folder) {
  impl_->call<bool>("start_trace()", [&](EngineCore& core) {
    core.start_trace(level, max_events, ops_folder);
    return true;
  });
}

void Engine::stop_trace() {
  impl_->check_process();
  poke("stop_trace()");
  impl_->tracer->stop();
}

void Engine::drop_trace() {
  if (getpid() == impl_->owner_pid) impl_->tracer->stop();
}

Tracer::Taken Engine::take_trace() {
  impl_->check_process();
  // What the thread waits or works for now is recorded when it ends.
  if (impl_->tracer->level() != TraceLevel::kOff) poke("take_trace()");
  return impl_->tracer->take();
}

/// Lets the engine thread begin another round; nothing when the engine is closed.
void Engine::poke(const std::string& name) {
  if (closed()) return;
  try {
    impl_->call<bool>(name, [](EngineCore&) { return true; });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAborted) throw;
  }
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
  impl_->check_process();  // after a fork nobody would unlock the mutex
  const std::lock_guard lock(impl_->mutex);
  return impl_->stopping;
}

Metrics Engine::metrics() const {
  impl_->check_process();
  const std::lock_guard lock(impl_->mutex);
  return impl_->last_metrics;
}

std::string Engine::last_kv_failure() const {
  impl_->check_process();
  const std::lock_guard lock(impl_->mutex);
  return impl_->last_kv_failure;
}

std::int64_t Engine::block_bytes() const {
  return impl_->block_bytes;
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
