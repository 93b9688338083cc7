#pragma once

#include "genai/kernels/tiles_bf16.h"

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

// What the kernels with tiles of bfloat16 share. Included after the pragma of the instruction set; local to the file.
namespace genai::kernels {
namespace {

/// The processor's tiles: eight, of the largest size.
struct Tiles : Bf16Tiles {
  struct alignas(64) Config {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t column_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };

  static void configure() {
    Config config;
    std::fill(config.column_bytes, config.column_bytes + 8, std::uint16_t{64});
    std::fill(config.rows, config.rows + 8, std::uint8_t{16});
    // The compiler takes only the first bytes for read.
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }

  static void release() {
    _tile_release();
    barrier();
  }

  /// The loads and stores of tiles do not tell the compiler what they read and write.
  static void barrier() { __asm__ volatile("" ::: "memory"); }
};

}  // namespace
}  // namespace genai::kernels
