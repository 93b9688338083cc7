#include "genai/kernels/packed_store.h"

#include "genai/kernels/packed_folder.h"

#include <doctest/doctest.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace genai::kernels {
namespace {
namespace fs = std::filesystem;

constexpr std::int64_t kRoom = std::int64_t{1} << 30;
constexpr std::int64_t kDepth = 96;
constexpr std::int64_t kColumns = 45;
constexpr std::size_t kMatrices = 3;
constexpr std::size_t kCodeBytes = kColumns * kDepth / 2;
constexpr std::size_t kScales = kColumns * kDepth / 32;
constexpr std::size_t kZeroBytes = kColumns * 2;
constexpr std::size_t kMatrixBytes = kCodeBytes + kScales * sizeof(float) + kZeroBytes + 2;  // keeps scales aligned

/// A folder that goes with the object.
class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "genai-packed-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  std::string packed() const { return path_ / "cache" / "packed"; }

  /// Files in packed().
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(packed(), error)) found.push_back(entry.path());
    return found;
  }
  fs::path only_file() const {
    REQUIRE(files().size() == 1);
    return files().front();
  }

 private:
  fs::path path_;
};

/// A file with constants of a few matrices.
class Model {
 public:
  explicit Model(const fs::path& path, std::uint32_t seed = 1) : path_(path) { write(seed); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() { unmap(); }

  /// Writes the file anew in its place, and maps it.
  void write(std::uint32_t seed) {
    unmap();
    std::mt19937 random(seed);
    std::vector<std::uint8_t> bytes(kMatrices * kMatrixBytes);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    for (std::size_t m = 0; m < kMatrices; ++m) {
      for (std::size_t i = 0; i < kScales; ++i) {
        const float scale = 0.001F * static_cast<float>(1 + random() % 1000);
        std::memcpy(bytes.data() + m * kMatrixBytes + kCodeBytes + i * sizeof(float), &scale, sizeof(scale));
      }
    }
    std::fstream file(path_, fs::exists(path_) ? std::ios::in | std::ios::out : std::ios::out);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(file.good());
    file.close();
    const int descriptor = open(path_.c_str(), O_RDONLY);
    REQUIRE(descriptor >= 0);
    void* const mapped = mmap(nullptr, bytes.size(), PROT_READ, MAP_PRIVATE, descriptor, 0);
    REQUIRE(mapped != MAP_FAILED);
    data_ = static_cast<const std::uint8_t*>(mapped);
    // Before that nothing of the file is kept.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!is_settled(*file_identity(descriptor), file_clock_ns())) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
    close(descriptor);
  }

  NBitsWeights matrix(std::size_t index) const {
    const std::uint8_t* const at = data_ + index * kMatrixBytes;
    NBitsWeights weights;
    weights.depth = kDepth;
    weights.columns = kColumns;
    weights.codes = {at, kCodeBytes};
    weights.scales = {reinterpret_cast<const float*>(at + kCodeBytes), kScales};
    if (index == 1) weights.zero_points = {at + kCodeBytes + kScales * sizeof(float), kZeroBytes};
    return weights;
  }

 private:
  void unmap() {
    if (data_ != nullptr) munmap(const_cast<std::uint8_t*>(data_), kMatrices * kMatrixBytes);
  }
  fs::path path_;
  const std::uint8_t* data_ = nullptr;
};

/// Streams, factors and zero points of all panels.
std::vector<std::byte> content(const PackedWeights& weights, std::int64_t matrix = 0) {
  std::vector<std::byte> all;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* const bytes = static_cast<const std::byte*>(data);
    all.insert(all.end(), bytes, bytes + size);
  };
  for (std::int64_t p = 0; p < weights.panels(); ++p) {
    const PanelView panel = weights.panel(p, matrix);
    CHECK(reinterpret_cast<std::uintptr_t>(panel.data) % 64 == 0);
    append(panel.data, weights.panel_bytes());
    append(panel.column_scale, kPanelColumns * sizeof(float));
    if (panel.zero_points != nullptr) {
      append(panel.zero_points, static_cast<std::size_t>(panel.steps() * kPanelColumns));
    }
  }
  return all;
}

std::string first_words(const std::string& text) {
  return text.substr(0, text.find(' ', text.find(' ') + 1));
}

/// Gets all matrices as a session does, compares each with what is packed into memory, and says what became of them:
/// "mapped from", "packed into" or "packed in". `before_end` runs before finish().
std::string load(const Model& model, PackedStore::Options options, const std::function<void()>& before_end = [] {}) {
  PackedStore store(std::move(options));
  std::vector<std::shared_ptr<const PackedWeights>> all;
  for (std::size_t m = 0; m < kMatrices; ++m) all.push_back(store.get(model.matrix(m), m == 2));
  before_end();
  store.finish();
  for (std::size_t m = 0; m < kMatrices; ++m) {
    const PackedWeights wanted(model.matrix(m), m == 2);
    CHECK(all[m]->has_zero_points() == wanted.has_zero_points());
    CHECK(content(*all[m]) == content(wanted));
  }
  return first_words(store.summary());
}

PackedStore::Options options_of(const Folder& folder, std::int64_t max_bytes = kRoom, std::uint64_t graph = 7) {
  return {.folder = folder.packed(), .max_bytes = max_bytes, .graph = graph};
}

TEST_CASE("the first session packs into a file, the next one maps it") {
  const Folder folder;
  const Model model(folder.path() / "model");

  CHECK(load(model, options_of(folder)) == "packed into");
  const fs::path file = folder.only_file();
  CHECK(load(model, options_of(folder)) == "mapped from");

  CHECK(folder.only_file() == file);
  struct stat facts{};
  REQUIRE(stat(file.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  REQUIRE(stat(folder.packed().c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0700);
}

TEST_CASE("sessions of one process share weights, whatever the file") {
  const Folder folder;
  const Model model(folder.path() / "model");
  PackedStore first(options_of(folder));
  const auto weights = first.get(model.matrix(0), false);
  CHECK(first.get(model.matrix(0), false) == weights);
  CHECK(first.get(model.matrix(0), true) != weights);
  first.finish();

  PackedStore second({});
  CHECK(second.get(model.matrix(0), false) == weights);
  second.finish();
  CHECK(second.summary() == "packed in memory: they are shared with another session");
  CHECK(packed_weights(model.matrix(0), false) == weights);
  CHECK(packed_weights(model.matrix(1), false) != weights);
}

TEST_CASE("two matrices are kept in turn, under a key of both") {
  const Folder folder;
  const Model model(folder.path() / "model");
  const std::vector<NBitsWeights> pair = {model.matrix(0), model.matrix(2)};
  const std::vector<NBitsWeights> swapped = {model.matrix(2), model.matrix(0)};
  for (const char* const what : {"packed into", "mapped from"}) {
    PackedStore store(options_of(folder));
    const auto weights = store.get(pair, false);
    CHECK(store.get(pair, false) == weights);
    const auto others = store.get(swapped, false);
    const auto alone = store.get(model.matrix(0), false);
    store.finish();
    CHECK(first_words(store.summary()) == what);
    CHECK(content(*weights, 0) == content(*alone));
    CHECK(content(*weights, 1) == content(PackedWeights(model.matrix(2), false)));
    CHECK(content(*others, 1) == content(*alone));
    CHECK(weights->panel(0, 1).data - weights->panel(0, 0).data == static_cast<std::ptrdiff_t>(weights->panel_bytes()));
    CHECK(weights->panel(1, 0).data - weights->panel(0, 1).data == static_cast<std::ptrdiff_t>(weights->panel_bytes()));
  }
}

TEST_CASE("constants that are in no file are packed into memory") {
  const Folder folder;
  const Model model(folder.path() / "model");
  NBitsWeights weights = model.matrix(0);
  const std::vector<std::uint8_t> codes(weights.codes.begin(), weights.codes.end());
  weights.codes = codes;
  PackedStore store(options_of(folder));
  CHECK(store.get(weights, false) != store.get(weights, false));
  store.finish();

  CHECK(store.summary().empty());
  CHECK(folder.files().empty());
}

TEST_CASE("scales that are in no file belong to the key by their content") {
  const Folder folder;
  const Model model(folder.path() / "model");
  NBitsWeights weights = model.matrix(0);
  std::vector<float> scales(weights.scales.begin(), weights.scales.end());
  weights.scales = scales;
  PackedStore store(options_of(folder));
  const auto first = store.get(weights, false);
  CHECK(store.get(weights, false) == first);
  scales[3] += 1.0F;
  const auto second = store.get(weights, false);
  store.finish();

  CHECK(content(*second) == content(PackedWeights(weights, false)));
  CHECK(content(*second) != content(*first));
}

TEST_CASE("weights of a file that was written to are packed anew, into the same file") {
  const Folder folder;
  Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");
  const fs::path file = folder.only_file();

  model.write(2);
  CHECK(load(model, options_of(folder)) == "packed into");
  CHECK(load(model, options_of(folder)) == "mapped from");
  CHECK(folder.only_file() == file);
}

TEST_CASE("a file that is written to with its old time and size is another one") {
  const Folder folder;
  Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");

  const auto time = fs::last_write_time(folder.path() / "model");
  model.write(2);
  fs::last_write_time(folder.path() / "model", time);

  CHECK(load(model, options_of(folder)) != "mapped from");
}

TEST_CASE("what was packed from a file that changed meanwhile is not kept") {
  const Folder folder;
  const fs::path path = folder.path() / "model";
  const Model model(path);

  CHECK(load(model, options_of(folder), [&] { std::ofstream(path, std::ios::app) << "more"; }) == "packed in");
  CHECK(folder.files().empty());
}

TEST_CASE("another graph has a file of its own") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");
  CHECK(load(model, options_of(folder, kRoom, 8)) == "packed into");
  CHECK(load(model, options_of(folder)) == "mapped from");
  CHECK(folder.files().size() == 2);
}

TEST_CASE("a file without some of the weights is used once more and then packed anew") {
  const Folder folder;
  const Model model(folder.path() / "model");
  PackedStore store(options_of(folder));
  CHECK(store.get(model.matrix(0), false) != nullptr);
  store.finish();
  CHECK(folder.files().size() == 1);

  CHECK(load(model, options_of(folder)) == "mapped from");
  CHECK(folder.files().empty());
  CHECK(load(model, options_of(folder)) == "packed into");
  CHECK(load(model, options_of(folder)) == "mapped from");
}

TEST_CASE("a damaged file is packed anew") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");
  const fs::path file = folder.only_file();
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  // The header's fields, the middle of the first weights, the last of the table.
  std::vector<std::int64_t> places = {4096 + 1000, size - 1, size - 100};
  for (std::int64_t at = 0; at < 64; at += 8) places.push_back(at);

  for (const std::int64_t at : places) {
    CAPTURE(at);
    {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(at);
      const int byte = bytes.get();
      bytes.seekp(at);
      bytes.put(static_cast<char>(byte ^ 0x10));
    }
    CHECK(load(model, options_of(folder)) == "packed into");
    CHECK(load(model, options_of(folder)) == "mapped from");
  }
}

TEST_CASE("a file that was cut, is empty or is something else is packed anew") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");
  const fs::path file = folder.only_file();
  const std::uintmax_t size = fs::file_size(file);
  for (const std::uintmax_t cut : {std::uintmax_t{0}, std::uintmax_t{100}, std::uintmax_t{4096}, size / 2, size - 1}) {
    CAPTURE(cut);
    fs::resize_file(file, cut);
    CHECK(load(model, options_of(folder)) == "packed into");
    CHECK(load(model, options_of(folder)) == "mapped from");
  }
  std::ofstream(file) << std::string(9000, 'x');
  CHECK(load(model, options_of(folder)) == "packed into");
  fs::remove(file);
  fs::create_symlink(folder.path() / "model", file);
  CHECK(load(model, options_of(folder)) == "packed into");
  CHECK(fs::is_regular_file(fs::symlink_status(file)));
  CHECK(folder.files().size() == 1);
}

TEST_CASE("two that pack at the same time both end right") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder), [&] {
          CHECK(load(model, options_of(folder)) == "packed into");
          CHECK(folder.files().size() == 2);
        }) == "packed into");

  CHECK(folder.files().size() == 1);
  CHECK(load(model, options_of(folder)) == "mapped from");
}

TEST_CASE("a file that is removed or replaced while it is mapped stays readable") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");

  CHECK(load(model, options_of(folder), [&] { fs::remove(folder.only_file()); }) == "mapped from");
  CHECK(load(model, options_of(folder)) == "packed into");
}

TEST_CASE("the files that were not used for longest make room") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder)) == "packed into");
  const auto size = static_cast<std::int64_t>(fs::file_size(folder.only_file()));
  const auto age = [&](const fs::path& file, int hours) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const fs::path first = folder.only_file();
  age(first, 2);
  const std::int64_t two = 2 * size + size / 2;
  CHECK(load(model, options_of(folder, two, 8)) == "packed into");
  CHECK(folder.files().size() == 2);
  for (const fs::path& file : folder.files()) {
    if (file != first) age(file, 1);
  }
  CHECK(load(model, options_of(folder)) == "mapped from");  // now used last

  CHECK(load(model, options_of(folder, two, 9)) == "packed into");
  CHECK(folder.files().size() == 2);
  CHECK(fs::exists(first));
  CHECK(load(model, options_of(folder, two, 8)) == "packed into");
  CHECK(load(model, options_of(folder, two, 7)) == "packed into");
}

TEST_CASE("weights that are larger than all files may be are packed into memory") {
  const Folder folder;
  const Model model(folder.path() / "model");
  CHECK(load(model, options_of(folder, 4096)) == "packed in");
  CHECK(folder.files().empty());
  CHECK(load(model, options_of(folder, 0)) == "packed in");
  CHECK(load(model, {}) == "packed in");
}

TEST_CASE("what a process left behind that ended is removed") {
  const Folder folder;
  const Model model(folder.path() / "model");
  fs::create_directories(folder.packed());
  fs::permissions(folder.packed(), fs::perms::owner_all);
  const fs::path old = fs::path(folder.packed()) / (std::string("x.packed.1.1") + kPartialSuffix);
  const fs::path fresh = fs::path(folder.packed()) / (std::string("x.packed.2.1") + kPartialSuffix);
  std::ofstream(old) << "old";
  std::ofstream(fresh) << "fresh";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(30));

  CHECK(load(model, options_of(folder)) == "packed into");
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(fresh));
}

TEST_CASE("a disk that fills up leaves the weights in memory") {
  const Folder folder;
  const Model model(folder.path() / "model");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  for (const rlim_t limit : {rlim_t{1}, rlim_t{5000}, rlim_t{9000}}) {
    const rlimit small{limit, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string became = load(model, options_of(folder));
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(became == "packed in");
    CHECK(folder.files().empty());
  }
  CHECK(load(model, options_of(folder)) == "packed into");
}

TEST_CASE("a folder that cannot be made, or that others may write to, is not used") {
  const Folder folder;
  const Model model(folder.path() / "model");
  std::ofstream(folder.path() / "cache") << "a file";
  CHECK(load(model, options_of(folder)) == "packed in");

  fs::remove(folder.path() / "cache");
  fs::create_directories(folder.packed());
  fs::permissions(folder.packed(), fs::perms::all);
  CHECK(load(model, options_of(folder)) == "packed in");
  CHECK(folder.files().empty());
}

}  // namespace
}  // namespace genai::kernels
#endif
