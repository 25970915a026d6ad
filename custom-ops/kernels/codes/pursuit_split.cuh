// pursuit_split.cuh: the pursuit of a signal by a block, or by the blocks of a cluster, with the
// first HELD directions in registers and those that follow in shared memory. Here directions have
// norm 1:
//
//   w_j = u_j[i],  rho^2 = E_i = 1 - sum_j w_j^2,  u = (G_i - sum_j w_j u_j) / rho,  z = alpha_i / rho
//   alpha <- alpha - z u,  |r|^2 <- |r|^2 - z^2,  E <- E - u^2 (least squares);  L's row is (w, rho), L^T x = z
//
// sizes    up to 256 TEAM CLUSTER atoms, 8 in a lane, TEAM warps in a block; up to MOST_SPLIT_STEPS
//          steps
// rows     of correlations and of G: in the order of place_of, 256 TEAM CLUSTER wide; atoms of
//          padding are 0 and never chosen
// bids     each step, each warp offers its best atom with that atom's entries of all directions, so
//          that one barrier a step is enough: behind it, all that a step needs of the chosen atom
//          is there. The offers of one step lie where those of two steps before lay, which no warp
//          reads any more. Warps of other blocks of the cluster get them through distributed shared
//          memory
// shared   rows       [max(s - 1 - HELD, 1), 256 TEAM]  directions from HELD on; the next one's place takes the row of G, in flight
//          bids       [2, TEAM CLUSTER, 4 + line]       score, alpha, E, atom; its entries; line: s or HELD, the larger, in fours
//          triangle   [s (s - 1) / 2]                   w of each step
//          moves, inverses, atoms  [s]                  z, 1 / rho, i
//          `Split::shared` in src/codes/pursuit/plan/split.rs
// launch   1-D blocks of 32 TEAM threads, CLUSTER of them a signal
// cost     a step: a row of G, fetched behind the multiply-adds with k directions; 8 numbers of
//          each of them in a thread
// binds    latency and instructions: on an H200 at 1024 atoms and 32 steps, with three blocks on a
//          multiprocessor, a warp needs 484 instructions a step, and half of all cycles issue one;
//          reads of the directions in shared memory are a tenth of the time
// truth    omp_reference, ols_reference in src/codes/pursuit/reference.rs;
//          tests/parity/pursuit/forms.rs
#pragma once

#include "core/cluster.cuh"
#include "codes/pursuit.cuh"

constexpr unsigned MOST_SPLIT_STEPS = 64;
constexpr int HELD = 16;

// f(Number<e>()) for the e from FROM to END - 1 that x is: registers have no index. By halves,
// since all lanes go one way.
template <int FROM, int END, typename F>
__device__ __forceinline__ void at_index(unsigned x, const F& f) {
  if constexpr (END - FROM == 1) {
    f(Number<FROM>());
  } else {
    constexpr int MIDDLE = (FROM + END) / 2;
    if (x < MIDDLE) at_index<FROM, MIDDLE>(x, f);
    else at_index<MIDDLE, END>(x, f);
  }
}

// Waits for this thread's copies, before it reads what they brought.
__device__ __forceinline__ void copies_are_here() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <int TEAM, int CLUSTER, bool OLS>
struct Split {
  static constexpr int SLOTS = 8, SEATS = 32 * TEAM, LANES = SEATS * CLUSTER, WIDTH = LANES * SLOTS, WARPS = TEAM * CLUSTER;
  static constexpr float PIVOT = least_pivot<float, OLS>();

  const Problem<float>& of;
  const unsigned s, lane, warp, rank;
  const unsigned seat;   // of the cluster's lanes
  const unsigned line;   // of a bid
  float *const rows, *const bids, *const triangle, *const moves, *const inverses;
  unsigned* const atoms;

  __device__ __forceinline__ Split(const Problem<float>& problem, float* shared)
      : of(problem), s(of.s), lane(threadIdx.x & 31), warp(threadIdx.x / 32), rank(CLUSTER > 1 ? blockIdx.x % CLUSTER : 0),
        seat(rank * SEATS + threadIdx.x), line(4 + (max(s, (unsigned)HELD) + 3) / 4 * 4), rows(shared),
        bids(rows + (s > HELD + 2 ? s - 1 - HELD : 1) * (SEATS * SLOTS)), triangle(bids + 2 * WARPS * line),
        moves(triangle + s * (s - 1) / 2), inverses(moves + s), atoms(reinterpret_cast<unsigned*>(inverses + s)) {}

  // This thread's packs of a row of shared memory are SEATS packs apart.
  __device__ __forceinline__ float* row(unsigned j) const { return rows + j * (SEATS * SLOTS) + threadIdx.x * 4; }
  static __device__ __forceinline__ void read_packs(float (&x)[SLOTS], const float* row) {
#pragma unroll
    for (int t = 0; t < SLOTS / 4; ++t) {
      float four[4];
      load4(row + t * (SEATS * 4), four);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[4 * t + e] = four[e];
    }
  }
  static __device__ __forceinline__ void write_packs(float* row, const float (&x)[SLOTS]) {
#pragma unroll
    for (int t = 0; t < SLOTS / 4; ++t) {
      const float four[4] = {x[4 * t], x[4 * t + 1], x[4 * t + 2], x[4 * t + 3]};
      store4(row + t * (SEATS * 4), four);
    }
  }
  __device__ __forceinline__ float* bid(unsigned step, unsigned of_warp) const {
    return bids + (step % 2 * WARPS + of_warp) * line;
  }
  __device__ __forceinline__ void meet() const {
    if constexpr (CLUSTER > 1) cluster_sync();
    else if (TEAM > 1) __syncthreads();
    else __syncwarp();
  }

  // What this warp has to offer in step k.
  __device__ __forceinline__ void offer(unsigned k, const float (&alpha)[SLOTS], const float (&left)[SLOTS],
                                        const float (&u)[HELD][SLOTS]) const {
    float score[SLOTS], best = 0;
#pragma unroll
    for (int e = 0; e < SLOTS; ++e) {
      score[e] = fabsf(alpha[e]);
      if (OLS) score[e] = left[e] > PIVOT ? score[e] * inverse_root(left[e]) : 0.f;
      best = fmaxf(best, score[e]);  // a chosen atom's is NaN or 0
    }
    unsigned slot = SLOTS - 1;
#pragma unroll
    for (int e = SLOTS - 2; e >= 0; --e) slot = score[e] == best ? e : slot;
    const float top = largest(best);
    const unsigned owner = __ffs(__ballot_sync(ALL, best == top)) - 1;
    slot = __shfl_sync(ALL, slot, owner);
    float* const mine = bid(k, rank * TEAM + warp);
    at_index<0, SLOTS>(slot, [&](auto slot_of) {
      constexpr int e = decltype(slot_of)::value;
      if (lane != owner) return;
      const unsigned atom = seat * SLOTS + e;
      *reinterpret_cast<float4*>(mine) = make_float4(top, alpha[e], OLS ? left[e] : 0.f, __uint_as_float(atom));
#pragma unroll
      for (int j = 0; j < HELD; j += 4)
        *reinterpret_cast<float4*>(mine + 4 + j) = make_float4(u[j][e], u[j + 1][e], u[j + 2][e], u[j + 3][e]);
    });
    const unsigned column = slot / 4 * (SEATS * 4) + (warp * 32 + owner) * 4 + slot % 4;
    for (unsigned j = HELD + lane; j < k; j += 32) mine[4 + j] = rows[(j - HELD) * (SEATS * SLOTS) + column];
    if constexpr (CLUSTER > 1) {
      __syncwarp();
      const unsigned end = 4 + max(k, (unsigned)HELD);
      for (unsigned l = lane; l < end; l += 32) {
        const float x = mine[l];
#pragma unroll
        for (int r = 1; r < CLUSTER; ++r) write_of(mine + l, (rank + r) % CLUSTER, x);
      }
    }
  }

  // The best of the offers of step k; of level ones the first.
  __device__ __forceinline__ const float* accept(unsigned k) const {
    if (WARPS == 1) return bid(k, 0);
    const float score = lane < WARPS ? *bid(k, lane) : -1.f;
    return bid(k, __ffs(__ballot_sync(ALL, score == largest(fmaxf(score, 0.f)))) - 1);
  }

  __device__ __forceinline__ void pursue(size_t signal) const {
    float alpha[SLOTS], left[SLOTS], u[HELD][SLOTS];
    read_row_once<float, SLOTS, LANES>(alpha, of.correlations + signal * WIDTH, seat);
#pragma unroll
    for (int e = 0; e < SLOTS; ++e) {
      left[e] = 1;
#pragma unroll
      for (int j = 0; j < HELD; ++j) u[j][e] = 0;
    }
    const float norm = of.norms[signal], inverse_norm = 1 / norm, least = 16 * epsilon<float>() * norm;
    const float limit = limit_of(of, signal, norm);
    float energy = 1;  // of the residual, as a share of the signal's
    if constexpr (CLUSTER > 1) cluster_sync();  // all blocks are there to be written to

    unsigned k = 0;
#pragma unroll 1
    for (; k < s && !(energy <= limit); ++k) {
      offer(k, alpha, left, u);
      meet();
      const float* const chosen = accept(k);
      const float4 head = *reinterpret_cast<const float4*>(chosen);
      const float alpha_i = head.y;
      const unsigned i = __float_as_uint(head.w);
      if (!(head.x > 0 && fabsf(alpha_i) > least)) break;
      const bool more = k + 1 < s;
      float* const next = row(max(k, (unsigned)HELD) - HELD);
      if (more) {
        const float* const from = of.gram + (size_t)place_of<float>(i, SLOTS, LANES) * WIDTH + seat * 4;
#pragma unroll
        for (int t = 0; t < SLOTS / 4; ++t) copy<16>(next + t * (SEATS * 4), from + t * (LANES * 4), true);
        commit();
      }

      const float* const w = chosen + 4;
      float sum[SLOTS] = {}, e_i = OLS ? head.z : 1.f;
      const auto subtract = [&](float w_j, const float(&u_j)[SLOTS]) {
        if (!OLS) e_i = fmaf(-w_j, w_j, e_i);
#pragma unroll
        for (int e = 0; e < SLOTS; ++e) sum[e] = fmaf(-w_j, u_j[e], sum[e]);
      };
#pragma unroll
      for (int j0 = 0; j0 < HELD; j0 += 4) {
        if (j0 >= k) break;
        // Directions from k on are 0, and so are their entries.
        float w_j[4];
        load4(w + j0, w_j);
#pragma unroll
        for (int j = 0; j < 4; ++j) subtract(w_j[j], u[j0 + j]);
      }
#pragma unroll 2
      for (unsigned j = HELD; j < k; ++j) {
        float u_j[SLOTS];
        read_packs(u_j, row(j - HELD));
        subtract(w[j], u_j);
      }
      if (!(e_i > PIVOT)) break;
      const float inverse = refined_inverse_root(e_i), move = alpha_i * inverse, share = move * inverse_norm;
      energy = fmaf(-share, share, energy);
      if (seat < 32) {
        for (unsigned l = lane; l < k; l += 32) triangle[k * (k - 1) / 2 + l] = w[l];
        if (lane == 0) moves[k] = move, inverses[k] = inverse, atoms[k] = i;
      }
      if (!more) {
        ++k;
        break;
      }
      copies_are_here();
      float row_of_g[SLOTS];
      read_packs(row_of_g, next);
#pragma unroll
      for (int e = 0; e < SLOTS; ++e) {
        // The row of G has a NaN at the atom itself, which takes the atom out of all that follows.
        sum[e] = (row_of_g[e] + sum[e]) * inverse;
        alpha[e] = fmaf(-move, sum[e], alpha[e]);
        if (OLS) left[e] = fmaf(-sum[e], sum[e], left[e]);
      }
      if (k < HELD) {
        at_index<0, HELD>(k, [&](auto k_of) {
#pragma unroll
          for (int e = 0; e < SLOTS; ++e) u[decltype(k_of)::value][e] = sum[e];
        });
      } else {
        write_packs(next, sum);
        __syncwarp();  // other lanes of the warp read its best atom's entry
      }
    }
    copies_are_here();  // of a row that a dependent atom made needless
    if (seat < 32) write(signal, k);
  }

  // Solves L^T x = z and writes the code of `count` atoms, by one warp.
  __device__ __forceinline__ void write(size_t signal, unsigned count) const {
    __syncwarp();
    float b[MOST_SPLIT_STEPS / 32];
#pragma unroll
    for (int h = 0; h < 2; ++h) b[h] = h * 32 + lane < count ? moves[h * 32 + lane] : 0.f;
#pragma unroll 4
    for (unsigned k = count; k-- > 1;) {
      const float x = __shfl_sync(ALL, k < 32 ? b[0] : b[1], k % 32) * inverses[k];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (h * 32 + lane < k) b[h] = fmaf(-triangle[k * (k - 1) / 2 + h * 32 + lane], x, b[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned l = h * 32 + lane;
      if (l >= s) continue;
      const bool inside = l < count;
      const unsigned atom = inside ? atoms[l] : 0;
      of.indices[signal * s + l] = atom;
      of.values[signal * s + l] = inside ? b[h] * inverses[l] * of.inverse_norms[atom] : 0.f;
    }
    if (lane == 0) of.counts[signal] = count;
  }
};
