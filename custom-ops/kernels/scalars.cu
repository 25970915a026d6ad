// scalars.cu: the scalars of a training step that are stored on the device.
//
//   set_scalars_f32   out[i] = values.at[i]        i < n <= 8
//   advance_i64       counter[0] += by
//
// arrays   out: [n] f32, contiguous; counter: [1] i64
// scalars  values: passed by value, so that no host memory is read after the call returns
// launch   one block of 8 threads (set) or of 1 thread (advance)
// cost     one launch, about 2 us
// truth    the CPU branch in src/scalars.rs

struct Values { float at[8]; };

extern "C" __global__ void set_scalars_f32(float* out, const Values values, const unsigned n) {
  if (threadIdx.x < n) out[threadIdx.x] = values.at[threadIdx.x];
}

extern "C" __global__ void advance_i64(long long* counter, const long long by) {
  *counter += by;
}
