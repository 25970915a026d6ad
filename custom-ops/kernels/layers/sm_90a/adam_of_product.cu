// sm_90a/adam_of_product.cu: the step of Adam of a large matrix of weights whose gradient is a
// product of bf16 numbers, on capability 9.0: the gradient is stepped by where it is summed, and
// never is in memory. The rule is that of optimizer.cu, to some units in the last place: with a
// root and a quotient that round exactly arithmetic would bind.
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
#include "layers/sm_90a/narrow_subtile.cuh"
#include "layers/sm_90a/pingpong.cuh"

struct Numbers {
  AdamRule rule;
  int rows, cols, batch, decays;
};

extern "C" __global__ void __launch_bounds__(384, 1)
adam_of_product_bf16(const __grid_constant__ TensorMap delta_map, const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                     const __grid_constant__ TensorMap mean_map, const __grid_constant__ TensorMap square_map,
                     const __grid_constant__ TensorMap copy_map, const float* scalars, const long long* steps,
                     const __grid_constant__ Numbers n, int subtiles) {
  using Maps = NarrowMaps<3, 1>;
  using P = PingPong<__nv_bfloat16, Maps, TILE, Maps::COLS>;
  __shared__ float scales[2];
  const Maps maps{{&weight_map, &mean_map, &square_map}, {&copy_map}};
  step_in_turns<P>(delta_map, x_map, maps, n.rows, n.cols, n.batch, 1, subtiles, [&] {
    if (threadIdx.x == 0) adam_scales(n.rule, *steps, scales);
    all_multiplied<128 * P::GROUPS>();
    const AdamAt adam(n.rule, scalars[0], scales);
    return [=, &n](const Maps::At& at, int, int, const float(&sum)[64], int first, auto wait) {
      wait();
      at.step(sum, first, [&](float2(&of)[3], unsigned(&copy)[1], const float* g) {
        of[0].x = adam.step_near(of[0].x, g[0], of[1].x, of[2].x, n.decays);
        of[0].y = adam.step_near(of[0].y, g[1], of[1].y, of[2].y, n.decays);
        copy[0] = narrowed<__nv_bfloat16>(of[0]);
      });
    };
  });
}
