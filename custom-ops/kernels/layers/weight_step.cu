// weight_step.cu: the update of weights by their velocity, with decay and a bound on their norm.
//
//   weight_step   v <- v - rate * (l2 * w + l1 * sign(w));  w <- w + v
//                 on entry v = momentum * v + rate / batch * (h_pos' x_pos - h_neg' x_neg), left there by a product
//   max_norm_rows w_j <- w_j * min(1, limit / |w_j|)           for each row j
//
// arrays   params: [2, n] f32, planes w and v; weight: [rows, cols] f32; contiguous.
//          scalars: [3] f32 on the device: rate / batch, momentum, rate
// scalars  l1, l2 >= 0; limit > 0
// launch   weight_step: 1-D, strides over the grid. max_norm_rows: one block of 256 per row
// shared   max_norm_rows 1 KiB
// cost     weight_step: 12n bytes without decay, 16n with; bandwidth-bound. max_norm_rows: a read,
//          and a write of long rows
// NaN      propagates
// same     the same bits as the CPU twin for weight_step (-fmad=false); max_norm_rows sums in
//          another order
// truth    weight_step_reference in src/layers/weight_step.rs

template <bool DECAY>
__device__ void step_one(float& w, float& v, float rate, float l1, float l2) {
  if (DECAY) {
    const float sign = w > 0.f ? 1.f : w < 0.f ? -1.f : 0.f;
    v = v - rate * (l2 * w + l1 * sign);
  }
  w = w + v;
}

// n4 groups of four, then a tail of n - 4 * n4.
template <bool DECAY>
__device__ void weight_step(float* params, const float* scalars, float l1, float l2, size_t n) {
  const float rate = scalars[2];
  float* weight = params;
  float* velocity = params + n;
  const size_t n4 = n % 4 == 0 && (size_t)params % 16 == 0 ? n / 4 : 0;  // 16-byte access where both planes allow it
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (size_t i = first; i < n4; i += stride) {
    float4 w = reinterpret_cast<float4*>(weight)[i];
    float4 v = reinterpret_cast<float4*>(velocity)[i];
    step_one<DECAY>(w.x, v.x, rate, l1, l2);
    step_one<DECAY>(w.y, v.y, rate, l1, l2);
    step_one<DECAY>(w.z, v.z, rate, l1, l2);
    step_one<DECAY>(w.w, v.w, rate, l1, l2);
    reinterpret_cast<float4*>(weight)[i] = w;
    if (DECAY) reinterpret_cast<float4*>(velocity)[i] = v;
  }
  for (size_t i = 4 * n4 + first; i < n; i += stride) {
    step_one<DECAY>(weight[i], velocity[i], rate, l1, l2);
  }
}

extern "C" __global__ void weight_step_f32(float* params, const float* scalars, const float l1,
                                           const float l2, const size_t n) {
  if (l1 == 0.f && l2 == 0.f) weight_step<false>(params, scalars, l1, l2, n);
  else weight_step<true>(params, scalars, l1, l2, n);
}

extern "C" __global__ void max_norm_rows_f32(float* weight, const float limit, const unsigned cols) {
  __shared__ float partial[256];
  float* row = weight + (size_t)blockIdx.x * cols;
  float sum = 0.f;
  for (unsigned i = threadIdx.x; i < cols; i += 256) sum = sum + row[i] * row[i];
  partial[threadIdx.x] = sum;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] = partial[threadIdx.x] + partial[threadIdx.x + half];
  }
  __syncthreads();
  const float norm = sqrtf(partial[0]);
  if (!(norm > limit)) return;  // every thread of the block agrees
  const float factor = limit / norm;
  for (unsigned i = threadIdx.x; i < cols; i += 256) row[i] = row[i] * factor;
}
