// lines.cuh: entries that lie in lines with gaps between them.
#pragma once

// Where entry i belongs: lines of `width` entries begin `line` entries from each other, without gaps
// where both are equal.
__device__ __forceinline__ size_t place_in_lines(size_t i, size_t width, size_t line) {
  return width == line ? i : i / width * line + i % width;
}
