#pragma once

#include <cstddef>
#include <memory>

namespace genai::kernels {

/// `size_bytes` zero bytes, aligned to 64, on huge pages where the system has them: a product with one row reads all
/// weights once, and a page that is not in the translation buffer costs as much as many lines. Weights share chunks, so
/// that small ones do not fill a huge page each; a chunk goes with the last of its weights. Throws std::bad_alloc.
/// Thread-safe.
std::shared_ptr<std::byte> allocate_weights(std::size_t size_bytes);

/// Counts bytes of packed weights that lie elsewhere, in mapped files, for as long as it lives.
class CountedWeights {
 public:
  CountedWeights() = default;
  CountedWeights(const CountedWeights&) = delete;
  CountedWeights& operator=(const CountedWeights&) = delete;
  ~CountedWeights();
  /// One thread.
  void add(std::size_t size_bytes);

 private:
  std::size_t size_bytes_ = 0;
};

/// Bytes that weights of all models hold now. Thread-safe.
std::size_t weight_bytes();

}  // namespace genai::kernels
