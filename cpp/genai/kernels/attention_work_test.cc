#include "genai/kernels/attention_work.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace genai::kernels {
namespace {

/// A call of three sequences: (past 3000, 1 new), (past 0, 200 new), (idle).
struct Setting {
  std::vector<std::int32_t> cumulative = {0, 1, 201, 201};
  std::vector<std::int32_t> past = {3000, 0, 7};
  std::vector<std::int32_t> table = std::vector<std::int32_t>(3 * 200);
  PagedCall call;

  explicit Setting(int window = 0) {
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
    call.shape.num_heads = 6;
    call.shape.kv_heads = 2;
    call.shape.head_dim = call.shape.value_dim = 64;
    call.shape.block_size = 16;
    call.shape.window = window;
    call.num_tokens = 201;
    call.num_blocks = static_cast<std::int64_t>(table.size());
    call.max_blocks = 200;
    call.cumulative = cumulative;
    call.past = past;
    call.block_table = table.data();
  }
};

TEST_CASE("Plan_AnyThreads_CoversEachRowAndRangeOnce") {
  for (const int window : {0, 700}) {
    const Setting setting(window);
    for (const int threads : {1, 2, 7, 64}) {
      CAPTURE(threads);
      AttentionWork work;

      work.plan(setting.call, threads);

      std::map<std::tuple<std::int64_t, int, std::int64_t>, int> rows;  // first token, head, row -> items
      for (const AttentionItem& item : work.items()) {
        CHECK(item.tile.num_rows >= 1);
        CHECK(item.tile.num_rows <= kTileRows);
        for (int r = 0; r < item.tile.num_rows; ++r) {
          ++rows[{item.tile.first_token, item.tile.kv_head, item.tile.first_row + r}];
        }
      }
      CHECK(rows.size() == 2 * 3 * 201);
      for (const auto& [row, count] : rows) CHECK(count == 1);

      std::map<std::size_t, int> next;  // item -> range that its next piece must begin with
      std::map<std::size_t, int> pieces;
      for (const AttentionPiece& piece : work.pieces()) {
        const AttentionItem& item = work.items()[piece.item];
        if (!next.contains(piece.item)) next[piece.item] = item.first_range;
        CHECK(piece.first_range == next[piece.item]);
        CHECK(piece.num_ranges >= 1);
        next[piece.item] += piece.num_ranges;
        ++pieces[piece.item];
      }
      for (std::size_t i = 0; i < work.items().size(); ++i) {
        const AttentionItem& item = work.items()[i];
        CHECK(next[i] == item.first_range + item.num_ranges);
        CHECK(pieces[i] == item.open_pieces);
        CHECK(item.is_split == (pieces[i] > 1));
      }
    }
  }
}

TEST_CASE("Plan_PromptRows_ShareTilesWithTheirKindOnly") {
  Setting setting;
  std::vector<std::int32_t> marks(201, 0);
  std::fill(marks.begin() + 1, marks.begin() + 151, 1);  // the second sequence: 150 of its prompt, 50 generated
  setting.call.prompt_rows = marks.data();
  for (const int threads : {1, 2, 64}) {
    CAPTURE(threads);
    AttentionWork work;

    work.plan(setting.call, threads);

    std::map<std::tuple<std::int64_t, int, std::int64_t>, int> rows;  // first token, head, row -> items
    for (const AttentionItem& item : work.items()) {
      CHECK(item.tile.num_rows >= 1);
      CHECK(item.tile.num_rows <= (item.tile.is_prompt ? kPromptTileRows : kTileRows));
      for (int r = 0; r < item.tile.num_rows; ++r) {
        const std::int64_t token = item.tile.first_token + (item.tile.first_row + r) / 3;
        CHECK(item.tile.is_prompt == (marks[static_cast<std::size_t>(token)] != 0));
        ++rows[{item.tile.first_token, item.tile.kv_head, item.tile.first_row + r}];
      }
    }
    CHECK(rows.size() == 2 * 3 * 201);
    for (const auto& [row, count] : rows) CHECK(count == 1);
  }
}

TEST_CASE("Plan_ManyThreads_CutsAPromptIntoMoreTiles") {
  Setting setting;
  const std::vector<std::int32_t> marks(201, 1);
  setting.call.prompt_rows = marks.data();
  AttentionWork few;
  AttentionWork many;

  few.plan(setting.call, 1);
  many.plan(setting.call, 16);

  CHECK(few.items().size() == 2 * (1 + 4));
  CHECK(many.items().size() == 2 * (1 + 10));
}

TEST_CASE("Plan_FewPromptRowsBehindManyKeys_ShareATileThatIsCutIntoRanges") {
  Setting setting;
  setting.cumulative = {0, 32};
  setting.past = {1000};
  setting.call.cumulative = setting.cumulative;
  setting.call.past = setting.past;
  setting.call.num_tokens = 32;
  const std::vector<std::int32_t> marks(32, 1);
  setting.call.prompt_rows = marks.data();
  AttentionWork work;

  work.plan(setting.call, 2);

  REQUIRE(work.items().size() == 2);  // one for each KV head
  CHECK(work.items()[0].tile.num_rows == 32 * 3);
  CHECK(work.items()[0].num_ranges == 5);
  CHECK(work.pieces().size() == 2 * 4);
}

TEST_CASE("Plan_OneLongSequence_GivesWorkToAllThreads") {
  Setting setting;
  setting.cumulative = {0, 1};
  setting.past = {3000};
  setting.call.cumulative = setting.cumulative;
  setting.call.past = setting.past;
  setting.call.num_tokens = 1;
  AttentionWork work;

  work.plan(setting.call, 4);

  CHECK(work.threads() == 4);
  CHECK(work.pieces().size() >= 8);
}

TEST_CASE("Plan_AnyThreads_TallPiecesComeFirstAndTheRestIsCutForThem") {
  const Setting setting;
  for (const int threads : {1, 2, 7, 100}) {
    CAPTURE(threads);
    AttentionWork work;

    work.plan(setting.call, threads);

    for (std::size_t i = 0; i < work.pieces().size(); ++i) {
      CHECK((work.items()[work.pieces()[i].item].tile.num_rows > kWaitingRows) == (i < work.tall_pieces()));
    }
    const std::vector<std::size_t>& starts = work.starts();
    CHECK(starts.size() == static_cast<std::size_t>(std::min(threads, 64)) + 1);
    CHECK(starts.front() == work.tall_pieces());
    CHECK(starts.back() == work.pieces().size());
    CHECK(std::is_sorted(starts.begin(), starts.end()));
  }
}

TEST_CASE("Plan_LittleWork_StaysOnOneThread") {
  Setting setting;
  setting.cumulative = {0, 1};
  setting.past = {100};
  setting.call.cumulative = setting.cumulative;
  setting.call.past = setting.past;
  setting.call.num_tokens = 1;
  AttentionWork work;

  work.plan(setting.call, 4);

  CHECK(work.threads() == 1);
  CHECK(work.pieces().size() == 2);
}

TEST_CASE("Plan_SlotMapping_GivesItsSlots") {
  Setting setting;
  std::vector<std::int32_t> slots(201);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i) - 1;
  setting.call.slot_mapping = slots.data();
  AttentionWork work;

  work.plan(setting.call, 2);

  CHECK(work.tokens()[0].slot == -1);
  CHECK(work.tokens()[0].position == 3000);
  CHECK(work.tokens()[200].slot == 199);
  CHECK(work.tokens()[200].position == 199);
}

TEST_CASE("Plan_NoSlotMapping_FollowsTheBlockTable") {
  const Setting setting;
  AttentionWork work;

  work.plan(setting.call, 2);

  CHECK(work.tokens()[0].slot == 187 * 16 + 8);  // position 3000
  CHECK(work.tokens()[1 + 17].slot == (200 + 1) * 16 + 1);
}

TEST_CASE("Pool_WorkGivenBack_IsTakenAgain") {
  AttentionWorkPool pool;
  const AttentionWork* first = nullptr;
  {
    const AttentionWorkPool::Loan loan = pool.take();
    first = loan.get();
    CHECK(pool.take().get() != first);
  }

  const AttentionWorkPool::Loan one = pool.take();
  const AttentionWorkPool::Loan two = pool.take();
  CHECK((one.get() == first || two.get() == first));
}

}  // namespace
}  // namespace genai::kernels
