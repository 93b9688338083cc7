#pragma once

#include <cstdint>
#include <string>

namespace genai::kernels {

/// How files of packed weights end, and those that are not whole yet.
inline constexpr const char* kPackedSuffix = ".packed";
inline constexpr const char* kPartialSuffix = ".partial";

/// Makes the folder, for this user only, and those above it. Returns why it cannot be used, or an empty text: nobody
/// else may be able to put files into it, as what lies there is computed with, and no other machine or process may
/// stand between a file and its pages, which stay mapped. Thread-safe.
std::string prepare_packed_folder(const std::string& folder);

/// Marks a partial file as being written for as long as the descriptor is open.
void hold_partial(int descriptor);

/// Removes what processes left behind that ended before they had finished: partial files that nobody holds.
/// Thread-safe.
void remove_abandoned(const std::string& folder);

/// Removes files of packed weights until those that are left have at most `max_bytes` together, the one that was not
/// used for longest first. A file that is mapped stays readable where it is mapped. Thread-safe.
void make_room(const std::string& folder, std::int64_t max_bytes);

}  // namespace genai::kernels
