#include "genai/runner/factory.h"

#include "genai/runner/copy_runner.h"
#include "genai/runner/cross_runner.h"
#include "genai/runner/loaded_model.h"
#include "genai/runner/paged_runner.h"
#include "genai/runner/slot_runner.h"
#include "genai/runner/source_encoder.h"

namespace genai::runner {

std::unique_ptr<ModelRunner> make_runner(const ModelSpec& spec, const RunnerOptions& options) {
  auto model = std::make_unique<LoadedModel>(spec, options);
  switch (spec.cache) {
    case CacheStyle::kSlotGqa:
    case CacheStyle::kSlotStatic:
      return std::make_unique<SlotRunner>(std::move(model));
    case CacheStyle::kCopy:
    case CacheStyle::kNone:
      return std::make_unique<CopyRunner>(std::move(model));
    case CacheStyle::kCross: {
      auto encoder = std::make_unique<SourceEncoder>(spec, options, model->info().intra_op_threads);
      return std::make_unique<CrossRunner>(std::move(model), std::move(encoder));
    }
    case CacheStyle::kPaged:
      return std::make_unique<PagedRunner>(std::move(model), options.kv);
  }
  return nullptr;
}

}  // namespace genai::runner
