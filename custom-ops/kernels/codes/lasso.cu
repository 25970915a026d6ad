// lasso.cu: whole lasso solves, a block for each signal: an active set by exchange, and greedy
// coordinate descent where that does not get on.
//
//   min_a  1/2 xx - c.a + 1/2 a'Ga + sum_j b_j |a_j|     for unit diagonals of G; lasso_prepare.cu makes them so
//
// A round is
//   join     atoms that violate |q_j| <= b_j most join the support S, at most |S|/2 + JOIN, each
//            with the sign of q_j
//   drop     a_S = G_SS^-1 (c_S - b sign); those whose coefficient has another sign leave, until
//            none does
//   renew    q = c - Ga from the rows of the support, the relative duality gap, the end if it is
//            small enough
// Where the objective does not fall, or no atom can join, the signal goes on with rounds of
//   greedy   |S|/2 + MOVES times: the coordinate whose best move is longest takes it; q = c - Ga
//            follows by one row of G
//   newton   Cholesky of G_SS, direction d, exact line search of the piecewise quadratic along d
//            through the zero crossings
//   renew    as above
// of which each lowers the objective.
//
// q and a are in registers, the factor (of G_SS^-1 in the first kind of round) in shared memory or,
// in the last launches, in global memory. A support that its place does not hold leaves the signal
// to the next launch, which goes on from the activations that it finds; the last one goes on
// without newton.
//
// arrays   activations, correlations: [m, n]; grams: [n, n], of unit diagonal; energies, gaps: [m];
//          penalties: [n], at least 0; scales: [n], what coefficients of unit atoms are multiplied
//          by, 0 for atoms of zeros; grams and scales once, or, where `own` is set, for each
//          signal; all of one type T. updates: [m] u32, added to. work: [2 + m] u32: signals taken
//          so far, signals in the list, the list; next: the same for what is left over. large:
//          null, or a factor for each block. said: 2 u32, see Said, set
// scalars  n <= EACH * THREADS; capacity: atoms that the place of the factor holds, a multiple of
//          4; cyclic: sweeps in place of all else; last: nothing is left over; tells:
//          said[LEFT_OVER] is wanted; wide: rows begin on 4 entries and n is a multiple of 4
// launch   1-D, any number of blocks of THREADS: blocks take signals from `work`
// shared   `shared_bytes` of src/codes/lasso/shape.rs
// cost     a row of G, n numbers, for each atom of the support in each round; some 2 support^2 FLOP
//          for each atom that joins or leaves
// NaN      a signal with NaN ends at once with gap NaN
// same     each signal by itself: the same bits whichever block takes it
// truth    lasso_reference in src/codes/lasso/reference.rs

#include "codes/lasso_join.cuh"
#include "codes/lasso_newton.cuh"

// What the host is told.
enum Said { NOT_FINITE, LEFT_OVER };

template <typename T>
struct Numbers {
  T tolerance;
  unsigned n, capacity, max_updates, nonnegative, cyclic, last, tells, wide, own;
};

// The move of a warp that comes first; one lane that has it is told so.
__device__ __forceinline__ bool comes_first(const Move<float>& move) {
  const unsigned far = __float_as_uint(move.far);  // at least 0: bits compare as numbers do
  const bool farthest = far == __reduce_max_sync(ALL, far);
  return move.atom == __reduce_min_sync(ALL, farthest ? move.atom : ALL) && farthest;
}
__device__ __forceinline__ bool comes_first(const Move<double>& move) {
  double far = move.far;
  unsigned atom = move.atom;
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const double other = __shfl_xor_sync(ALL, far, step);
    const unsigned of_other = __shfl_xor_sync(ALL, atom, step);
    if (other > far || (other == far && of_other < atom)) far = other, atom = of_other;
  }
  return far == move.far && atom == move.atom;
}

template <typename T, int THREADS, int EACH>
struct Solve {
  static constexpr int WARPS = THREADS / 32, ENTRIES = EACH;
  // One signal.
  T q[EACH], a[EACH], b[EACH];
  unsigned n;
  bool nonnegative, wide;

  // Entry i of a thread is atom `at(i)`: four neighbours at a time.
  static __device__ __forceinline__ unsigned at(int i) { return i / 4 * (4 * THREADS) + threadIdx.x * 4 + i % 4; }

  __device__ __forceinline__ void load_row(const T* row, T (&v)[EACH]) const {
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
      const unsigned j = at(i);
      if (wide) {
        if (j < n) load4(row + j, reinterpret_cast<T(&)[4]>(v[i]));
        else v[i] = v[i + 1] = v[i + 2] = v[i + 3] = 0;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[i + e] = j + e < n ? row[j + e] : T(0);
      }
    }
  }

  __device__ __forceinline__ Move<T> best() const {
    Move<T> best{0, 0, n};
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const T by = shrunk(q[i] + a[i], b[i], nonnegative) - a[i];
      const Move<T> move{absolute(by), by, at(i)};
      if (move.far > best.far) best = move;  // atoms of a thread rise
    }
    return best;
  }

  // By how much the atom outside the support that violates its condition of optimality most does
  // so; which it is, its penalty with the sign that its coefficient will have.
  __device__ __forceinline__ T violation(unsigned& atom, T& penalty) const {
    T most = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const T by = (nonnegative ? q[i] : absolute(q[i])) - b[i];
      if (a[i] == 0 && by > most) most = by, atom = at(i), penalty = q[i] > 0 ? b[i] : -b[i];
    }
    return most;
  }

  // The places of the support in a list: `start` of the first of this thread, and how many there
  // are.
  __device__ __forceinline__ unsigned places(unsigned mine, unsigned* of_warps, unsigned& start) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned below = __shfl_up_sync(ALL, upto, step);
      if (lane >= step) upto += below;
    }
    __syncthreads();
    if (lane == 31) of_warps[warp] = upto;
    __syncthreads();
    unsigned all = 0;
    start = upto - mine;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) start += of_warps[w];
      all += of_warps[w];
    }
    return all;
  }

  // The first move of an atom from `from` on: moves count as equally far.
  __device__ __forceinline__ Move<T> following(unsigned from) const {
    Move<T> first{0, 0, n};
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const T by = shrunk(q[i] + a[i], b[i], nonnegative) - a[i];
      if (by != 0 && at(i) >= from && at(i) < first.atom) first = Move<T>{1, by, at(i)};
    }
    return first;
  }
};

// Rounds in which neither the objective nor the gap falls, after which rounding is what is left.
constexpr int PATIENCE = 16;
// Greedy moves of a round beside half the support.
constexpr unsigned MOVES = 4;
// Atoms that join a support beside half of it.
constexpr unsigned JOIN = 16;
// The largest capacity.
constexpr unsigned MOST_LISTED = 1024;

// A number that at most `most` of those of the threads are above, at least 0; the least such of a
// search by halves.
template <int THREADS, typename T>
__device__ __forceinline__ T threshold(T mine, unsigned most, T* room) {
  T largest[1] = {mine};
  over_block<THREADS>(largest, room, [](int, T x, T y) { return larger(x, y); });
  if (__syncthreads_count(mine > 0) <= most) return 0;
  T low = 0, high = largest[0];
  for (int halving = 0; halving < 8; ++halving) {
    const T middle = low + (high - low) / 2;
    if (__syncthreads_count(mine > middle) <= most) high = middle;
    else low = middle;
  }
  return high;
}

// Takes the atoms whose coefficient has another sign than their penalty, or is 0, from the list of
// `all` and from T, and makes their activations 0. Whether there were such.
template <typename T, int THREADS>
__device__ __forceinline__ bool drop(const Shared<T>& at, unsigned capacity, bool nonnegative, T* activations, unsigned& all) {
  __shared__ unsigned wrong[MOST_LISTED / 32];
  bool any = false;
  for (unsigned from = 0; from < all; from += THREADS) {
    const unsigned x = from + threadIdx.x;
    bool is_wrong = false;
    if (x < all) {
      const T value = at.value[x], penalty = at.penalty[x];
      // Without a penalty any sign is right.
      is_wrong = !(nonnegative || penalty > 0 ? value > 0 : penalty < 0 ? value < 0 : value != 0);
      if (is_wrong) activations[at.atom[x]] = 0;
    }
    const unsigned of_warp = __ballot_sync(ALL, is_wrong);
    if (threadIdx.x % 32 == 0) wrong[x / 32] = of_warp;
    any |= is_wrong;
  }
  if (!__syncthreads_or(any)) return false;
  unsigned first = 0;
  for (int word = (int)(all - 1) / 32; word >= 0; --word)
    for (unsigned bits = wrong[word]; bits;) {
      const unsigned bit = 31 - __clz(bits);
      first = 32 * word + bit;
      remove<T, THREADS>(at, capacity, all, first);
      bits ^= 1u << bit;
    }
  // The others close up; those of some threads at a time.
  unsigned* const stays = reinterpret_cast<unsigned*>(at.work);
  unsigned before = 0;
  for (unsigned from = 0; from < all; from += THREADS) {
    const unsigned x = from + threadIdx.x;
    unsigned to = x, atom = 0;
    T penalty = 0, right = 0;
    if (x < all) atom = at.atom[x], penalty = at.penalty[x], right = at.inverse[x];
    bool is_left = x < all;
    if (is_left) {
      unsigned lost = before;
      for (unsigned word = from / 32; word < x / 32; ++word) lost += __popc(wrong[word]);
      lost += __popc(wrong[x / 32] & ((1u << x % 32) - 1));
      is_left = !(wrong[x / 32] >> x % 32 & 1);
      to = x - lost;
    }
    for (unsigned word = from / 32; word < (from + THREADS) / 32 && 32 * word < all; ++word) before += __popc(wrong[word]);
    __syncthreads();
    if (is_left) at.atom[to] = atom, at.penalty[to] = penalty, at.inverse[to] = right, stays[to] = x;
    __syncthreads();
  }
  all -= before;
  close_up<T, THREADS>(at, capacity, stays, first, all);
  return true;
}

template <typename T, int THREADS, int EACH, int JOINING>
__device__ void lasso(T* activations, const T* grams, const T* correlations, const T* energies, const T* penalties,
                      const T* scales, T* gaps, unsigned* updates, unsigned* work, unsigned* next, T* large,
                      unsigned* said, const Numbers<T>& numbers) {
  using S = Solve<T, THREADS, EACH>;
  constexpr int WARPS = S::WARPS;
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned capacity = numbers.capacity, warp = threadIdx.x / 32;
  Shared<T> at;
  at.moves = reinterpret_cast<Move<T>*>(memory);
  at.room = reinterpret_cast<T*>(at.moves + 2 * WARPS);
  at.parts = at.room + 5 * WARPS;
  at.penalty = at.parts + MOST_PAIRS * WARPS;
  at.inverse = at.penalty + capacity;
  at.work = at.inverse + capacity;
  at.direction = at.work + 4 * capacity;
  at.value = at.work + 5 * capacity;
  T* const after = at.work + 8 * capacity;
  at.factor = large ? large + blockIdx.x * factor_size(capacity) : after;
  at.atom = reinterpret_cast<unsigned*>(large ? after : after + factor_size(capacity));
  at.count = at.atom + capacity;
  __shared__ unsigned taken;

  S s;
  s.n = numbers.n, s.nonnegative = numbers.nonnegative, s.wide = numbers.wide;
  const unsigned n = numbers.n;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) taken = atomicAdd(work, 1u);
    __syncthreads();
    // work[1] signals from work[2] on.
    if (taken >= work[1]) return;
    const unsigned signal = work[2 + taken];
    const size_t which = numbers.own ? signal : 0;
    const T *const g = grams + which * n * n, *const scale = scales + which * n;
    const T* const c = correlations + (size_t)signal * n;
    T* const result = activations + (size_t)signal * n;
    const T xx = energies[signal];
    unsigned moved = updates[signal];

    // A round begins with a and b; its first part is `renew`.
    s.load_row(result, s.a), s.load_row(penalties, s.b);
    {
      T of_scale[EACH];
      s.load_row(scale, of_scale);
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const bool used = of_scale[i] > 0;  // 0: an atom of zeros, and what lies beyond n
        s.a[i] = used && !(s.nonnegative && s.a[i] < 0) ? s.a[i] / of_scale[i] : T(0);
        s.b[i] = used ? s.b[i] * of_scale[i] : infinity<T>();
      }
    }
    T gap = infinity<T>(), lowest = infinity<T>(), least = infinity<T>();
    int stalled = 0;
    bool left_over = false, fallback = numbers.cyclic;
    unsigned all = 0, built = 0;  // atoms in the list, rows of T
    for (bool first = true;; first = false) {
      unsigned start = 0;
      if (first || fallback) {
        unsigned mine = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) mine += s.a[i] != 0;
        all = s.places(mine, at.count, start);
        if (all > capacity && !numbers.last) {
          left_over = true;
          break;
        }
      }
      // Those of number `from` and up that have room.
      const auto list = [&](unsigned from) {
        __syncthreads();
        unsigned to = start - from;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
          if (s.a[i] != 0) {
            if (to < capacity) at.atom[to] = S::at(i), at.value[to] = s.a[i], at.penalty[to] = s.b[i];
            ++to;
          }
        __syncthreads();
      };
      if (first || fallback) list(0);
      if (!first && all > 0 && all <= capacity && !numbers.cyclic) {
        if (fallback) {
          newton<T, THREADS>(at, g, n, all, numbers.nonnegative, s, start);
          moved += all;
        } else {
          gather<T, THREADS>(at.factor, capacity, at.atom, g, n, built, all, all);
          __syncthreads();
          while (built < all) {
            const unsigned more = all - built;
            if (JOINING == 8 && more > 4) append<T, THREADS, JOINING>(at, capacity, built, more < 8 ? more : 8), built += 8;
            else append<T, THREADS, 4>(at, capacity, built, more < 4 ? more : 4), built += 4;
          }
          for (bool again = true; again && all > 0;) {
            moved += all;
            minimum<T, THREADS>(at, capacity, all, at.inverse);
            again = drop<T, THREADS>(at, capacity, numbers.nonnegative, result, all);
          }
          built = all;
          for (unsigned x = threadIdx.x; x < all; x += THREADS) result[at.atom[x]] = at.value[x];
          __syncthreads();
          s.load_row(result, s.a);
        }
      }

      // Renew: q = c - G a.
      T of_c[EACH];
      {
        T of_scale[EACH];
        s.load_row(c, of_c), s.load_row(scale, of_scale);
#pragma unroll
        for (int i = 0; i < EACH; ++i) s.q[i] = of_c[i] = of_c[i] * of_scale[i];
      }
      for (unsigned from = 0; from < all; from += capacity) {
        constexpr int AT_ONCE = sizeof(T) == 4 && EACH <= 4 ? 8 : EACH > 8 ? 2 : 4;
        if (from > 0) list(from);
        const unsigned here = all - from < capacity ? all - from : capacity;
        unsigned x = 0;
        for (; x + AT_ONCE <= here; x += AT_ONCE) {
          T row[AT_ONCE][EACH];
#pragma unroll
          for (int r = 0; r < AT_ONCE; ++r) s.load_row(g + (size_t)at.atom[x + r] * n, row[r]);
#pragma unroll
          for (int r = 0; r < AT_ONCE; ++r)
#pragma unroll
            for (int i = 0; i < EACH; ++i) s.q[i] = fused(-at.value[x + r], row[r][i], s.q[i]);
        }
        for (; x < here; ++x) {
          T row[EACH];
          s.load_row(g + (size_t)at.atom[x] * n, row);
#pragma unroll
          for (int i = 0; i < EACH; ++i) s.q[i] = fused(-at.value[x], row[i], s.q[i]);
        }
      }
      // The gap.
      T joined[5] = {0, 0, 0, 0, 0};  // sum b|a|, c.a, q.a; largest |q| / b, largest |q| without penalty
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        joined[0] += T(0) * s.q[i];  // NaN, if it is not finite
        if (s.a[i] != 0) joined[0] += s.b[i] * absolute(s.a[i]), joined[1] += of_c[i] * s.a[i], joined[2] += s.q[i] * s.a[i];
        const T far = numbers.nonnegative ? s.q[i] : absolute(s.q[i]);
        if (s.b[i] > 0) joined[3] = larger(joined[3], far / s.b[i]);
        else joined[4] = larger(joined[4], far);
      }
      over_block<THREADS>(joined, at.room, [](int i, T x, T y) { return i < 3 ? x + y : larger(x, y); });
      double objective, of_gap;
      certify<T>(xx, joined[1], joined[2], joined[0], joined[3], joined[4], objective, of_gap);
      const T primal = objective;
      gap = of_gap;
      // Done, or not a number, or at the end of what rounding allows.
      stalled = primal < lowest || gap < least ? 0 : stalled + 1;
      fallback |= !(primal < lowest);
      lowest = smaller(lowest, primal), least = smaller(least, gap);
      if (!(gap > numbers.tolerance) || moved >= numbers.max_updates || stalled > PATIENCE) break;

      if (!fallback) {
        if (first) {
          // What `minimum` takes of those that are in the list already.
          unsigned to = start;
          if (all <= capacity)
#pragma unroll
            for (int i = 0; i < EACH; ++i)
              if (s.a[i] != 0) at.penalty[to] = s.a[i] > 0 ? s.b[i] : -s.b[i], at.inverse[to] = of_c[i] - at.penalty[to], ++to;
#pragma unroll
          for (int i = 0; i < EACH; ++i)
            if (S::at(i) < n) result[S::at(i)] = s.a[i];
        }
        const unsigned room = capacity > all ? capacity - all : 0, most = all / 2 + JOIN;
        if (room == 0 && !numbers.last) {
          left_over = true;
          break;
        }
        unsigned atom = 0;
        T penalty = 0;
        const T by = s.violation(atom, penalty), above = threshold<THREADS>(by, most < room ? most : room, at.room);
        unsigned place;
        const unsigned more = s.places(by > above, at.count, place);
        if (by > above) {
          at.atom[all + place] = atom, at.penalty[all + place] = penalty;
          at.inverse[all + place] = c[atom] * scale[atom] - penalty;
        }
        __syncthreads();
        all += more;
        fallback = more == 0;
        if (!fallback) continue;
      }
      // Greedy, or one sweep over the coordinates in order.
      const unsigned moves = numbers.cyclic ? n : all / 2 + MOVES;
      unsigned from = 0;
      for (unsigned u = 0; u < moves; ++u) {
        Move<T> best = numbers.cyclic ? s.following(from) : s.best();
        Move<T>* const of_warps = at.moves + u % 2 * WARPS;
        // Without a move all lanes say the same.
        if (comes_first(best)) of_warps[warp] = best;
        __syncthreads();
        best = of_warps[0];
#pragma unroll
        for (int w = 1; w < WARPS; ++w)
          if (before(of_warps[w], best)) best = of_warps[w];
        if (best.atom >= n) break;
        T row[EACH];
        s.load_row(g + (size_t)best.atom * n, row);
#pragma unroll
        for (int i = 0; i < EACH; ++i) s.q[i] = fused(-best.by, row[i], s.q[i]);
        if (best.atom / 4 % THREADS == threadIdx.x)
#pragma unroll
          for (int i = 0; i < EACH; ++i)
            if (S::at(i) == best.atom) s.a[i] += best.by;
        ++moved;
        from = best.atom + 1;
      }
    }
    T of_scale[EACH];
    s.load_row(scale, of_scale);
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (S::at(i) < n) result[S::at(i)] = s.a[i] * of_scale[i];
    if (threadIdx.x == 0) {
      gaps[signal] = gap, updates[signal] = moved;
      if (left_over) {
        next[2 + atomicAdd(next + 1, 1u)] = signal;
        if (numbers.tells) said[LEFT_OVER] = 1;
      } else if (!(gap < infinity<T>())) said[NOT_FINITE] = 1;
    }
  }
}

// JOINING: atoms that join the factor at once; eight pay where supports are large and registers
// suffice.
#define LASSO(NAME, T, THREADS, EACH, BLOCKS, JOINING)                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                    \
  NAME(T* activations, const T* grams, const T* correlations, const T* energies, const T* penalties,               \
       const T* scales, T* gaps, unsigned* updates, unsigned* work, unsigned* next, T* large, unsigned* said,      \
       const Numbers<T> numbers) {                                                                                 \
    lasso<T, THREADS, EACH, JOINING>(activations, grams, correlations, energies, penalties, scales, gaps, updates, \
                                     work, next, large, said, numbers);                                            \
  }
LASSO(lasso_f32_512, float, 128, 4, 8, 4)
LASSO(lasso_f32_1024, float, 128, 8, 4, 4)
LASSO(lasso_f32_1024_roomy, float, 256, 4, 2, 8)
LASSO(lasso_f32_4096, float, 512, 8, 1, 4)
LASSO(lasso_f32_8192, float, 512, 16, 1, 4)
LASSO(lasso_f64_512, double, 128, 4, 4, 4)
LASSO(lasso_f64_1024, double, 256, 4, 2, 4)
LASSO(lasso_f64_1024_roomy, double, 256, 4, 1, 4)
LASSO(lasso_f64_4096, double, 512, 8, 1, 4)
LASSO(lasso_f64_8192, double, 512, 16, 1, 4)
