#include "genai/sampling/detokenizer.h"

#include "genai/base/error.h"
#include "genai/base/utf8.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace genai::sampling {
namespace {

using Kind = TokenTable::Kind;
using Pieces = std::vector<std::string>;

struct Decode {
  bool skips_special = false;
  std::string text;
  std::vector<TokenId> ids;
};

struct GoldenTable {
  std::string name;
  std::shared_ptr<TokenTable> table = std::make_shared<TokenTable>();
  std::vector<Decode> decodes;
};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  if (hex == "-") return bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// tests/golden/make_detokenizer.py describes the file.
std::vector<GoldenTable> read_golden(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), "cannot read " << path);
  std::vector<GoldenTable> tables;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    std::string second;
    std::string third;
    line >> word >> second >> third;
    if (word == "table") {
      GoldenTable& golden = tables.emplace_back();
      golden.name = second;
      golden.table->decoding =
          third == "byte_level" ? TokenTable::Decoding::kByteLevel : TokenTable::Decoding::kByteFallback;
      line >> golden.table->strip_first_space;
    } else if (word == "token") {
      tables.back().table->kinds.push_back(second == "byte"      ? Kind::kByte
                                           : second == "special" ? Kind::kSpecial
                                                                 : Kind::kText);
      tables.back().table->bytes.push_back(from_hex(third));
    } else if (word == "first") {
      tables.back().table->first[std::stoi(second)] = from_hex(third);
    } else {
      REQUIRE(word == "decode");
      Decode& decode = tables.back().decodes.emplace_back();
      decode.skips_special = second == "1";
      decode.text = from_hex(third);
      for (TokenId id = 0; line >> id;) decode.ids.push_back(id);
    }
  }
  return tables;
}

Pieces pieces_of(std::shared_ptr<const TokenTable> table, bool skips_special, const std::vector<TokenId>& ids) {
  Detokenizer detokenizer(std::move(table), skips_special);
  Pieces pieces;
  for (const TokenId id : ids) pieces.push_back(detokenizer.append(id));
  pieces.push_back(detokenizer.flush());
  return pieces;
}

std::string joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

std::shared_ptr<TokenTable> byte_level(std::vector<std::string> tokens) {
  auto table = std::make_shared<TokenTable>();
  table->kinds.assign(tokens.size(), Kind::kText);
  table->bytes = std::move(tokens);
  return table;
}

void check_golden(const GoldenTable& golden) {
  for (const Decode& decode : golden.decodes) {
    const Pieces pieces = pieces_of(golden.table, decode.skips_special, decode.ids);

    CHECK_MESSAGE(joined(pieces) == decode.text, golden.name << " skip " << decode.skips_special);
    for (const std::string& piece : pieces) CHECK(is_valid_utf8(piece));
  }
}

TEST_CASE("Detokenizer_GoldenIds_GivesTheTextOfTheTokenizersLibrary") {
  const std::vector<GoldenTable> tables = read_golden(GENAI_TESTS_DIR "/golden/detokenizer.txt");
  CHECK(tables.size() == 4);
  for (const GoldenTable& golden : tables) {
    CHECK(golden.decodes.size() > 100);
    check_golden(golden);
  }
}

// tests/test_cpp.py writes a file of many random texts and names it in the environment.
TEST_CASE("Detokenizer_RandomTexts_GivesTheTextOfTheTokenizersLibrary") {
  const char* path = std::getenv("GENAI_DETOKENIZER_CASES");
  if (path == nullptr) return;
  const std::vector<GoldenTable> tables = read_golden(path);
  CHECK(tables.size() == 4);
  for (const GoldenTable& golden : tables) {
    CHECK(golden.decodes.size() >= 10000);
    check_golden(golden);
  }
}

TEST_CASE("Detokenizer_EmojiInFourTokens_ComesWholeWithTheLast") {
  const auto table = byte_level({"\xF0", "\x9F", "\x99", "\x82", "hi"});

  CHECK(pieces_of(table, true, {4, 0, 1, 2, 3, 4}) == Pieces{"hi", "", "", "", "\xF0\x9F\x99\x82", "hi", ""});
}

TEST_CASE("Detokenizer_TokenEndsInsideACharacter_HoldsOnlyThatPart") {
  const auto table = byte_level({"ok\xF0\x9F", "\x99\x82!"});

  CHECK(pieces_of(table, true, {0, 1}) == Pieces{"ok", "\xF0\x9F\x99\x82!", ""});
}

TEST_CASE("Detokenizer_TextEndsInsideACharacter_FlushesOneReplacement") {
  const auto table = byte_level({"a", "\xF0\x9F\x99"});

  CHECK(pieces_of(table, true, {0, 1}) == Pieces{"a", "", std::string(kReplacementCharacter)});
}

TEST_CASE("Detokenizer_BrokenBytes_AreReplacedAtOnce") {
  const auto table = byte_level({"\xC3", "(", "\xFF"});
  const std::string r(kReplacementCharacter);

  CHECK(pieces_of(table, true, {0, 1, 2}) == Pieces{"", r + "(", r, ""});
}

TEST_CASE("Detokenizer_ByteFallbackRun_IsHeldUntilItEnds") {
  const auto shared = byte_level({"\xE4", "\xBD", "\xA0", "b"});
  shared->decoding = TokenTable::Decoding::kByteFallback;
  shared->kinds = {Kind::kByte, Kind::kByte, Kind::kByte, Kind::kText};
  const std::string r(kReplacementCharacter);

  CHECK(pieces_of(shared, true, {0, 1, 2, 3}) == Pieces{"", "", "",
                                                        "\xE4\xBD\xA0"
                                                        "b",
                                                        ""});
  CHECK(pieces_of(shared, true, {0, 1, 3}) == Pieces{"", "", r + r + "b", ""});
  CHECK(pieces_of(shared, true, {0, 1, 2, 0}) == Pieces{"", "", "", "", r + r + r + r});
}

TEST_CASE("Detokenizer_FirstTextAfterSkippedSpecials_LosesItsFirstSpace") {
  const auto table = byte_level({"<s>", " a", ""});
  table->kinds[0] = Kind::kSpecial;
  table->strip_first_space = true;

  CHECK(pieces_of(table, true, {0, 2, 1, 1}) == Pieces{"", "", "a", " a", ""});
  CHECK(pieces_of(table, false, {0, 1}) == Pieces{"<s>", " a", ""});
}

TEST_CASE("Detokenizer_TokenWithAFirstText_TakesItAsItIsAtTheStartOnly") {
  const auto table = byte_level({"<s>", " a", "##b", ""});
  table->kinds[0] = Kind::kSpecial;
  table->strip_first_space = true;
  table->first = {{2, "  b"}, {3, ""}};

  CHECK(pieces_of(table, true, {0, 2, 1, 2}) == Pieces{"", "  b", " a", "##b", ""});
  CHECK(pieces_of(table, true, {1, 2}) == Pieces{"a", "##b", ""});
  CHECK(pieces_of(table, true, {3, 1}) == Pieces{"", " a", ""});
}

TEST_CASE("Detokenizer_SpecialWithoutText_IsAnIdThatDoesNotExist") {
  const auto table = byte_level({"", " a"});
  table->kinds[0] = Kind::kSpecial;
  table->strip_first_space = true;
  table->first = {{1, "first"}};

  CHECK(pieces_of(table, false, {0, 1, 0}) == Pieces{"", "first", "", ""});
}

TEST_CASE("Detokenizer_IdOutsideTheTable_GivesNothing") {
  const auto table = byte_level({"a"});

  CHECK(pieces_of(table, true, {-1, 0, 1, 1000000}) == Pieces{"", "a", "", "", ""});
}

TEST_CASE("Detokenizer_TableWithoutKinds_IsAnInternalError") {
  const auto table = byte_level({"a"});
  table->kinds.clear();

  CHECK_THROWS_AS(Detokenizer(table, true), Error);
}

// One-shot: all bytes of the ids, decoded together.
TEST_CASE("Detokenizer_RandomBytesCutAnywhere_JoinToTheOneShotDecode") {
  std::mt19937 random(6);
  const std::string material = "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x99\x82\xED\xA0\x80\xC0\xFF\xE2\x80";
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> tokens;
    std::vector<TokenId> ids;
    std::string all;
    for (std::size_t i = random() % 12; i > 0; --i) {
      const std::size_t start = random() % material.size();
      tokens.push_back(material.substr(start, random() % 5));
      ids.push_back(static_cast<TokenId>(ids.size()));
      all += tokens.back();
    }
    const auto table = byte_level(tokens);

    CHECK(joined(pieces_of(table, true, ids)) == decode_utf8_lossy(all));
  }
}

}  // namespace
}  // namespace genai::sampling
