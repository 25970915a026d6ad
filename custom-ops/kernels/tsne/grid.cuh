// grid.cuh: where points are in a grid of G nodes a side, and the weights of the nodes around them.
#pragma once

// A coordinate in nodes from the first node.
__device__ __forceinline__ float in_nodes(float y, float middle, float inverse_h, unsigned G) {
  return (y - middle) * inverse_h + .5f * (float)(G - 1);
}

// The cell of a coordinate in nodes, which begins at a node and has another one on each side. NaN
// gives the first.
__device__ __forceinline__ float cell_of(float at, unsigned G) {
  return fminf(fmaxf(floorf(at), 1.f), (float)(G - 3));
}

// The weight of a node at this distance.
__device__ __forceinline__ float weight_at(float distance) {
  const float s = fabsf(distance), before = 1 - s, after = 2 - s;
  return before * after * (s < 1 ? .5f * (1 + s) : (1.f / 6) * (3 - s));
}

// The first of the four nodes around a coordinate, and their weights.
__device__ __forceinline__ unsigned nodes_around(float (&weights)[4], float at, unsigned G) {
  const float cell = cell_of(at, G), t = at - cell;
#pragma unroll
  for (int k = 0; k < 4; k++) weights[k] = weight_at(t - (float)(k - 1));
  return (unsigned)cell - 1;
}

// The four potentials of a grid of G × G nodes at a place in units of nodes.
__device__ __forceinline__ void interpolate(float (&sum)[4], const float4* potentials, float x, float y, unsigned G) {
  float across[4], down[4];
  const unsigned column = nodes_around(across, x, G), row = nodes_around(down, y, G);
#pragma unroll
  for (unsigned i = 0; i < 4; i++) sum[i] = 0;
#pragma unroll
  for (unsigned r = 0; r < 4; r++)
#pragma unroll
    for (unsigned c = 0; c < 4; c++) {
      const float w = down[r] * across[c];
      const float4 at = potentials[(size_t)(row + r) * G + column + c];
      sum[0] = fmaf(w, at.x, sum[0]), sum[1] = fmaf(w, at.y, sum[1]);
      sum[2] = fmaf(w, at.z, sum[2]), sum[3] = fmaf(w, at.w, sum[3]);
    }
}
