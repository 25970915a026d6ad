// patch_step.cu: one update of contrastive learning for a layer of patches: weights, velocity,
// biases and the copies that products read.
//
// The formulas and arrays are those of cd_update.cu with a matrix of weights for each patch:
// weight, velocity and copy are [patches, hidden, window_len], h is [2, batch, patches * hidden], x
// [2, batch, values]; windows are copied from where they lie.
//
// scalars  Numbers with rows = hidden and cols = window_len; Grid whose stride * depth, window *
//          depth, width * depth and hidden are multiples of 8
// launch   1-D: a block for each tile of each patch, then one for each 32 hidden and each 32
//          visible units; 256 threads
// shared, cost, NaN, same   as in cd_update.cu
// truth    patch_gradient_reference, weight_step_reference and bias_step_reference

#include "layers/cd_update.cuh"
#include "core/patches.cuh"

// Where the operands of a patch lie; see Whole in cd_update.cuh.
struct Window {
  const Grid& grid;
  int rows, cols, patch, origin;
  __device__ size_t h_line() const { return grid.units(); }
  __device__ size_t h_start() const { return (size_t)patch * rows; }
  __device__ size_t x_line() const { return grid.values; }
  template <typename S> __device__ long long x_at(int first) const {
    const int col = first + threadIdx.x % (S::TILE_N / S::CHUNK) * S::CHUNK;
    return col < cols ? origin + grid.entry(col) : -1;
  }
  template <typename S, typename T>
  __device__ void fetch_x(T* k_block, const T* x, int row0, int batch, int, long long at) const {
    fetch_mapped<S::CHUNK, DEPTH, S::TILE_N, S::LINE, THREADS>(
        k_block, x, [&](int line) { return row0 + line < batch ? x + (row0 + line) * x_line() : nullptr; }, at);
  }
};

#define PATCH_STEP(NAME, S, T, V)                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                        \
  NAME(float* weight, V* velocity, const T* h, const T* x, T* copy, float* hidden_state, float* visible_state,    \
       const float* scalars, long long* counter, const __grid_constant__ Numbers n,                               \
       const __grid_constant__ Grid g) {                                                                          \
    V* own = velocity ? velocity : reinterpret_cast<V*>(weight + (size_t)g.patches() * n.rows * n.cols);          \
    const Arguments<T, V> all{weight, own, h, x, copy, hidden_state, visible_state, scalars, counter};            \
    cd_update<S>(all, n, g.patches(), g.units(), g.values,                                                    \
                     [&](int patch) { return Window{g, n.rows, n.cols, patch, g.origin(patch)}; });               \
  }
PATCH_STEP(patch_step_large_bf16, Large1, __nv_bfloat16, __nv_bfloat16)
PATCH_STEP(patch_step_large_f16, Large1, __half, float)
PATCH_STEP(patch_step_large_f16x2, Large2, __half, float)
PATCH_STEP(patch_step_small_bf16, Small1, __nv_bfloat16, __nv_bfloat16)
PATCH_STEP(patch_step_small_f16, Small1, __half, float)
PATCH_STEP(patch_step_small_f16x2, Small2, __half, float)
PATCH_STEP(patch_step_high_bf16, High1, __nv_bfloat16, __nv_bfloat16)
PATCH_STEP(patch_step_high_f16, High1, __half, float)
PATCH_STEP(patch_step_high_f16x2, High2, __half, float)
