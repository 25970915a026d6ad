// part_products.cuh: products of rows with unit atoms in the tensor cores, both as sums of two f16
// numbers, the high and the low part.
//
//   x d = x_high d_high + x_high d_low + x_low d_high     x_low d_low is below the rounding of f32
//
// launch   256 threads for TILE rows and TILE atoms, DEPTH features at a time: warp w has rows 64
//          (w / 4) to 64 (w / 4) + 63 and atoms 32 (w % 4) to 32 (w % 4) + 31 of the tile
// error    each factor to 22 bits; sums of 16 products are cut off in the tensor cores, then
//          rounded as f32's: measured below that of f32 products summed one by one
#pragma once

#include "core/tiles.cuh"

constexpr int TILE = 128;
constexpr int HALF_LINE = DEPTH + PAD;
constexpr float ATOM_SCALE = 4096.f;  // an entry of a unit atom is at most 1, and f16 ends at 65,504

// x as the sum of two f16 numbers.
__device__ __forceinline__ void in_parts(float x, __half& high, __half& low) {
  high = __float2half_rn(x);
  low = __float2half_rn(x - __half2float(high));
}

constexpr unsigned NO_LINE = 0xffffffffu;

// Starts the copy of features `at` to at + DEPTH of both parts of TILE lines out of `lines`, to
// lines `to_line` apart, with zeros past `line`: those from `first` on or, GATHERED, those that
// `which` names, zeros for NO_LINE.
template <bool GATHERED>
__device__ __forceinline__ void load_halves(__half* to, unsigned to_line, const __half* from, size_t lines, unsigned line,
                                            unsigned at, unsigned first, const unsigned* which = nullptr) {
#pragma unroll
  for (int t = 0; t < 2 * TILE * DEPTH / 8 / 256; ++t) {
    const unsigned i = t * 256 + threadIdx.x, column = i % (DEPTH / 8) * 8, row = i / (DEPTH / 8) % TILE;
    const unsigned part = i / (TILE * DEPTH / 8), source_line = GATHERED ? which[row] : first + row;
    const bool inside = (!GATHERED || source_line != NO_LINE) && at + column < line;
    const __half* const source = from + (part * lines + source_line) * line + at + column;
    copy<16>(to + (part * TILE + row) * to_line + column, inside ? source : from, inside);
  }
}

// Both parts of 32 atoms from `atom` on, 16 features from `at` on, as the tensor cores take them:
// [part][pair of eights of atoms]. Low parts are TILE lines after the high ones.
__device__ __forceinline__ void read_atoms(uint32_t (&b)[2][2][4], const __half* atoms, unsigned atom, unsigned at) {
  const unsigned lane = threadIdx.x & 31;
#pragma unroll
  for (int part = 0; part < 2; ++part)
#pragma unroll
    for (int pair = 0; pair < 2; ++pair)
      load_blocks(b[part][pair],
               atoms + (part * TILE + atom + pair * 16 + lane / 16 * 8 + lane % 8) * HALF_LINE + at + lane / 8 % 2 * 8);
}

// The same of 16 rows, `row_line` apart.
__device__ __forceinline__ void read_rows(uint32_t (&a)[2][4], const __half* rows, unsigned row_line, unsigned row,
                                          unsigned at) {
  const unsigned lane = threadIdx.x & 31;
#pragma unroll
  for (int part = 0; part < 2; ++part)
    load_blocks(a[part], rows + (part * TILE + row + lane % 16) * row_line + at + lane / 16 * 8);
}

// sum[r][c] += rows of this warp's r-th sixteen times atoms of its c-th eight, over the DEPTH
// features of a k-block.
//
// ROUNDED: the tensor cores cut sums off where f32 rounds, so few products at a time are summed
// there, then rounded. Else all are summed there, one sum taken up again only after three others:
// for sums of which only the largest is wanted, since they are cut off alike.
template <bool ROUNDED>
__device__ __forceinline__ void multiply_k_block(float (&sum)[4][4][4], const __half* rows, unsigned row_line,
                                               const __half* atoms) {
  const unsigned warp = threadIdx.x / 32, at_row = warp / 4 * 64, at_atom = warp % 4 * 32;
#pragma unroll
  for (int at = 0; at < DEPTH; at += 16) {
    uint32_t b[2][2][4];
    read_atoms(b, atoms, at_atom, at);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      uint32_t a[2][4];
      read_rows(a, rows, row_line, at_row + r * 16, at);
      // Of the high or the low parts of rows, and those of atoms.
      auto add = [&](float(&to)[4], int of_rows, int of_atoms, int c) {
        multiply<__half>(to, a[of_rows], b[of_atoms][c / 2][c % 2 * 2], b[of_atoms][c / 2][c % 2 * 2 + 1]);
      };
      if (ROUNDED) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float part[4] = {};
          add(part, 1, 0, c), add(part, 0, 1, c), add(part, 0, 0, c);
#pragma unroll
          for (int q = 0; q < 4; ++q) sum[r][c][q] += part[q];
        }
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) add(sum[r][c], 1, 0, c);
#pragma unroll
        for (int c = 0; c < 4; ++c) add(sum[r][c], 0, 1, c);
#pragma unroll
        for (int c = 0; c < 4; ++c) add(sum[r][c], 0, 0, c);
      }
    }
  }
}
