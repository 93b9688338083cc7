#include "genai/ort/adapter_file.h"

#include "genai/base/error.h"
#include "genai/base/utf8.h"
#include "genai/ort/value.h"

#include "onnxruntime/abi.h"

#include <cstddef>
#include <cstring>

namespace genai::ort {
namespace {

constexpr std::string_view kIdentifier = "TORT";
constexpr std::size_t kIdentifierPlace = 4;
// Many entries of a broken file may point to one large list.
constexpr std::size_t kMaxRank = 16;
constexpr std::size_t kMaxNameBytes = 4096;

enum AdapterField : std::size_t { kParameters = 3 };
enum ParameterField : std::size_t { kName = 0, kDims = 1, kType = 2 };

/// Reads a FlatBuffer; each read is checked. Places are bytes from the beginning.
class FlatBuffer {
 public:
  FlatBuffer(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <typename T>
  T read(std::size_t place) const {
    if (place > bytes_.size() || bytes_.size() - place < sizeof(T)) throw damaged();
    T value;
    std::memcpy(&value, bytes_.data() + place, sizeof(T));
    return value;
  }

  /// Where an offset leads.
  std::size_t follow(std::size_t place) const { return place + read<std::uint32_t>(place); }

  /// Place of a field of a table; nullopt when the table leaves it out.
  std::optional<std::size_t> field(std::size_t table, std::size_t number) const {
    const std::int64_t fields = static_cast<std::int64_t>(table) - read<std::int32_t>(table);
    if (fields < 0) throw damaged();
    const auto start = static_cast<std::size_t>(fields);
    const std::size_t entry = (2 + number) * sizeof(std::uint16_t);
    if (entry + sizeof(std::uint16_t) > read<std::uint16_t>(start)) return std::nullopt;
    const auto offset = read<std::uint16_t>(start + entry);
    return offset == 0 ? std::nullopt : std::optional(table + offset);
  }

  /// Number of elements of the vector at `place`, all of which lie inside.
  std::size_t vector_size(std::size_t place, std::size_t element_bytes) const {
    const std::size_t size = read<std::uint32_t>(place);
    if (size > (bytes_.size() - place - sizeof(std::uint32_t)) / element_bytes) throw damaged();
    return size;
  }
  static std::size_t element(std::size_t vector, std::size_t index, std::size_t element_bytes) {
    return vector + sizeof(std::uint32_t) + index * element_bytes;
  }

  /// A text of at least one character.
  std::string text(std::size_t place) const {
    const std::size_t size = vector_size(place, 1);
    const std::string_view found = size > kMaxNameBytes ? "" : bytes_.substr(element(place, 0, 1), size);
    if (found.empty() || !is_valid_utf8(found)) throw damaged();
    return std::string(found);
  }

  Error damaged() const {
    return Error(ErrorCode::kBadPackage,
                 path_ + ": the adapter is damaged or cut off. Copy the file again, or write it anew.");
  }

 private:
  std::string_view bytes_;
  const std::string& path_;
};

AdapterParameter read_parameter(const FlatBuffer& buffer, std::size_t table) {
  AdapterParameter parameter;
  const std::optional<std::size_t> name = buffer.field(table, kName);
  if (!name) throw buffer.damaged();
  parameter.name = buffer.text(buffer.follow(*name));
  if (const std::optional<std::size_t> dims = buffer.field(table, kDims)) {
    const std::size_t vector = buffer.follow(*dims);
    const std::size_t rank = buffer.vector_size(vector, sizeof(std::int64_t));
    if (rank > kMaxRank) throw buffer.damaged();
    for (std::size_t axis = 0; axis < rank; ++axis) {
      parameter.dims.push_back(buffer.read<std::int64_t>(FlatBuffer::element(vector, axis, sizeof(std::int64_t))));
    }
  }
  if (const std::optional<std::size_t> type = buffer.field(table, kType)) {
    parameter.dtype = from_element_type(static_cast<ort_abi::ElementType>(buffer.read<std::int32_t>(*type)));
  }
  return parameter;
}

}  // namespace

std::vector<AdapterParameter> read_adapter_parameters(std::string_view bytes, const std::string& path) {
  if (bytes.starts_with("version https://git-lfs.")) {
    throw Error(ErrorCode::kBadPackage,
                path +
                    ": this is a Git LFS pointer, not the adapter itself. Run `git lfs pull` in "
                    "its folder, or download the file again.");
  }
  if (bytes.size() < kIdentifierPlace + kIdentifier.size() ||
      bytes.substr(kIdentifierPlace, kIdentifier.size()) != kIdentifier) {
    throw Error(ErrorCode::kBadPackage, path + ": is no adapter in ONNX Runtime's format (it lacks the identifier " +
                                            std::string(kIdentifier) +
                                            "). Name a file that onnxruntime.AdapterFormat or Olive wrote, usually "
                                            "*.onnx_adapter.");
  }
  const FlatBuffer buffer(bytes, path);
  std::vector<AdapterParameter> parameters;
  const std::optional<std::size_t> field = buffer.field(buffer.follow(0), kParameters);
  if (!field) return parameters;
  const std::size_t vector = buffer.follow(*field);
  const std::size_t size = buffer.vector_size(vector, sizeof(std::uint32_t));
  for (std::size_t index = 0; index < size; ++index) {
    const std::size_t place = FlatBuffer::element(vector, index, sizeof(std::uint32_t));
    parameters.push_back(read_parameter(buffer, buffer.follow(place)));
  }
  return parameters;
}

}  // namespace genai::ort
