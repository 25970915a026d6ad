// contrast_step.cu: the weight update of contrastive learning in one pass over weights and velocity.
//
//   g = sum_k h[k][j] * x[k][i]                      k over both phases; the negative one carries its minus in h
//   v <- momentum * v + rate / batch * g - rate * (l2 * w + l1 * sign(w))
//   w <- w + v;   shadow <- bf16(w)
//
// A product followed by weight_step.cu moves the velocity twice and the weights once more than this does:
// at [16000, 2304] 860 MB against 590 MB.
//
// arrays   params: [2, rows, cols] f32, planes w and v. h: [depth, rows], x: [depth, cols], both bf16 or both f16.
//          scalars: [3] f32: rate / batch, momentum, rate. shadow: [rows, cols] bf16 or null. All contiguous and
//          16-byte aligned; none overlap
// scalars  rows and cols multiples of 8; l1, l2 >= 0
// launch   1-D, a block for each TILE x TILE of the weights, columns fastest; 256 threads
// shared   SHARED bytes, dynamic: STAGES slices of h and x, then the tile of g in their place
// cost     2 * depth * rows * cols FLOP; 16 bytes a weight (18 with a shadow), which binds
// NaN      spreads
// same     sums in one order on one device, whatever else runs: no atomics
// truth    contrast_step_reference in src/contrast_step.rs

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int TILE = 128;
constexpr int DEPTH = 32;        // rows of h and x in one slice
constexpr int STAGES = 4;        // slices in flight
constexpr int THREADS = 256;     // 2 x 4 warps, each with 64 x 32 of the tile
constexpr int M = TILE / 2, N = TILE / 4;
constexpr int LINE = TILE + 8;   // padded: eight lines of 16-bit or four of 32-bit entries fall in different banks
constexpr int SLICE = DEPTH * LINE;
constexpr int CHUNK = 8;         // 16-bit entries of one copy
constexpr int SHARED = 2 * STAGES * SLICE * 2;
static_assert(TILE * LINE * sizeof(float) <= SHARED, "the tile of g takes the place of the slices");

__device__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ void copy16(void* to, const void* from, bool inside) {
  const int bytes = inside ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }

// Four 8 x 8 blocks, turned on the way, as both operands lie along their outer dimension. Lane l names line l % 8 of
// block l / 8.
__device__ void turned(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at)));
}

#define MULTIPLY(T, NAME)                                                                                         \
  __device__ void multiply(const T*, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                           \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                     \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                 \
  }
MULTIPLY(__nv_bfloat16, "bf16")
MULTIPLY(__half, "f16")

__device__ float stepped(float v, float w, float g, float alpha, float momentum, float rate, float l1, float l2) {
  const float sign = w > 0.f ? 1.f : w < 0.f ? -1.f : 0.f;
  return fmaf(momentum, v, fmaf(alpha, g, -rate * fmaf(l2, w, l1 * sign)));
}

// Starts the copy of slice `index` of an operand that is `width` wide, from column `first` on.
template <typename T>
__device__ void fetch(T* slice, const T* operand, int index, int first, int width, int depth) {
  constexpr int CHUNKS = TILE / CHUNK;
#pragma unroll
  for (int i = 0; i < DEPTH * CHUNKS / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const int line = at / CHUNKS, col = at % CHUNKS * CHUNK;
    const int k = index * DEPTH + line;
    const bool inside = k < depth && first + col < width;  // width is a multiple of a chunk
    copy16(slice + line * LINE + col, inside ? operand + (size_t)k * width + first + col : operand, inside);
  }
}

template <typename T>
__device__ void contrast_step(float* params, const T* h, const T* x, const float* scalars, __nv_bfloat16* shadow,
                              float l1, float l2, int rows, int cols, int depth) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* h_slices = reinterpret_cast<T*>(memory);
  T* x_slices = h_slices + STAGES * SLICE;
  const int across = (cols + TILE - 1) / TILE;
  const int row0 = blockIdx.x / across * TILE, col0 = blockIdx.x % across * TILE;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / 4 * M, warp_col = warp % 4 * N;
  const int slices = (depth + DEPTH - 1) / DEPTH;

  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < slices) {
      fetch(h_slices + s * SLICE, h, s, row0, rows, depth);
      fetch(x_slices + s * SLICE, x, s, col0, cols, depth);
    }
    commit();
  }
  float sum[M / 16][N / 8][4] = {};
  for (int s = 0; s < slices; ++s) {
    wait<STAGES - 2>();  // slice s is here ...
    __syncthreads();     // ... for all, and all are done with slice s - 1, whose place the next one takes
    const int next = s + STAGES - 1;
    if (next < slices) {
      fetch(h_slices + next % STAGES * SLICE, h, next, row0, rows, depth);
      fetch(x_slices + next % STAGES * SLICE, x, next, col0, cols, depth);
    }
    commit();
    // A lane's line in depth and column within four blocks: rows (0, 0), (0, 8), (8, 0), (8, 8) as (depth, row), and
    // columns (0, 0), (8, 0), (0, 8), (8, 8) as (depth, column).
    const T* hs = h_slices + s % STAGES * SLICE + warp_row + (lane / 16 * 8 + lane % 8) * LINE + lane / 8 % 2 * 8;
    const T* xs = x_slices + s % STAGES * SLICE + warp_col + (lane / 8 % 2 * 8 + lane % 8) * LINE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      uint32_t a[M / 16][4], b[N / 16][4];
#pragma unroll
      for (int m = 0; m < M / 16; ++m) turned(a[m], hs + k * LINE + 16 * m);
#pragma unroll
      for (int n = 0; n < N / 16; ++n) turned(b[n], xs + k * LINE + 16 * n);
#pragma unroll
      for (int m = 0; m < M / 16; ++m)
#pragma unroll
        for (int n = 0; n < N / 8; ++n) multiply(h, sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }

  // A lane holds columns 2t and 2t + 1 of rows g and g + 8 of each 16 x 8 block. Through shared memory each warp gets
  // whole lines, so that memory is read and written 512 bytes at a time.
  wait<0>();
  __syncthreads();
  float* tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int m = 0; m < M / 16; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        const int row = warp_row + 16 * m + 8 * half + lane / 4, col = warp_col + 8 * n + lane % 4 * 2;
        *reinterpret_cast<float2*>(tile + row * LINE + col) = make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
      }
  __syncthreads();

  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
  float* weight = params;
  float* velocity = params + (size_t)rows * cols;
  const int col = col0 + 4 * lane;
  constexpr int AT_ONCE = 8;  // lines of a warp whose reads are in flight together
  for (int first = warp; first < TILE; first += AT_ONCE * THREADS / 32) {
    float4 w[AT_ONCE], v[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int row = row0 + first + i * THREADS / 32;
      if (row >= rows || col >= cols) continue;  // cols is a multiple of 4
      const size_t at = (size_t)row * cols + col;
      w[i] = *reinterpret_cast<const float4*>(weight + at);
      v[i] = *reinterpret_cast<const float4*>(velocity + at);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int line = first + i * THREADS / 32, row = row0 + line;
      if (row >= rows || col >= cols) continue;
      const size_t at = (size_t)row * cols + col;
      const float4 g = *reinterpret_cast<const float4*>(tile + line * LINE + 4 * lane);
      v[i].x = stepped(v[i].x, w[i].x, g.x, alpha, momentum, rate, l1, l2);
      v[i].y = stepped(v[i].y, w[i].y, g.y, alpha, momentum, rate, l1, l2);
      v[i].z = stepped(v[i].z, w[i].z, g.z, alpha, momentum, rate, l1, l2);
      v[i].w = stepped(v[i].w, w[i].w, g.w, alpha, momentum, rate, l1, l2);
      w[i] = make_float4(w[i].x + v[i].x, w[i].y + v[i].y, w[i].z + v[i].z, w[i].w + v[i].w);
      *reinterpret_cast<float4*>(velocity + at) = v[i];
      *reinterpret_cast<float4*>(weight + at) = w[i];
      if (shadow) {
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(w[i].x, w[i].y), __floats2bfloat162_rn(w[i].z, w[i].w)};
        *reinterpret_cast<uint2*>(shadow + at) = *reinterpret_cast<uint2*>(pair);
      }
    }
  }
}

#define CONTRAST_STEP(NAME, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                        \
  NAME(float* params, const T* h, const T* x, const float* scalars, __nv_bfloat16* shadow, const float l1,        \
       const float l2, const int rows, const int cols, const int depth) {                                         \
    contrast_step<T>(params, h, x, scalars, shadow, l1, l2, rows, cols, depth);                                   \
  }
CONTRAST_STEP(contrast_step_bf16, __nv_bfloat16)
CONTRAST_STEP(contrast_step_f16, __half)
