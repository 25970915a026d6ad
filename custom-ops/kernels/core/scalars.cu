// scalars.cu: the scalars of a training step that are stored on the device.
//
//   set_scalars_f32   out[i] = values.at[i]        i < n <= 8
//   advance_i64       counter[0] += by
//   raise_to_largest_u32   largest[0] = max(largest[0], x[i])        i < n
//
// arrays   out: [n] f32, contiguous; counter: [1] i64; x: [n] u32, contiguous; largest: [1] u32
// scalars  values: passed by value, so that no host memory is read after the call returns
// launch   one block of 8 threads (set) or of 1 thread (advance); raise: 1-D grid of blocks of
//          whole warps, any size
// same     the atomics of raise take the larger of integers, in whatever order
// cost     one launch, about 2 us
// truth    the CPU branch in src/core/scalars.rs

struct Values { float at[8]; };

extern "C" __global__ void set_scalars_f32(float* out, const Values values, const unsigned n) {
  if (threadIdx.x < n) out[threadIdx.x] = values.at[threadIdx.x];
}

extern "C" __global__ void raise_to_largest_u32(unsigned* largest, const unsigned* x, const size_t n) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  unsigned mine = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) mine = max(mine, x[i]);
  mine = __reduce_max_sync(0xffffffffu, mine);
  if (threadIdx.x % 32 == 0) atomicMax(largest, mine);
}

extern "C" __global__ void advance_i64(long long* counter, const long long by) {
  *counter += by;
}
