#pragma once

#include "genai/base/ids.h"
#include "genai/base/trace.h"
#include "genai/core/adapter.h"
#include "genai/core/model_spec.h"
#include "genai/core/request.h"
#include "genai/core/token_table.h"
#include "genai/engine/kv_transfer.h"
#include "genai/engine/metrics.h"
#include "genai/engine/options.h"
#include "genai/engine/output_queue.h"
#include "genai/runner/model_runner.h"
#include "genai/runner/options.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace genai::engine {

/// A loaded model and the thread that runs it: submit a request, wait for its events. Thread-safe.
///
///     auto engine = Engine::open(spec, runner_options, engine_options, token_table);
///     const RequestId id = engine->submit(request);
///     for (;;) for (Event& event : engine->wait(id, 100ms)) { ...; if (event.last) return; }
///
/// One thread of its own runs all steps. After a fork the child process gets kAborted from every call: threads do not
/// survive a fork, and neither does ONNX Runtime. A hook runs on the engine's own thread: there wait() and close()
/// throw kInvalidArgument, and the last reference may be dropped, upon which the thread frees everything when it is
/// done.
class Engine {
 public:
  /// Loads the model. Throws kBadPackage, kUnsupported, kBackend, kNotFound as ort and runner say.
  static std::unique_ptr<Engine> open(const ModelSpec& spec, const runner::RunnerOptions& runner_options,
                                      EngineOptions options, std::shared_ptr<const TokenTable> tokens);

  /// Takes any runner; for tests and for decoders of other floors.
  Engine(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens, EngineOptions options);
  ~Engine();  ///< close(), then frees the model.
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Loads an adapter that requests of this engine may carry. It is freed with the last reference to it: that of the
  /// caller, or of a request. Throws kBadPackage, kUnsupported, kBackend, kAborted (closed).
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const;

  /// Accepts the request or throws: kInvalidArgument, kContextOverflow, kQueueFull, kAborted (closed).
  /// Does not wait for the model. `delivery`: who takes the events.
  RequestId submit(Request request, Delivery delivery = Delivery::kOwn);

  /// Accepts all of the requests, so that they start in the same step if there is room, or none.
  std::vector<RequestId> submit_all(std::vector<Request> requests, Delivery delivery = Delivery::kOwn);

  /// Takes the request's events, waiting up to `timeout`; empty = timed out. kNotFound after the last. See OutputQueue.
  std::vector<Event> wait(RequestId id, std::chrono::milliseconds timeout, WaitFor wait_for = WaitFor::kPiece);

  /// Takes the events of all requests with shared delivery. See OutputQueue.
  std::vector<OutputQueue::Ready> wait_any(std::chrono::milliseconds timeout);

  /// Ends the request within one step; its last event (kAbort) still comes. Unknown ids are ignored.
  void abort(RequestId id);

  /// Aborts the request and forgets its events; for readers that went away.
  void drop(RequestId id);

  // The next four are done by the engine thread between two steps; the caller waits. They throw kAborted when the
  // engine closes meanwhile, kQueueFull when too many such calls wait, kInvalidArgument on the engine's own thread.

  /// Takes the KV of a request away, as if memory were short; it is found again or computed again. False if the request
  /// does not run.
  bool preempt(RequestId id);
  /// The KV of the longest cached prefix of `tokens`; see kv_transfer.h.
  KvBytes export_kv(std::vector<TokenId> tokens, std::string salt);
  /// Puts KV back; returns the tokens that are cached now. `bytes` is a loan until the call returns.
  std::int64_t import_kv(std::vector<TokenId> tokens, std::string salt, std::span<const std::byte> bytes);
  /// Drops the KV that no request holds.
  void clear_prefix_cache();

  /// Starts recording anew; see Tracer::start(). Done by the engine thread, and throws, as the four above.
  void start_trace(TraceLevel level, std::size_t max_events, std::string ops_folder);
  /// Ends recording after the step that runs; what was recorded stays. At once when the engine is closed.
  void stop_trace();
  /// Ends recording without waiting, for recordings that nobody reads; from any thread.
  void drop_trace();
  /// What was recorded since the last call, with the step that runs; also after close().
  Tracer::Taken take_trace();

  /// Aborts what runs, joins the thread, frees the model. Waits at most for the current step, which is interrupted.
  /// A second call does nothing.
  void close();
  bool closed() const;

  Metrics metrics() const;
  std::string last_kv_failure() const;  ///< why KV could not be moved or copied the last time; empty = never
  std::int64_t block_bytes() const;     ///< bytes of one block as export_kv() gives it; 0 = there are no blocks
  const runner::RunnerInfo& runner_info() const;
  std::int64_t context_limit() const;         ///< 0 = unknown
  const std::string& context_source() const;  ///< where the limit comes from

 private:
  void poke(const std::string& name);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace genai::engine
