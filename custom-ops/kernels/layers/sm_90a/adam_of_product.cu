// sm_90a/adam_of_product.cu: the step of Adam of a large matrix of weights whose gradient is a
// product of bf16 numbers, on capability 9.0: the gradient is stepped by where it is summed, and
// never is in memory. The rule is that of optimizer.cu, to some units in the last place: with a root
// and a quotient that round exactly arithmetic would bind.
//
//   g = delta' x;   w, m, v <- adam(w, g, m, v);   copy <- w, rounded to bf16
//
// arrays   delta: [batch, rows] and x: [batch, cols] bf16, as tensor maps of twice 64 columns by 64
//          rows; weight, mean, square: [rows, cols] f32 and copy: the same, bf16, as tensor maps of
//          32 columns by 64 rows. scalars: [2] f32, rate and momentum. steps: [1] i64, steps made
//          before
// scalars  rows and cols multiples of 8; arrays begin on 16 bytes. decays: whether weights decay.
//          subtiles: how many have room, 2 to 4
// launch   1-D grid of at most as many blocks as there are tiles of 128 x 128, one for each
//          multiprocessor; 384 threads
// shared   the subtiles and the ring of a PingPong, and 1 KB to align them
// cost     2 batch rows cols FLOP; 26 bytes a weight; operands once for each tile, from the
//          second-level cache
// NaN      propagates
// same     sums in one order on one device
// truth    adam_step_reference in src/layers/optimizer.rs

#include "layers/adam.cuh"
#include "layers/sm_90a/cd_subtile.cuh"
#include "layers/sm_90a/pingpong.cuh"

// Subtiles of TILE rows by COLS columns: weights, both moments and the copy.
struct AdamMaps {
  static constexpr int COLS = 32, PLANE = TILE * BLOCK_LINE, COPY_LINE = 2 * COLS, COPY = TILE * COPY_LINE;
  static constexpr int BYTES = 3 * PLANE + COPY, READ = 3 * PLANE;
  struct At {
    unsigned char *weights, *means, *squares, *copies;
  };
  const TensorMap &weights, &means, &squares, &copies;

  static __device__ At at(unsigned char* stage) { return At{stage, stage + PLANE, stage + 2 * PLANE, stage + 3 * PLANE}; }
  __device__ void prefetch(int row0, int col0) const {
    prefetch_block(&weights, col0, row0), prefetch_block(&means, col0, row0), prefetch_block(&squares, col0, row0);
  }
  __device__ void load(const At& to, int row0, int col0, uint64_t* here) const {
    copy_block(to.weights, &weights, col0, row0, here);
    copy_block(to.means, &means, col0, row0, here);
    copy_block(to.squares, &squares, col0, row0, here);
  }
  __device__ void store(const At& from, int row0, int col0) const {
    store_block(&weights, col0, row0, from.weights);
    store_block(&means, col0, row0, from.means);
    store_block(&squares, col0, row0, from.squares);
    store_block(&copies, col0, row0, from.copies);
  }
  // Two neighbours of the copy, in lines of 64 bytes as copies with swizzling take them.
  static __device__ __forceinline__ unsigned& copy_at(unsigned char* copies, int row, int col) {
    return *reinterpret_cast<unsigned*>(copies + row * COPY_LINE + (col / 8 ^ row / 2 % 4) * 16 + col % 8 * 2);
  }
};

struct Numbers {
  AdamRule rule;
  int rows, cols, batch, decays;
};

extern "C" __global__ void __launch_bounds__(384, 1)
adam_of_product_bf16(const __grid_constant__ TensorMap delta_map, const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                     const __grid_constant__ TensorMap mean_map, const __grid_constant__ TensorMap square_map,
                     const __grid_constant__ TensorMap copy_map, const float* scalars, const long long* steps,
                     const __grid_constant__ Numbers n, int subtiles) {
  using P = PingPong<__nv_bfloat16, AdamMaps, TILE, AdamMaps::COLS>;
  __shared__ float scales[2];
  const AdamMaps maps{weight_map, mean_map, square_map, copy_map};
  step_in_turns<P>(delta_map, x_map, maps, n.rows, n.cols, n.batch, 1, subtiles, [&] {
    if (threadIdx.x == 0) adam_scales(n.rule, *steps, scales);
    all_multiplied<128 * P::GROUPS>();
    const AdamAt adam(n.rule, scalars[0], scales);
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, pair_at = threadIdx.x % 4 * 2;
    return [=, &n](const AdamMaps::At& at, int, int, const float(&sum)[64], int first, auto wait) {
      wait();
#pragma unroll
      for (int from = 0; from < AdamMaps::COLS / 8; from += 2) {
        // Four pairs are read before the first is written.
        float2 w[4], m[4], v[4];
        auto each = [&](auto of) {
#pragma unroll
          for (int i = 0; i < 4; ++i) of(i, row + i % 2 * 8, 8 * (from + i / 2) + pair_at);
        };
        each([&](int i, int row, int col) {
          w[i] = two(entry<float>(at.weights, row, col)), m[i] = two(entry<float>(at.means, row, col)), v[i] = two(entry<float>(at.squares, row, col));
        });
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* g = sum + first + (from + i / 2) * 4 + i % 2 * 2;
          w[i].x = adam.step_near(w[i].x, g[0], m[i].x, v[i].x, n.decays), w[i].y = adam.step_near(w[i].y, g[1], m[i].y, v[i].y, n.decays);
        }
        each([&](int i, int row, int col) {
          two(entry<float>(at.weights, row, col)) = w[i], two(entry<float>(at.means, row, col)) = m[i], two(entry<float>(at.squares, row, col)) = v[i];
          AdamMaps::copy_at(at.copies, row, col) = narrowed<__nv_bfloat16>(w[i]);
        });
      }
    };
  });
}
