// pursuit_steps.cu: orthogonal matching pursuit of many signals step by step, for sizes whose
// directions do not fit into a multiprocessor.
//
//   begin_pursuit   r = y, scaled by a power of two to a norm from 1 to 2
//   best_atoms      i = argmax |d^_i . r|; ties go to the lowest. The products are made from the
//                   residuals themselves, in the tensor cores, and never written
//   pursuit_step    where an atom chosen before is still ahead, which rounding can do, i = argmax
//                   over the others
//                   rho^2 = 1 - sum_j (u_j . d^_i)^2,  u = (d^_i - sum_j (u_j . d^_i) u_j) / rho,  r <- r - (d^_i . r / rho) u
//
// A direction u_j is kept by its coefficients z_j in the chosen atoms, row j of a triangle: u_j .
// d^_i = z_j . G_Ii needs no more than entries of G, and x <- x + (d^_i . r / rho) z.
//
// arrays   a Steps, by value; none overlaps another. `lists` are the signals still pursued, by step
//          in turn
// launch   256 threads. begin_pursuit: a warp a signal. Then for each step best_atoms, grid
//          (signals / TILE, splits of the atoms), and pursuit_step_LANES, so many threads a signal;
//          shared memory as in src/codes/pursuit/cuda/steps.rs. Surplus blocks exit
// cost     a step: 2 m n p FLOP three times over in the tensor cores; k^2 / 2 + k p multiply-adds
//          and k rows of D^ a signal
// ends     as bomp.cu; a signal that has ended leaves its list
// order    where in a list a signal stands may differ from run to run, no sum depends on it: the
//          same bits on every run
// truth    omp_reference in src/codes/pursuit/reference.rs; tests/parity/pursuit

#include "core/part_products.cuh"
#include "codes/pursuit.cuh"

// Field for field Steps in src/codes/pursuit/cuda/steps.rs.
struct Steps {
  const float* signals;         // [m, p]
  const float* unit;            // [width, line]
  const __half* unit_halves;    // [2, width, line]
  const float* gram;            // [width, width]
  const float* inverse_norms;   // [n]
  const float* targets;         // [m], for TARGET_EACH
  float* residuals;             // [m, line], of scaled signals
  __half* halves;               // [2, m, line], their parts, scaled again
  float4* states;               // [m]: State
  float* triangles;             // [m, s (s + 1) / 2]: row j of a signal's holds z_j
  unsigned long long* best;     // [m]: bits of the largest product, then the complement of its atom; 0 for none
  unsigned* lists;              // [2, m]
  unsigned* left;               // [s + 1]: signals in the list of a step, 0 to begin with
  unsigned* indices;            // [m, s]
  float* values;                // [m, s]
  unsigned* counts;             // [m]
  unsigned* refused;            // [3], see Refused
  double target;                // for TARGET_ABSOLUTE and TARGET_RELATIVE
  size_t m;
  unsigned p, line, width, s, target_kind, step;
};

// What a step needs of a scaled signal; the signal is 2^power times as large.
struct State {
  float least, limit, energy;  // a correlation that is rounding; |r|^2 that ends the pursuit, and as it is
  int power;
};

__device__ __forceinline__ State state_of(const float4& x) { return {x.x, x.y, x.z, __float_as_int(x.w)}; }
__device__ __forceinline__ float4 packed(const State& x) {
  return make_float4(x.least, x.limit, x.energy, __int_as_float(x.power));
}

// Parts of residuals are those of residuals of a norm near 2^this: no entry is beyond f16, and
// small ones have low parts.
constexpr int NORM_POWER = 12;

// 2^n for n from -126 to 127.
__device__ __forceinline__ float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

// x = m 2^n with m from 1 to 2: n, for normal x above 0.
__device__ __forceinline__ int exponent_of(float x) { return (__float_as_int(x) >> 23) - 127; }

// Adds the signals of those threads of a block that say so to the list of `step`.
__device__ __forceinline__ void append(const Steps& of, unsigned step, size_t signal, bool speaks) {
  __shared__ unsigned going, base;
  if (threadIdx.x == 0) going = 0;
  __syncthreads();
  unsigned slot = 0;
  if (speaks) slot = atomicAdd(&going, 1u);
  __syncthreads();
  if (threadIdx.x == 0 && going > 0) base = atomicAdd(of.left + step, going);
  __syncthreads();
  if (speaks) of.lists[step % 2 * of.m + base + slot] = (unsigned)signal;
}

extern "C" __global__ void __launch_bounds__(256) begin_pursuit(const __grid_constant__ Steps of) {
  const unsigned lane = threadIdx.x & 31;
  const size_t signal = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  bool goes_on = false;
  if (signal < of.m) {
    const float* const y = of.signals + signal * of.p;
    const double norm = norm_by_warp(y, of.p);
    const bool finite = (float)norm < CUDART_INF_F;
    if (!finite && lane == 0) of.refused[REFUSED_SIGNAL] = 1;
    for (unsigned l = lane; l < of.s; l += 32) of.indices[signal * of.s + l] = 0, of.values[signal * of.s + l] = 0;
    if (lane == 0) of.counts[signal] = 0, of.best[signal] = 0;
    if (finite && norm > 0) {
      State state;
      state.power = ilogb(norm);
      const double scaled = scalbn(norm, -state.power);
      state.energy = (float)(scaled * scaled);
      state.least = 16 * epsilon<float>() * (float)scaled;
      state.limit = limit_of(of, signal, (float)norm) * state.energy;
      goes_on = state.energy > state.limit;
      if (lane == 0) of.states[signal] = packed(state);
      for (unsigned f = lane; f < of.line; f += 32) {
        const float r = f < of.p ? (float)scalbn((double)y[f], -state.power) : 0.f;
        of.residuals[signal * of.line + f] = r;
        in_parts(r * power_of_two(NORM_POWER), of.halves[signal * of.line + f], of.halves[(of.m + signal) * of.line + f]);
      }
    }
  }
  append(of, 0, signal, goes_on && lane == 0);
}

// Shared memory: STAGES k-blocks of both parts of TILE atoms, HALF_LINE apart, each followed by a
// k-block of the rows, or, RESIDENT, all of the rows behind the last, DEPTH times the rounds + PAD
// apart.
template <bool RESIDENT, int STAGES>
__device__ __forceinline__ void best_atoms(const Steps& of) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ unsigned signals[TILE];
  constexpr int K_BLOCK = 2 * TILE * HALF_LINE;
  const unsigned count = of.left[of.step], first = blockIdx.x * TILE;
  if (first >= count) return;
  __half* const k_blocks = reinterpret_cast<__half*>(shared);
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const unsigned at_row = warp / 4 * 64, at_atom = warp % 4 * 32;
  const unsigned rounds = (of.line + DEPTH - 1) / DEPTH, tiles = of.width / TILE;
  const unsigned tile0 = tiles * blockIdx.y / gridDim.y, tile1 = tiles * (blockIdx.y + 1) / gridDim.y;
  const unsigned row_line = RESIDENT ? rounds * DEPTH + PAD : HALF_LINE;
  __half* const rows = k_blocks + STAGES * K_BLOCK;
  if (threadIdx.x < TILE)
    signals[threadIdx.x] = first + threadIdx.x < count ? of.lists[of.step % 2 * of.m + first + threadIdx.x] : NO_LINE;
  __syncthreads();

  auto load_rows = [&](__half* to, unsigned at) {
    load_halves<true>(to, row_line, of.halves, of.m, of.line, at, 0, signals);
  };
  if (RESIDENT) {
    for (unsigned round = 0; round < rounds; ++round) load_rows(rows + round * DEPTH, round * DEPTH);
    commit();
  }

  // Of row r 16 + half 8 + lane / 4 of this warp's, at 2 r + half; over the atoms that this lane
  // has. Places are atoms, counted from this lane's first.
  float top[8] = {};
  unsigned place[8] = {};
  float sum[4][4][4];
  unsigned round = 0, base = 0, next_round = 0, next_tile = tile0;
  auto k_block_of = [&](int s) { return k_blocks + (size_t)(s % STAGES) * K_BLOCK * (RESIDENT ? 1 : 2); };
  auto start = [&](int s) {
    load_halves<false>(k_block_of(s), HALF_LINE, of.unit_halves, of.width, of.line, next_round * DEPTH, next_tile * TILE);
    if (!RESIDENT) load_rows(k_block_of(s) + K_BLOCK, next_round * DEPTH);
    if (++next_round == rounds) next_round = 0, ++next_tile;
  };
  auto use = [&](int s) {
    if (round == 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) sum[i / 16][i / 4 % 4][i % 4] = 0;
    }
    multiply_k_block<false>(sum, RESIDENT ? rows + round * DEPTH : k_block_of(s) + K_BLOCK, row_line, k_block_of(s));
    if (++round < rounds) return;
    round = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int row = i / 8, c = i / 2 % 4, q = i % 2;
      const float x = sum[row / 2][c][row % 2 * 2 + q];
      if (fabsf(x) > fabsf(top[row])) top[row] = x, place[row] = base + c * 8 + q;
    }
    base += TILE;
  };
  pipeline<STAGES>((tile1 - tile0) * rounds, start, use);

#pragma unroll
  for (int row = 0; row < 8; ++row) {
    const unsigned atom = tile0 * TILE + at_atom + lane % 4 * 2 + place[row];
    unsigned long long key = top[row] == 0 ? 0 : (unsigned long long)__float_as_uint(fabsf(top[row])) << 32 | ~atom;
#pragma unroll
    for (int other = 1; other < 4; other *= 2) key = max(key, __shfl_xor_sync(ALL, key, other));
    const unsigned signal = signals[at_row + row * 8 + lane / 4];
    if (lane % 4 == 0 && key > 0 && signal != NO_LINE) atomicMax(of.best + signal, key);
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) best_atoms_resident(const __grid_constant__ Steps of) {
  best_atoms<true, 3>(of);
}
extern "C" __global__ void __launch_bounds__(256, 2) best_atoms_streamed(const __grid_constant__ Steps of) {
  best_atoms<false, 2>(of);
}

// Threads that have a signal: 16 or all 32 of a warp.
template <int LANES>
struct Team {
  const unsigned lane = threadIdx.x % LANES;
  const unsigned mask = LANES == 32 ? ALL : 0xffffu << threadIdx.x / LANES % 2 * LANES;

  __device__ __forceinline__ float sum(float x) const {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x += __shfl_xor_sync(mask, x, step);
    return x;
  }
  __device__ __forceinline__ void sync() const { __syncwarp(mask); }
};

// What a signal has in shared memory: numbers of each step, and a block of a triangle.
template <int LANES>
struct Scratch {
  struct Chosen {
    float z;
    unsigned atom;
  };
  Chosen* of_step;
  float* along;
  float (*block)[LANES + 1];

  static __device__ constexpr unsigned numbers(unsigned s) { return 3 * s + s % 2 + LANES * (LANES + 1); }
  __device__ __forceinline__ Scratch(float* at, unsigned s)
      : of_step(reinterpret_cast<Chosen*>(at)), along(at + 2 * s),
        block(reinterpret_cast<float(*)[LANES + 1]>(at + 3 * s + s % 2)) {}
};

// d^ . r of this team's signal, whose first features are in `now`.
template <int LANES>
__device__ __forceinline__ float product(const Team<LANES>& team, const float* atom, const float* r, const float (&now)[4],
                                         unsigned line) {
  float sum = 0;
  for (unsigned f = team.lane * 4; f < line; f += 4 * LANES) {
    float d[4], x[4];
    load4(atom + f, d);
    if (f < 4 * LANES) memcpy(x, now, sizeof x);
    else load4(r + f, x);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum = fmaf(d[e], x[e], sum);
  }
  return team.sum(sum);
}

// Entries of a row of a triangle before it.
__device__ __forceinline__ unsigned before_row(unsigned j) { return j * (j + 1) / 2; }

// A step of one signal by its team. One function for each line of the head.
template <int LANES>
struct Step {
  const Steps& of;
  const Team<LANES>& team;
  const Scratch<LANES>& own;
  const size_t signal;
  const unsigned lane, k, s, line;
  float* const r;
  float* const triangle;
  State state;
  float now[4];      // the first features of r that this lane has
  unsigned i;        // the atom, and its product with r
  float alpha;
  float inverse, move;  // 1 / rho, alpha / rho

  __device__ __forceinline__ Step(const Steps& steps, const Team<LANES>& mine, const Scratch<LANES>& scratch, size_t at)
      : of(steps), team(mine), own(scratch), signal(at), lane(team.lane), k(of.step), s(of.s), line(of.line),
        r(of.residuals + signal * line), triangle(of.triangles + signal * before_row(s)),
        state(state_of(of.states[signal])), now{} {
    if (lane * 4 < line) load4(r + lane * 4, now);
  }

  // i = argmax |d^_i . r|, from `best` or, where that was chosen before, anew: whether there is one
  // above rounding.
  __device__ __forceinline__ bool choose() {
    const unsigned long long key = of.best[signal];
    i = ~(unsigned)key;
    bool again = false;
    for (unsigned j = lane; j < k; j += LANES) {
      const unsigned atom = of.indices[signal * s + j];
      own.of_step[j].atom = atom;
      again |= atom == i;
    }
    team.sync();
    if (lane == 0) of.best[signal] = 0;
    if (key == 0) return false;
    alpha = product<LANES>(team, of.unit + (size_t)i * line, r, now, line);
    if (!(fabsf(alpha) > state.least)) return false;
    if (!__any_sync(team.mask, again)) return true;
    alpha = 0;
    for (unsigned j = 0; j < of.width; ++j) {
      bool chosen = false;
      for (unsigned l = lane; l < k; l += LANES) chosen |= own.of_step[l].atom == j;
      if (__any_sync(team.mask, chosen)) continue;
      const float other = product<LANES>(team, of.unit + (size_t)j * line, r, now, line);
      if (fabsf(other) > fabsf(alpha)) alpha = other, i = j;
    }
    return fabsf(alpha) > state.least;
  }

  // along_j = u_j . d^_i, with entries of G in z meanwhile, and rho: whether that is above
  // rounding. The last block of the triangle stays in shared memory.
  __device__ __forceinline__ bool project() {
    for (unsigned j = lane; j < k; j += LANES) own.of_step[j].z = of.gram[(size_t)i * of.width + own.of_step[j].atom];
    float length = 0;
    for (unsigned j0 = 0; j0 < k; j0 += LANES) {
      float sum = 0;
      const unsigned rows = min(LANES, k - j0);
      for (unsigned l0 = 0; l0 <= j0; l0 += LANES) {
        const float* at = triangle + before_row(j0) + l0 + lane;
#pragma unroll 4
        for (unsigned j = 0; j < rows; ++j) {
          own.block[j][lane] = l0 + lane <= j0 + j ? *at : 0.f;
          at += j0 + j + 1;
        }
        team.sync();
        const unsigned columns = min(LANES, k - l0);
#pragma unroll 4
        for (unsigned l = 0; l < columns; ++l) sum = fmaf(own.block[lane][l], own.of_step[l0 + l].z, sum);
        if (k > LANES) team.sync();
      }
      if (lane < rows) {
        own.along[j0 + lane] = sum;
        length = fmaf(sum, sum, length);
      }
    }
    const float pivot = 1 - team.sum(length);
    if (!(pivot > least_pivot<float, false>())) return false;
    inverse = refined_inverse_root(pivot);
    move = alpha * inverse;
    team.sync();
    return true;
  }

  // z = (e_k - sum_j along_j z_j) / rho, and with it the code.
  __device__ __forceinline__ void add_direction() {
    for (unsigned l0 = 0; l0 < k; l0 += LANES) {
      const unsigned l = l0 + lane;
      float sum = 0;
      if (k <= LANES) {
#pragma unroll 4
        for (unsigned j = 0; j < k; ++j) sum = fmaf(own.along[j], own.block[j][lane], sum);
      } else {
#pragma unroll 4
        for (unsigned j = l0; j < k; ++j)
          if (l <= j) sum = fmaf(own.along[j], triangle[before_row(j) + l], sum);
      }
      if (l < k) own.of_step[l].z = -inverse * sum;
    }
    if (lane == 0) {
      own.of_step[k].z = inverse;
      own.of_step[k].atom = i;
      of.indices[signal * s + k] = i;
      of.counts[signal] = k + 1;
    }
    team.sync();
    // 2^power in two, either of which is a normal number.
    const float back = move * power_of_two(state.power / 2), rest = power_of_two(state.power - state.power / 2);
    for (unsigned l = lane; l <= k; l += LANES) {
      const float z = own.of_step[l].z;
      triangle[before_row(k) + l] = z;
      of.values[signal * s + l] += back * z * of.inverse_norms[own.of_step[l].atom] * rest;
    }
  }

  // r <- r - move u, whole and in parts: whether it is still above the target.
  __device__ __forceinline__ bool lower_residual() {
    // Its norm does not grow: its parts stay in the range of f16 by the norm before.
    const float scale = power_of_two(NORM_POWER - (exponent_of(fmaxf(state.energy, 1e-30f)) >> 1));
    float energy = 0;
    for (unsigned f = lane * 4; f < line; f += 4 * LANES) {
      float u[4] = {};
#pragma unroll 4
      for (unsigned l = 0; l <= k; ++l) {
        const typename Scratch<LANES>::Chosen chosen = own.of_step[l];
        float d[4];
        load4(of.unit + (size_t)chosen.atom * line + f, d);
#pragma unroll
        for (int e = 0; e < 4; ++e) u[e] = fmaf(chosen.z, d[e], u[e]);
      }
      if (f >= 4 * LANES) load4(r + f, now);
      float high[4], low[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        now[e] = fmaf(-move, u[e], now[e]);
        energy = fmaf(now[e], now[e], energy);
        __half part[2];
        in_parts(now[e] * scale, part[0], part[1]);
        high[e] = wide(part[0]), low[e] = wide(part[1]);
      }
      store4(r + f, now);
      store4(of.halves + signal * line + f, high);
      store4(of.halves + (of.m + signal) * line + f, low);
    }
    state.energy = team.sum(energy);
    if (lane == 0) of.states[signal] = packed(state);
    return state.energy > state.limit;
  }

  // Whether the pursuit goes on.
  __device__ __forceinline__ bool take() {
    if (!choose() || !project()) return false;
    add_direction();
    return k + 1 < s && lower_residual();
  }
};

template <int LANES>
__device__ __forceinline__ void pursuit_step(const Steps& of) {
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned teams = blockDim.x / LANES, mine = threadIdx.x / LANES;
  const unsigned at = blockIdx.x * teams + mine, count = of.left[of.step];
  if (blockIdx.x * teams >= count) return;
  const Team<LANES> team;
  const Scratch<LANES> own(reinterpret_cast<float*>(shared) + mine * Scratch<LANES>::numbers(of.s), of.s);
  bool goes_on = false;
  size_t signal = 0;
  if (at < count) {
    signal = of.lists[of.step % 2 * of.m + at];
    goes_on = Step<LANES>(of, team, own, signal).take();
  }
  append(of, of.step + 1, signal, goes_on && team.lane == 0);
}

extern "C" __global__ void __launch_bounds__(256, 6) pursuit_step_16(const __grid_constant__ Steps of) {
  pursuit_step<16>(of);
}
extern "C" __global__ void __launch_bounds__(256, 6) pursuit_step_32(const __grid_constant__ Steps of) {
  pursuit_step<32>(of);
}
