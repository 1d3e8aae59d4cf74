// Values put where a mask is true, zeros elsewhere.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

// out[i] = values[number of true entries before i] where mask[i], else 0, for entries of 1, 2, 4 or 8 bytes.
// A byte of the mask is true unless it is 0.
// Throws std::invalid_argument unless as many entries of the mask are true as there are values.
void expand(const void* values, std::size_t count, const std::uint8_t* mask, std::size_t entries,
            std::size_t width, void* out);

}  // namespace tamis
