#pragma once

#include <cstddef>

namespace genai::tensor {

/// Page size of a buffer.
enum class Pages {
  kSystem,  ///< as the system is set up: large pages where it gives them
  kSmall,   ///< the smallest, so that memory written here and there costs no more than what is written, until
            ///< Buffer::join_pages()
};

/// Host memory that it owns: page aligned (kSmall: to kHugePage), zero at first. Pages never written to cost no
/// physical memory, so a large buffer may be reserved before it is needed. Move-only. One thread.
class Buffer {
 public:
  Buffer() = default;
  /// Throws kResourceExhausted when the address space or memory limit is used up. `size_bytes` may be 0.
  explicit Buffer(std::size_t size_bytes, Pages pages = Pages::kSystem);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  /// Puts a piece of kSmall memory on a large page, where the system can; for a piece that is all written, as what was
  /// not takes memory then. `offset`: a multiple of kHugePage, with kHugePage bytes after it. About half a millisecond.
  void join_pages(std::size_t offset);

  /// Makes `size_bytes` bytes from `offset` zero and gives their whole pages back to the system.
  void discard(std::size_t offset, std::size_t size_bytes);

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* data_as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void reset() noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace genai::tensor
