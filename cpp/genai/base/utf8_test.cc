#include "genai/base/utf8.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace genai {
namespace {

using namespace std::string_literals;

// The Unicode Standard, tables 3-8 to 3-11.
TEST_CASE("DecodeLossy_ExamplesOfTheUnicodeStandard_ReplacesMaximalSubparts") {
  const std::string r(kReplacementCharacter);

  CHECK(decode_utf8_lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == r + r + r + r + r + r + r + r + "A");
  CHECK(decode_utf8_lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") == r + r + r + r + r + r + r + r + "A");
  CHECK(decode_utf8_lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") == r + r + r + r + r + "A" + r + r + "B");
  CHECK(decode_utf8_lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == r + r + r + r + "A");
}

TEST_CASE("DecodeLossy_ValidText_KeepsItsBytes") {
  const std::string text = "a\0\x7F\u0080\u07FF\u0800\uD7FF\uE000\uFFFF\U00010000\U0010FFFF"s;

  CHECK(decode_utf8_lossy(text) == text);
  CHECK(is_valid_utf8(text));
}

TEST_CASE("IsValid_BrokenBytes_IsFalse") {
  for (const char* bytes : {"\xC3\x28", "\xED\xA0\x80", "\xC0\x80", "\xE2\x82", "\x80", "\xF5\x80\x80\x80",
                            "\xF4\x90\x80\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF"}) {
    CHECK_FALSE(is_valid_utf8(bytes));
  }
}

TEST_CASE("IncompleteTail_EndOfBytes_CountsOnlyWhatCanBecomeACharacter") {
  CHECK(incomplete_utf8_tail("") == 0);
  CHECK(incomplete_utf8_tail("a") == 0);
  CHECK(incomplete_utf8_tail("\xC3") == 1);
  CHECK(incomplete_utf8_tail("a\xE2\x82") == 2);
  CHECK(incomplete_utf8_tail("\xF0\x9F\x98") == 3);
  CHECK(incomplete_utf8_tail("\xF0\x9F\x98\x80") == 0);
  CHECK(incomplete_utf8_tail("\x80\x80") == 0);
  CHECK(incomplete_utf8_tail("\xED\xA0") == 0);
  CHECK(incomplete_utf8_tail("\xE2\xC3") == 1);
}

// Every string of up to five of these bytes, cut at its incomplete tail: they meet every branch of the tables.
TEST_CASE("IncompleteTail_CutBeforeIt_LeavesLossyDecodeUnchanged") {
  constexpr char kBytes[] = {'a', '\x80', '\x90', '\xA0', '\xBF', '\xC3', '\xE0', '\xED', '\xE2', '\xF0', '\xF4'};
  constexpr std::size_t kChoices = sizeof(kBytes);
  for (std::size_t code = 0; code < kChoices * kChoices * kChoices * kChoices * kChoices; ++code) {
    std::string bytes;
    for (std::size_t rest = code, i = 0; i < 5; ++i, rest /= kChoices) bytes += kBytes[rest % kChoices];
    const std::size_t cut = static_cast<std::size_t>(code % 4) + 1;
    const std::string head = bytes.substr(0, cut);
    const std::size_t held = incomplete_utf8_tail(head);
    const std::string pieces =
        decode_utf8_lossy(head.substr(0, cut - held)) + decode_utf8_lossy(head.substr(cut - held) + bytes.substr(cut));
    if (pieces != decode_utf8_lossy(bytes)) FAIL_CHECK("cut " << cut << " of code " << code);
  }
}

}  // namespace
}  // namespace genai
