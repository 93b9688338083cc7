#include "genai/runner/lane.h"

#include <string>
#include <vector>

namespace genai::runner {
namespace {

std::vector<std::string> input_names(const LoadedModel& model) {
  std::vector<std::string> names = StepInputs::names(model.spec());
  for (std::string& past : model.past_names()) names.push_back(std::move(past));
  return names;
}

}  // namespace

Lane::Lane(const LoadedModel& model)
    : inputs_(model.spec(), model.ort_library()), frame_(model.session(), input_names(model), model.output_names()) {}

}  // namespace genai::runner
