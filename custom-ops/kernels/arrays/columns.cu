// columns.cu: some columns of a matrix to some of another.
//
//   out[r, c] = x[r, c]
//
// arrays   x, out: [rows, width] bytes, lines x_apart and out_apart bytes apart, not overlapping
// launch   2-D grid of 1-D blocks, any size, across the bytes of a line and down the rows: loops
//          stride over it; a thread takes 16 or 4 bytes where all lines begin and end with so many
// cost     2 * rows * width bytes; bandwidth-bound
// NaN      propagates
// truth    the CPU twin in src/arrays/columns.rs

template <typename Word>
__device__ void copy_columns(const unsigned char* __restrict__ x, unsigned char* __restrict__ out, size_t rows, size_t width, size_t x_apart,
                             size_t out_apart) {
  const size_t of_line = width / sizeof(Word);
  for (size_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const Word* from = reinterpret_cast<const Word*>(x + row * x_apart);
    Word* to = reinterpret_cast<Word*>(out + row * out_apart);
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < of_line; i += (size_t)gridDim.x * blockDim.x) to[i] = from[i];
  }
}

extern "C" __global__ void columns_into(const unsigned char* x, unsigned char* out, const size_t rows, const size_t width, const size_t x_apart,
                                        const size_t out_apart) {
  const size_t all = (size_t)x | (size_t)out | width | x_apart | out_apart;
  if (all % 16 == 0) copy_columns<uint4>(x, out, rows, width, x_apart, out_apart);
  else if (all % 4 == 0) copy_columns<unsigned>(x, out, rows, width, x_apart, out_apart);
  else copy_columns<unsigned char>(x, out, rows, width, x_apart, out_apart);
}
