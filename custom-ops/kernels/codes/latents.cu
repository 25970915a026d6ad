// latents.cu: gradients and steps of a sparse autoencoder whose codes have few entries.
//
//   residual    r_gi = y_i - sum_k z_ik d_j(i,k) over the latents of groups 0 .. g;  r_i of the
//               last; errors_gi = scale sum of r_qi for q >= g; squares = sum r_gi^2 of each group
//               and row, then sum y_i^2
//   centre      out_i = x_i - bias, and a copy in T
//   dots        dots_ik = e_gi . d_j(i,k), g the group of the latent
//   use_sums    sums_pj = sum over uses e of latent j of values_pe
//   parts       of a latent with more uses than a STRETCH, the sums of g_j over each stretch of
//               them
//   gradients   g_j = sum over uses e of weight_e row_r(e)
//               + lengths_j d_j / |d_j|, then - (g_j . d_j) d_j where rows have length 1
//   step        a step of Adam along factor g_j, then d_j / |d_j|, and a copy in bf16
//
// arrays   T: rows, atoms: f32, f64 or bf16; V: all else, f64 for f64, else f32. indices, values,
//          dots: [m, s]; count: [m]; y, residual: [m, p] of V; errors: [G m, p] of T for G groups
//          of latents, or as below; squares: [G + 1, m] f64; atoms: [n, p]. x: [m, d], bias: [d];
//          copy: [m, d] of T, or null. offsets: [n + 1], entries: [m s], the uses: place e = row s
//          + k. sums: [planes, n]. rows: x, [batch, d], of use e the row (e / s) mod batch; or
//          errors, [(G + m / batch - 1) batch, d], of the first batch of codes those of each group,
//          and of the others theirs. state: [3, n, d] f32, parameters and moments; half: [n, d]
//          bf16 or null; lengths: [n] or null; decoder: [n, d], the rows d_j. partial: [2
//          windows][d] of V, a window being a STRETCH of entries. Contiguous; results overlap
//          nothing
// scalars  rule, and scalars: rate and factor; steps: steps before; unit: whether rows have length
//          1
// launch   residual, dots: a block a row; centre: any 1-D grid. use_sums: a warp a sum. parts: a
//          block a row of `partial`. gradients, step: a block a latent, of at least d / (PER W)
//          threads: see src/codes/latents/cuda.rs
// cost     residual, dots, sums of gradients: a row of p or d numbers an entry, from the second
//          cache, which binds; step 26 bytes a parameter, which the memory binds
// order    sums over a code run in its order, those over uses in theirs, in stretches: the same
//          bits in every run
// truth    src/codes/latents

#include "core/numbers.cuh"
#include "core/warp.cuh"
#include "layers/adam.cuh"

// Lists are padded to a multiple of AHEAD by entries of weight 0, whose loads then go together.
constexpr unsigned STRETCH = 256, MOST_WARPS = 32, AHEAD = 8;
// Very wide rows do not fit into registers: their loops stay loops.
template <int PER> constexpr int UNROLLED = PER <= 2 ? PER : 1;

// Groups of latents, the first to below at[0], the next to below at[1], the last to below n.
constexpr unsigned MOST_GROUPS = 16;
struct Groups {
  unsigned n, at[MOST_GROUPS];

  __device__ __forceinline__ unsigned of(unsigned latent) const {
    unsigned g = 0;
    while (g + 1 < n && latent >= at[g]) ++g;
    return g;
  }
};

// W neighbours, or one.
template <int W, typename T, typename V> __device__ __forceinline__ void load(const T* from, V (&v)[W]) {
  if constexpr (W == 1) {
    v[0] = wide(*from);
  } else if constexpr (W == 8 && sizeof(T) == 2) {
    const uint4 eight = *reinterpret_cast<const uint4*>(from);
    const __nv_bfloat162* const pairs = reinterpret_cast<const __nv_bfloat162*>(&eight);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float2 pair = __bfloat1622float2(pairs[q]);
      v[2 * q] = pair.x, v[2 * q + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int q = 0; q < W; q += 4) load4(from + q, reinterpret_cast<V(&)[4]>(v[q]));
  }
}
__device__ __forceinline__ void put(float* to, float v) { *to = v; }
__device__ __forceinline__ void put(double* to, double v) { *to = v; }
__device__ __forceinline__ void put(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }
template <int W, typename T, typename V> __device__ __forceinline__ void store(T* to, const V (&v)[W]) {
  if constexpr (W == 1) {
    put(to, v[0]);
  } else {
#pragma unroll
    for (int q = 0; q < W; q += 4) store4(to + q, reinterpret_cast<const V(&)[4]>(v[q]));
  }
}

// The sum over all threads of a block of whole warps, in all threads; `scratch` holds MOST_WARPS
// numbers.
template <typename S> __device__ __forceinline__ S block_sum(S x, S* scratch) {
  x = sum_of_warp(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  S sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += scratch[w];
  return sum;
}

// sum[] += the entries of a row from first to below end, for features f .. f + W - 1.
template <int W, typename T, typename V>
__device__ __forceinline__ void add_entries(V (&sum)[W], const unsigned* indices, const V* values, const T* atoms,
                                            unsigned first, unsigned end, unsigned f, unsigned n, unsigned p) {
  constexpr unsigned ROOM = 128;
  __shared__ unsigned at[ROOM];
  __shared__ V by[ROOM];
  for (; first < end; first += ROOM) {
    const unsigned here = min(ROOM, end - first);
    __syncthreads();
    const unsigned padded = (here + AHEAD - 1) / AHEAD * AHEAD;
    for (unsigned k = threadIdx.x; k < padded; k += blockDim.x) {
      const unsigned atom = indices[first + min(k, here - 1)];
      at[k] = min(atom, n - 1), by[k] = k < here && atom < n ? values[first + k] : V(0);
    }
    __syncthreads();
    if (f >= p) continue;
#pragma unroll(AHEAD)
    for (unsigned k = 0; k < padded; ++k) {
      V atom[W];
      load<W>(atoms + (size_t)at[k] * p + f, atom);
#pragma unroll
      for (int q = 0; q < W; ++q) sum[q] = fused(by[k], atom[q], sum[q]);
    }
  }
}

// MOST groups at most, or one.
template <typename T, typename V, int W, unsigned MOST>
__device__ __forceinline__ void residual(V* out, T* errors, double* squares, const unsigned* indices, const V* values,
                                         const unsigned* count, const V* y, const T* atoms, const Groups& groups,
                                         size_t m, unsigned n, unsigned s, unsigned p, V scale) {
  __shared__ unsigned ends[MOST];
  __shared__ double scratch[MOST_WARPS];
  const size_t row = blockIdx.x;
  const unsigned entries = min(count[row], s), t = threadIdx.x, G = MOST == 1 ? 1 : groups.n;
  indices += row * s, values += row * s;
  // Entries are in the order of latents: those of a group follow each other.
  if (t < G) ends[t] = entries;
  __syncthreads();
  for (unsigned k = t; G > 1 && k < entries; k += blockDim.x) {
    const unsigned g = groups.of(indices[k]), before = k > 0 ? groups.of(indices[k - 1]) : 0;
    for (unsigned q = before; q < g; ++q) ends[q] = k;
  }
  __syncthreads();
  constexpr int FEW = MOST <= 5 ? MOST : 1;
  double of_residual[MOST] = {}, of_y = 0;
  for (unsigned start = 0; start < p; start += blockDim.x * W) {
    const unsigned f = start + t * W;
    V sum[W] = {}, of[W] = {}, held[MOST][W];
    if (f < p) load<W>(y + row * p + f, of);
    // Few groups stay in registers.
#pragma unroll FEW
    for (unsigned g = 0; g < MOST; ++g) {
      // Without entries it is that of the groups before.
      if (g < G) add_entries<W>(sum, indices, values, atoms, g > 0 ? ends[g - 1] : 0, ends[g], f, n, p);
#pragma unroll
      for (int q = 0; q < W; ++q) {
        held[g][q] = of[q] - sum[q];
        of_residual[g] += (double)held[g][q] * (double)held[g][q];
      }
      if (f < p && g + 1 == G) store<W>(out + row * p + f, held[g]);
    }
    if (f >= p) continue;
    V later[W] = {};
#pragma unroll FEW
    for (unsigned g = MOST; g-- > 0;) {
      if (g >= G) continue;
      V scaled[W];
#pragma unroll
      for (int q = 0; q < W; ++q) later[q] += held[g][q], scaled[q] = scale * later[q];
      store<W>(errors + (g * m + row) * p + f, scaled);
    }
#pragma unroll
    for (int q = 0; q < W; ++q) of_y += (double)of[q] * (double)of[q];
  }
#pragma unroll FEW
  for (unsigned g = 0; g < MOST; ++g) {
    const double square = g < G ? block_sum(of_residual[g], scratch) : 0;
    if (t == 0 && g < G) squares[g * m + row] = square;
  }
  of_y = block_sum(of_y, scratch);
  if (t == 0) squares[G * m + row] = of_y;
}

template <typename T, typename V, int W>
__device__ __forceinline__ void centre(V* out, T* copy, const V* x, const V* bias, size_t m, unsigned d) {
  const size_t stride = (size_t)gridDim.x * blockDim.x, n = m * (d / W);
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const unsigned f = (unsigned)(i % (d / W)) * W;
    V of[W], less[W];
    load<W>(x + i * W, of), load<W>(bias + f, less);
#pragma unroll
    for (int q = 0; q < W; ++q) of[q] -= less[q];
    store<W>(out + i * W, of);
    if (copy) store<W>(copy + i * W, of);
  }
}

template <typename T, typename V, int W>
__device__ __forceinline__ void dots(V* out, const unsigned* indices, const unsigned* count, const T* rows,
                                     const T* atoms, const Groups& groups, size_t m, unsigned n, unsigned s, unsigned p) {
  const size_t row = blockIdx.x;
  const unsigned entries = min(count[row], s), lane = threadIdx.x % 32, warps = blockDim.x / 32;
  // Two entries of a warp at a time, neighbours: most are of one group.
  for (unsigned k = threadIdx.x / 32 * 2; k < entries; k += 2 * warps) {
    const bool both = k + 1 < entries;
    const unsigned first = indices[row * s + k], second = both ? indices[row * s + k + 1] : first;
    const T* const a = atoms + (size_t)min(first, n - 1) * p;
    const T* const b = atoms + (size_t)min(second, n - 1) * p;
    const unsigned of_first = groups.of(first), of_second = groups.of(second);
    const T* const mine = rows + (of_first * m + row) * p;
    const size_t apart = (of_second - of_first) * m * p;
    V sums[2] = {};
#pragma unroll 2
    for (unsigned f = lane * W; f < p; f += 32 * W) {
      V x[W], of_a[W], of_b[W];
      load<W>(a + f, of_a), load<W>(b + f, of_b), load<W>(mine + f, x);
#pragma unroll
      for (int q = 0; q < W; ++q) sums[0] = fused(x[q], of_a[q], sums[0]);
      if (apart > 0) load<W>(mine + apart + f, x);
#pragma unroll
      for (int q = 0; q < W; ++q) sums[1] = fused(x[q], of_b[q], sums[1]);
    }
    sums[0] = sum_of_warp(sums[0]), sums[1] = sum_of_warp(sums[1]);
    if (lane == 0) {
      out[row * s + k] = first < n ? sums[0] : V(0);
      if (both) out[row * s + k + 1] = second < n ? sums[1] : V(0);
    }
  }
  for (unsigned k = entries + threadIdx.x; k < s; k += blockDim.x) out[row * s + k] = 0;
}

template <typename V>
__device__ __forceinline__ void use_sums(V* sums, const V* values, const unsigned* offsets, const unsigned* entries,
                                         size_t of_plane, unsigned n, unsigned planes) {
  const size_t at = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (at >= (size_t)planes * n) return;
  const unsigned j = (unsigned)(at % n), start = offsets[j], end = offsets[j + 1];
  const V* const plane = values + at / n * of_plane;
  double sum = 0;
  for (unsigned e = start + lane; e < end; e += 32) sum += (double)plane[entries[e]];
  sum = sum_of_warp(sum);
  if (lane == 0) sums[at] = (V)sum;
}

// Which row a use is of: of row r of the codes, r mod batch; with groups, of the first batch that
// of a latent's group, and of the others those after the groups.
struct Place {
  unsigned batch, own, later;
  bool grouped;

  __device__ __forceinline__ Place(unsigned batch, const Groups& groups, unsigned latent)
      : batch(batch), own(groups.of(latent) * batch), later(groups.n * batch - batch), grouped(groups.n > 0) {}
  __device__ __forceinline__ size_t operator()(unsigned r) const {
    return grouped ? r + (r < batch ? own : later) : r % batch;
  }
};

// sum[] += over the uses of entries first .. end, for numbers f of a thread.
template <typename T, typename V, int W, int PER>
__device__ __forceinline__ void add_uses(V (&sum)[PER][W], const T* rows, const V* weights, const unsigned* entries,
                                         unsigned first, unsigned end, unsigned s, const Place& place, unsigned d) {
  constexpr unsigned ROOM = 64;
  __shared__ unsigned at[ROOM];
  __shared__ V by[ROOM];
  for (unsigned start = first; start < end; start += ROOM) {
    const unsigned here = min(ROOM, end - start);
    __syncthreads();
    const unsigned padded = (here + AHEAD - 1) / AHEAD * AHEAD;
    for (unsigned k = threadIdx.x; k < padded; k += blockDim.x) {
      const unsigned e = entries[start + min(k, here - 1)];
      at[k] = place(e / s), by[k] = k < here ? weights[e] : V(0);
    }
    __syncthreads();
#pragma unroll(AHEAD)
    for (unsigned k = 0; k < padded; ++k) {
#pragma unroll UNROLLED<PER>
      for (int i = 0; i < PER; ++i) {
        const unsigned f = (threadIdx.x + i * blockDim.x) * W;
        if (f >= d) continue;
        V row[W];
        load<W>(rows + (size_t)at[k] * d + f, row);
#pragma unroll
        for (int q = 0; q < W; ++q) sum[i][q] = fused(by[k], row[q], sum[i][q]);
      }
    }
  }
}

// The first j in 0 .. n whose list begins at `place` or later.
__device__ __forceinline__ unsigned first_from(const unsigned* offsets, unsigned n, unsigned place) {
  unsigned low = 0, high = n;
  while (low < high) {
    const unsigned middle = low + (high - low) / 2;
    if (offsets[middle] < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Where the sums of the stretch that begins at `start` are, the first of its latent or a later one.
// No two long latents begin in one window, nor do two later stretches.
__device__ __forceinline__ unsigned slot(unsigned start, bool first) { return start / STRETCH * 2 + first; }

template <typename T, typename V, int W, int PER>
__device__ __forceinline__ void parts(V* partial, const unsigned* offsets, const unsigned* entries, const V* weights,
                                      const T* rows, const Groups& groups, unsigned n, unsigned s, unsigned batch,
                                      unsigned d) {
  const unsigned window = blockIdx.x / 2 * STRETCH;
  const bool is_first = blockIdx.x % 2;
  // The latent that crosses the end of the window, or its beginning.
  const unsigned after = first_from(offsets, n, is_first ? window + STRETCH : max(window, 1u));
  if (after == 0) return;
  const unsigned j = after - 1, begin = offsets[j], end = offsets[j + 1];
  if (end - begin <= STRETCH) return;
  unsigned start = begin;
  if (is_first) {
    if (begin < window) return;
  } else {
    if (begin >= window) return;
    start = begin + (window - begin + STRETCH - 1) / STRETCH * STRETCH;
    if (start >= end) return;
  }
  V sum[PER][W] = {};
  add_uses<T, V, W, PER>(sum, rows, weights, entries, start, min(start + STRETCH, end), s,
                            Place(batch, groups, j), d);
#pragma unroll UNROLLED<PER>
  for (int i = 0; i < PER; ++i) {
    const unsigned f = (threadIdx.x + i * blockDim.x) * W;
    if (f < d) store<W>(partial + (size_t)blockIdx.x * d + f, sum[i]);
  }
}

// What latents are summed from, and their sizes: Sums of src/codes/latents/cuda.rs.
struct Sums {
  const unsigned *offsets, *entries;
  const void *weights, *rows, *partial, *lengths;
  unsigned n, s, batch, d, unit;
  Groups groups;
};

// g_j of a latent whose row of the decoder a thread has in `atom`, without what lies along it.
template <typename T, typename V, int W, int PER>
__device__ __forceinline__ void gradient(V (&g)[PER][W], const V (&atom)[PER][W], const Sums& of, unsigned j, V* scratch) {
  const unsigned begin = of.offsets[j], end = of.offsets[j + 1], d = of.d;
  if (end - begin <= STRETCH) {
    add_uses<T, V, W, PER>(g, (const T*)of.rows, (const V*)of.weights, of.entries, begin, end, of.s,
                              Place(of.batch, of.groups, j), d);
  } else {
    for (unsigned start = begin; start < end; start += STRETCH) {
      const V* const part = (const V*)of.partial + (size_t)slot(start, start == begin) * d;
#pragma unroll UNROLLED<PER>
      for (int i = 0; i < PER; ++i) {
        const unsigned f = (threadIdx.x + i * blockDim.x) * W;
        if (f >= d) continue;
        V more[W];
        load<W>(part + f, more);
#pragma unroll
        for (int q = 0; q < W; ++q) g[i][q] += more[q];
      }
    }
  }
  if (of.lengths) {
    V square = 0;
#pragma unroll UNROLLED<PER>
    for (int i = 0; i < PER; ++i)
#pragma unroll
      for (int q = 0; q < W; ++q) square = fused(atom[i][q], atom[i][q], square);
    square = block_sum(square, scratch);
    const V factor = square > 0 ? ((const V*)of.lengths)[j] / sqrt(square) : V(0);
#pragma unroll UNROLLED<PER>
    for (int i = 0; i < PER; ++i)
#pragma unroll
      for (int q = 0; q < W; ++q) g[i][q] = fused(factor, atom[i][q], g[i][q]);
  }
  if (of.unit) {
    V along = 0;
#pragma unroll UNROLLED<PER>
    for (int i = 0; i < PER; ++i)
#pragma unroll
      for (int q = 0; q < W; ++q) along = fused(g[i][q], atom[i][q], along);
    along = block_sum(along, scratch);
#pragma unroll UNROLLED<PER>
    for (int i = 0; i < PER; ++i)
#pragma unroll
      for (int q = 0; q < W; ++q) g[i][q] = fused(-along, atom[i][q], g[i][q]);
  }
}

template <typename T, typename V, int W, int PER>
__device__ __forceinline__ void gradients(V* out, const V* decoder, const Sums& of) {
  __shared__ V scratch[MOST_WARPS];
  const size_t j = blockIdx.x;
  V g[PER][W] = {}, atom[PER][W] = {};
  if (decoder) {
#pragma unroll UNROLLED<PER>
    for (int i = 0; i < PER; ++i) {
      const unsigned f = (threadIdx.x + i * blockDim.x) * W;
      if (f < of.d) load<W>(decoder + j * of.d + f, atom[i]);
    }
  }
  gradient<T, V, W, PER>(g, atom, of, (unsigned)j, scratch);
#pragma unroll UNROLLED<PER>
  for (int i = 0; i < PER; ++i) {
    const unsigned f = (threadIdx.x + i * blockDim.x) * W;
    if (f < of.d) store<W>(out + j * of.d + f, g[i]);
  }
}

template <typename T, int W, int PER>
__device__ __forceinline__ void step(float* state, __nv_bfloat16* half, const Sums& of, const float* scalars,
                                     const long long* steps, const AdamRule& rule) {
  __shared__ float scratch[MOST_WARPS], scales[2];
  const size_t j = blockIdx.x, plane = (size_t)of.n * of.d;
  float g[PER][W] = {}, w[PER][W] = {}, m[PER][W], v[PER][W];
  // The state comes while rows are summed.
#pragma unroll UNROLLED<PER>
  for (int i = 0; i < PER; ++i) {
    const unsigned f = (threadIdx.x + i * blockDim.x) * W;
    const float* const at = state + j * of.d + f;
    if (f < of.d) load<W>(at, w[i]), load<W>(at + plane, m[i]), load<W>(at + 2 * plane, v[i]);
  }
  if (threadIdx.x == 0) adam_scales(rule, *steps, scales);
  gradient<T, float, W, PER>(g, w, of, (unsigned)j, scratch);
  __syncthreads();
  const AdamAt at(rule, scalars[0], scales);
  const float factor = scalars[1];
  float square = 0;
#pragma unroll UNROLLED<PER>
  for (int i = 0; i < PER; ++i) {
    if ((threadIdx.x + i * blockDim.x) * W >= of.d) continue;
#pragma unroll
    for (int q = 0; q < W; ++q) {
      w[i][q] = at.step(w[i][q], g[i][q] * factor, m[i][q], v[i][q], false);
      square = fused(w[i][q], w[i][q], square);
    }
  }
  float norm = 1;
  if (of.unit) {
    square = block_sum(square, scratch);
    norm = square > 0 ? sqrtf(square) : 1.f;
  }
#pragma unroll UNROLLED<PER>
  for (int i = 0; i < PER; ++i) {
    const unsigned f = (threadIdx.x + i * blockDim.x) * W;
    if (f >= of.d) continue;
    if (of.unit) {
#pragma unroll
      for (int q = 0; q < W; ++q) w[i][q] = w[i][q] / norm;
    }
    float* const to = state + j * of.d + f;
    store<W>(to, w[i]), store<W>(to + plane, m[i]), store<W>(to + 2 * plane, v[i]);
    if (half) store<W>(half + j * of.d + f, w[i]);
  }
}

#define USE_SUMS(SUFFIX, V)                                                                                            \
  extern "C" __global__ void use_sums_##SUFFIX(V* sums, const V* values, const unsigned* offsets,                      \
                                               const unsigned* entries, const size_t of_plane, const unsigned n,       \
                                               const unsigned planes) {                                                \
    use_sums<V>(sums, values, offsets, entries, of_plane, n, planes);                                                  \
  }
USE_SUMS(f32, float)
USE_SUMS(f64, double)

#define RESIDUAL(NAME, SUFFIX, T, V, W, MOST)                                                                          \
  extern "C" __global__ void __launch_bounds__(512) NAME##_##SUFFIX##_##W(                                             \
      V* out, T* errors, double* squares, const unsigned* indices, const V* values, const unsigned* count, const V* y, \
      const T* atoms, const Groups groups, const size_t m, const unsigned n, const unsigned s, const unsigned p,       \
      const double scale) {                                                                                            \
    residual<T, V, W, MOST>(out, errors, squares, indices, values, count, y, atoms, groups, m, n, s, p, (V)scale);     \
  }
#define ROWS(SUFFIX, T, V, W)                                                                                          \
  RESIDUAL(residual, SUFFIX, T, V, W, 1)                                                                               \
  RESIDUAL(residuals_of_5, SUFFIX, T, V, W, 5)                                                                         \
  RESIDUAL(residuals, SUFFIX, T, V, W, MOST_GROUPS)                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      centre_##SUFFIX##_##W(V* out, T* copy, const V* x, const V* bias, const size_t m, const unsigned d) {            \
    centre<T, V, W>(out, copy, x, bias, m, d);                                                                         \
  }
#define DOTS(SUFFIX, T, V, W)                                                                                          \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      dots_##SUFFIX##_##W(V* out, const unsigned* indices, const unsigned* count, const T* rows, const T* atoms,       \
                          const Groups groups, const size_t m, const unsigned n, const unsigned s, const unsigned p) { \
    dots<T, V, W>(out, indices, count, rows, atoms, groups, m, n, s, p);                                               \
  }
ROWS(f32, float, float, 1)
ROWS(f32, float, float, 4)
ROWS(bf16, __nv_bfloat16, float, 1)
ROWS(bf16, __nv_bfloat16, float, 8)
ROWS(f64, double, double, 1)
DOTS(f32, float, float, 1)
DOTS(f32, float, float, 4)
DOTS(bf16, __nv_bfloat16, float, 1)
DOTS(bf16, __nv_bfloat16, float, 8)
DOTS(f64, double, double, 1)

// Threads of a block of a form: its registers allow so many.
#define THREADS_OF(W, PER) __launch_bounds__(W > 1 && PER <= 2 ? 512 : 1024)

#define LATENTS(SUFFIX, T, V, W, PER)                                                                                  \
  extern "C" __global__ void THREADS_OF(W, PER)                                                                        \
      parts_##SUFFIX##_##W##_##PER(V* partial, const unsigned* offsets, const unsigned* entries, const V* weights,     \
                                   const T* rows, const Groups groups, const unsigned n, const unsigned s,             \
                                   const unsigned batch, const unsigned d) {                                           \
    parts<T, V, W, PER>(partial, offsets, entries, weights, rows, groups, n, s, batch, d);                             \
  }                                                                                                                    \
  extern "C" __global__ void THREADS_OF(W, PER)                                                                        \
      gradients_##SUFFIX##_##W##_##PER(V* out, const V* decoder, const Sums of) {                                      \
    gradients<T, V, W, PER>(out, decoder, of);                                                                         \
  }
#define STEPS(SUFFIX, T, W, PER)                                                                                       \
  LATENTS(SUFFIX, T, float, W, PER)                                                                                    \
  extern "C" __global__ void THREADS_OF(W, PER)                                                                        \
      step_##SUFFIX##_##W##_##PER(float* state, __nv_bfloat16* half, const Sums of, const float* scalars,              \
                                  const long long* steps, const AdamRule rule) {                                       \
    step<T, W, PER>(state, half, of, scalars, steps, rule);                                                            \
  }
#define ALL_STEPS(SUFFIX, T)                                                                                           \
  STEPS(SUFFIX, T, 8, 1) STEPS(SUFFIX, T, 8, 2) STEPS(SUFFIX, T, 8, 8) STEPS(SUFFIX, T, 1, 1) STEPS(SUFFIX, T, 1, 64)
ALL_STEPS(f32, float)
ALL_STEPS(bf16, __nv_bfloat16)
LATENTS(f64, double, double, 1, 1)
LATENTS(f64, double, double, 1, 64)
