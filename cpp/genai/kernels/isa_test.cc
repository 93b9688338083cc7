#include "genai/kernels/isa.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

namespace genai::kernels {
namespace {

constexpr const char* kName = "ONNX_GENAI_CPU_ISA";

/// Sets ONNX_GENAI_CPU_ISA for a test, or takes it away; then it is again what the caller of the tests gave.
class IsaVariable {
 public:
  explicit IsaVariable(const std::optional<std::string>& value) {
    if (const char* const before = std::getenv(kName)) before_ = before;
    set(value);
  }
  ~IsaVariable() { set(before_); }
  IsaVariable(const IsaVariable&) = delete;
  IsaVariable& operator=(const IsaVariable&) = delete;

 private:
  static void set(const std::optional<std::string>& value) {
    if (value) {
      setenv(kName, value->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

  std::optional<std::string> before_;
};

TEST_CASE("SupportedIsas_AnyCpu_BeginWithPlainAndRise") {
  const std::vector<Isa> isas = supported_isas();

  CHECK(isas.front() == Isa::kPlain);
  CHECK(std::is_sorted(isas.begin(), isas.end()));
}

TEST_CASE("SupportedIsas_ProductsOfBfloat16_ComeWithThoseOfInt8") {
  const std::vector<Isa> isas = supported_isas();
  const auto has = [&](Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); };

  CHECK((has(Isa::kAvx512Vnni) || !has(Isa::kAvx512Bf16)));
  CHECK((has(Isa::kAvx512Bf16) || !has(Isa::kAmx)));
}

TEST_CASE("ChosenIsa_NoVariable_IsTheFastest") {
  const IsaVariable none(std::nullopt);
  CHECK(chosen_isa() == supported_isas().back());
  const IsaVariable empty("");
  CHECK(chosen_isa() == supported_isas().back());
}

TEST_CASE("ChosenIsa_EachSupportedName_IsThatOne") {
  for (const Isa isa : supported_isas()) {
    const IsaVariable variable{std::string(isa_name(isa))};
    CHECK(chosen_isa() == isa);
  }
}

TEST_CASE("ChosenIsa_UnknownName_ThrowsAndListsTheKnown") {
  const IsaVariable variable("sse9");

  std::string message;
  try {
    chosen_isa();
  } catch (const Error& error) {
    message = error.what();
  }

  CHECK(message.find("ONNX_GENAI_CPU_ISA is \"sse9\"") == 0);
  CHECK(message.find("plain") != std::string::npos);
}

}  // namespace
}  // namespace genai::kernels
