// visit.cu: rows and queries of a search in cells, as nearest.cu takes them.
//
// cell_keys      keys[u][0] = own[u], the part of a cell that query u lies in
//                keys[u][1 + t] = first_parts[near[u][t]], ~0 where that is the query's own cell:
//                the part that others see of each of the nearest cells
// queries_of     entry e of the sorted keys is query e / width: which one, and which row it is
// about_centres  y[i] = (x[rows[i]] - centre) * scale, and |y|^2 and |y|; the centre is that of
//                cells[i], or of `cell` for all; none where `centres` is null
//
// arrays   near: [count, width - 1] cells; own_cells, own: [count]; first_parts: [cells]; keys:
//          [count, width]; order: [count * width] entries, of which `found` are looked at; numbers:
//          [count], the row of each query; picks, rows: [found]; x: [n, d] float; centres: [cells,
//          d] float; out: [m, pitch] float, columns beyond d are 0; squares, magnitudes: [m];
//          extra: [n] float, added to the square of its row where not null; none overlap
// scalars  scale: a power of two
// launch   blocks of 256: cell_keys and queries_of a thread for each entry, about_centres a warp
//          for each row
// cost     each reads and writes its arrays once; bandwidth-bound
// NaN      the caller refuses rows that are not finite
// same     every entry is one thread's, or one warp's sum in a fixed order
// truth    the search on the CPU, src/tsne/neighbours/cpu/visit.rs, which finds the same but for
//          ties of f32

#include "core/tf32.cuh"
#include "tsne/nearest.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    cell_keys(unsigned* keys, const unsigned* near, const unsigned* own_cells, const unsigned* own, const unsigned* first_parts,
              const size_t count, const unsigned width) {
  const size_t e = (size_t)blockIdx.x * THREADS + threadIdx.x;
  if (e >= count * width) return;
  const size_t u = e / width;
  const unsigned t = (unsigned)(e % width);
  if (t == 0) {
    keys[e] = own[u];
    return;
  }
  const unsigned cell = near[u * (width - 1) + t - 1];
  keys[e] = cell == own_cells[u] ? ~0u : first_parts[cell];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    queries_of(unsigned* picks, unsigned* rows, const unsigned* order, const unsigned* numbers, const size_t found, const unsigned width) {
  const size_t e = (size_t)blockIdx.x * THREADS + threadIdx.x;
  if (e >= found) return;
  const unsigned query = order[e] / width;
  picks[e] = query;
  rows[e] = numbers[query];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    about_centres(float* out, float* squares, float* magnitudes, const float* x, const float* centres, const unsigned* rows,
                  const unsigned* cells, const float* extra, const size_t m, const size_t d, const size_t pitch, const unsigned cell,
                  const float scale, const unsigned rounded) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= m) return;
  const size_t row = rows[i];
  const float* const from = x + row * d;
  const float* const centre = centres ? centres + (size_t)(cells ? cells[i] : cell) * d : nullptr;
  double sum = 0;
  for (size_t c = lane; c < pitch; c += 32) {
    // Scaling is exact: the difference is rounded once.
    const float y = c >= d ? 0 : centre ? from[c] * scale - centre[c] * scale : from[c] * scale;
    sum = fma((double)y, (double)y, sum);
    uint32_t high = __float_as_uint(y), low;
    if (rounded) in_tf32_parts(y, high, low);
    out[i * pitch + c] = __uint_as_float(high);
  }
  sum = sum_of_warp(sum);
  if (lane == 0) {
    squares[i] = (float)sum + (extra ? extra[row] : 0);
    magnitudes[i] = (float)sqrt(sum);
  }
}
