// latent_select.cu: which latents of a sparse autoencoder are active, v = pre + bias.
//
//   top_k            of each row the k largest v above 0; of equal ones the lower latents
//   list_active      the v above their bound, or at it with or_equal, in the order of latents, in
//                    rows of `width` entries, and how many there are, also those that do not fit
//   slacks           of each 256 latents numbers not above the least bound - bias and the least
//                    bias, so that most pre are compared with one number, without their bias
//   keep             entries of codes that are not below the bound, in rows of `width`
//   threshold_tally  tally[b] += number of v > 0 of every of_rows-th row whose key is the found one
//                    above `shift + bits` and has b in the bits from `shift` on; the key of a
//                    number above 0 is its bits
//   threshold_pick   puts into the found key the bits of the number that is wanted, from a tally;
//                    with `last` gives the number, the least one of the found bits
//
// arrays   pre: [m, n] of T; bias: [n] of V, or null for 0; among: [n_among] u32, ascending, or
//          null for all; indices, values: [m, k] or [m, width], 0 beyond the count; count: [m];
//          told: 2 u32, zeros, then the largest count and the sum of counts; bound: [1] or [n] of
//          V, of keep [1]; slack, dips: [ceil(n / 256)] of V. tally: [2^bits] u32, zeros before
//          threshold_tally, which threshold_pick leaves so; search: 3 u64, the found key, how many
//          are still wanted, and whether none is above 0, written by the first threshold_pick; out:
//          [1] of V. Contiguous; results overlap nothing. room: bytes of what top_k holds for each
//          warp of the grid, or null where that is in shared memory
// scalars  1 <= k; n, n_among < 2^32 - 4096; most: entries that a warp holds, k + max(k, 96) + 256;
//          m n < 2^32 for thresholds; count: the number that is wanted; shift and bits of a digit;
//          first: whether it is the highest
// launch   1-D grids of 1-D blocks of whole warps, 8 at most but of tally, a warp for a row at a
//          time, of tally for 2048 latents of one, of keep for one row; threshold_pick: one block
//          of 1024
// shared   top_k: held entries of each warp; threshold_tally of the highest digit: 2^bits counts
// cost     reads pre once; the memory binds, in top_k the work on what is held. It holds more than
//          k entries, and cuts them down to the k largest when it has k more or 96 more
// same     what is chosen is a fact of v; atomics count integers
// NaN      is never chosen
// truth    src/codes/latents/select

#include "core/numbers.cuh"

// A warp takes STEP latents at a time, of which a lane has P neighbours; a block has WARPS at most.
// Sums over all go by PART latents.
constexpr unsigned ALL = 0xffffffffu, P = 8, STEP = 32 * P, WARPS = 8, PART = 8 * STEP;
// Steps that are fetched ahead.
template <typename T> constexpr unsigned AHEAD = sizeof(T) == 2 ? 4 : sizeof(T) == 4 ? 2 : 1;

// Bits of a number above 0: in the order of the numbers.
__device__ __forceinline__ unsigned key_of(float v) { return __float_as_uint(v); }
__device__ __forceinline__ unsigned long long key_of(double v) { return (unsigned long long)__double_as_longlong(v); }
__device__ __forceinline__ float number_of(unsigned key) { return __uint_as_float(key); }
__device__ __forceinline__ double number_of(unsigned long long key) { return __longlong_as_double((long long)key); }
__device__ __forceinline__ unsigned highest_bit(unsigned x) { return 31 - __clz(x | 1); }
__device__ __forceinline__ unsigned highest_bit(unsigned long long x) { return 63 - __clzll(x | 1); }
__device__ __forceinline__ void largest_key(unsigned& x) { x = __reduce_max_sync(ALL, x); }
__device__ __forceinline__ void largest_key(unsigned long long& x) {
  for (int step = 16; step; step /= 2) {
    const unsigned long long y = __shfl_xor_sync(ALL, x, step);
    if (y > x) x = y;
  }
}

template <typename V> __device__ __forceinline__ V missing() { return -INFINITY; }
template <> __device__ __forceinline__ __nv_bfloat16 missing() { return __ushort_as_bfloat16(0xff80); }

// The relative error of a sum, rounded up.
__device__ __forceinline__ float rounding(float) { return 0x1p-23f; }
__device__ __forceinline__ double rounding(double) { return 0x1p-52; }

// Whether lanes can take P numbers at a time: rows and what goes with them are aligned.
template <typename T, typename V>
__device__ __forceinline__ bool is_whole(const T* pre, const V* bias, unsigned n) {
  return n % P == 0 && ((size_t)pre | (size_t)bias) % 16 == 0;
}

// The numbers of a lane, the first that of latent `first`, as they lie in memory; minus infinity
// from n on.
template <typename T> struct Numbers {
  alignas(16) T at[P];

  __device__ __forceinline__ void fetch(const T* from, unsigned first, unsigned n, bool whole) {
    if (whole && first < n) {
      const uint4* const all = reinterpret_cast<const uint4*>(from + first);
#pragma unroll
      for (unsigned i = 0; i < P * sizeof(T) / 16; ++i) reinterpret_cast<uint4*>(at)[i] = all[i];
    } else {
#pragma unroll
      for (unsigned q = 0; q < P; ++q) at[q] = !whole && first + q < n ? from[first + q] : missing<T>();
    }
  }
};

__device__ __forceinline__ float largest(const Numbers<float>& x) {
  float most = x.at[0];
#pragma unroll
  for (unsigned q = 1; q < P; ++q) most = fmaxf(most, x.at[q]);
  return most;
}
__device__ __forceinline__ double largest(const Numbers<double>& x) {
  double most = x.at[0];
#pragma unroll
  for (unsigned q = 1; q < P; ++q) most = fmax(most, x.at[q]);
  return most;
}
__device__ __forceinline__ float largest(const Numbers<__nv_bfloat16>& x) {
  const __nv_bfloat162* const pairs = reinterpret_cast<const __nv_bfloat162*>(x.at);
  const float2 most = __bfloat1622float2(__hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3])));
  return fmaxf(most.x, most.y);
}

// v of the numbers of a lane. Without a bias it is 0.
template <typename T, typename V>
__device__ __forceinline__ void values_of(const Numbers<T>& pre, const V* bias, unsigned first, unsigned n, bool whole,
                                          V (&v)[P]) {
  Numbers<V> b;
  if (bias) b.fetch(bias, first, n, whole);
#pragma unroll
  for (unsigned q = 0; q < P; ++q) v[q] = bias ? (V)wide(pre.at[q]) + b.at[q] : (V)wide(pre.at[q]);
}

// Calls take(numbers, base) for each STEP of a row, and after(last) when AHEAD of them or the last
// were taken.
template <typename T, typename Take, typename After>
__device__ __forceinline__ void each_step(const T* row, unsigned n, bool whole, Take take, After after) {
  constexpr unsigned A = AHEAD<T>;
  const unsigned at = threadIdx.x % 32 * P;
  // What comes next is fetched while this is looked at.
  Numbers<T> next[A];
#pragma unroll
  for (unsigned a = 0; a < A; ++a) next[a].fetch(row, a * STEP + at, n, whole);
  for (unsigned start = 0; start < n; start += A * STEP) {
    Numbers<T> now[A];
#pragma unroll
    for (unsigned a = 0; a < A; ++a) {
      now[a] = next[a];
      const unsigned base = start + (A + a) * STEP;
      if (base < n) next[a].fetch(row, base + at, n, whole);
    }
#pragma unroll
    for (unsigned a = 0; a < A; ++a) {
      const unsigned base = start + a * STEP;
      if (base < n) take(now[a], base);
    }
    after(start + A * STEP >= n);
  }
}
struct Nothing {
  __device__ __forceinline__ void operator()(bool) const {}
};

// Places of a queue of each_group.
constexpr unsigned QUEUE = 160;

// Calls look(first) for the P neighbours from `first` on, or from n on for none, a group a lane in
// the order of latents, of all groups with a number that is not below floor(step). Few are, so they
// wait in the queue of a warp until there are 32.
template <typename T, typename Floor, typename Look>
__device__ __forceinline__ void each_group(const T* row, unsigned n, bool whole, unsigned* queue, Floor floor, Look look) {
  const unsigned lane = threadIdx.x % 32;
  unsigned waiting = 0;
  static_assert(32 * (AHEAD<T> + 1) <= QUEUE, "what a step leaves and AHEAD of them");
  each_step(
      row, n, whole,
      [&](const Numbers<T>& numbers, unsigned base) {
        const bool mine = !(largest(numbers) < floor(base / STEP));
        const unsigned lanes = __ballot_sync(ALL, mine);
        if (mine) queue[waiting + __popc(lanes & ((1u << lane) - 1))] = base + lane * P;
        waiting += __popc(lanes);
      },
      [&](bool last) {
        __syncwarp();
        unsigned seen = 0;
        for (; waiting >= 32 || (last && waiting > 0); seen += 32) {
          look(lane < waiting ? queue[seen + lane] : n);
          waiting -= min(waiting, 32u);
        }
        if (seen == 0) return;
        const unsigned later = lane < waiting ? queue[seen + lane] : 0;
        __syncwarp();
        queue[lane] = later;
        __syncwarp();
      });
}

// Where the first hit of a lane goes among those of all lanes, in the order of latents; `all` is
// how many there are.
__device__ __forceinline__ unsigned place_of(unsigned hits, unsigned& all) {
  const unsigned count = __popc(hits), lower = (1u << threadIdx.x % 32) - 1;
  unsigned place = 0;
  all = 0;
#pragma unroll
  for (unsigned bit = 0; bit < 4; ++bit) {
    const unsigned with = __ballot_sync(ALL, count >> bit & 1);
    place += __popc(with & lower) << bit, all += __popc(with) << bit;
  }
  return place;
}

// slack[i] = a number not above the least bound - bias of the latents of step i, the bound 0 where
// there is but one: of a pre below it v is not at its bound. dips[i] = a number not above their
// least bias.
template <typename V>
__device__ __forceinline__ void slacks(V* slack, V* dips, const V* bias, const V* bound, unsigned bounds, unsigned n) {
  const unsigned step = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (step >= (n + STEP - 1) / STEP) return;
  V least = INFINITY, dip = INFINITY, size = 0;
#pragma unroll
  for (unsigned q = 0; q < P; ++q) {
    const unsigned j = min(step * STEP + q * 32 + lane, n - 1);
    const V b = bias[j], t = bounds > 1 ? bound[j] : V(0);
    least = fmin(least, t - b), dip = fmin(dip, b), size = fmax(size, fabs(t) + fabs(b));
    if (b != b) dip = -INFINITY;
  }
  for (int i = 16; i; i /= 2) {
    least = fmin(least, __shfl_xor_sync(ALL, least, i));
    dip = fmin(dip, __shfl_xor_sync(ALL, dip, i));
    size = fmax(size, __shfl_xor_sync(ALL, size, i));
  }
  if (lane == 0) slack[step] = least - 4 * rounding(size) * size, dips[step] = dip;
}

// The largest of each of a lane's P places, of pre and the least bias of their steps: numbers that
// some v of their own are not below, but for a relative error of SUMS<T>.
template <typename T> constexpr float SUMS = sizeof(T) == 2 ? 0x1p-7f : 0x1p-20f;
__device__ __forceinline__ void raise(Numbers<__nv_bfloat16>& most, const Numbers<__nv_bfloat16>& x, float dip) {
  const __nv_bfloat162 low = __bfloat162bfloat162(__float2bfloat16_rd(dip));
  __nv_bfloat162* const to = reinterpret_cast<__nv_bfloat162*>(most.at);
  const __nv_bfloat162* const from = reinterpret_cast<const __nv_bfloat162*>(x.at);
#pragma unroll
  for (unsigned q = 0; q < P / 2; ++q) to[q] = __hmax2(to[q], __hadd2(from[q], low));
}
template <typename T> __device__ __forceinline__ void raise(Numbers<T>& most, const Numbers<T>& x, T dip) {
#pragma unroll
  for (unsigned q = 0; q < P; ++q) most.at[q] = x.at[q] + dip > most.at[q] ? x.at[q] + dip : most.at[q];
}

// A number above which the k largest v of a row are, or 0, from the first `steps` of them.
template <typename T, typename V>
__device__ __forceinline__ V bound_of(const T* row, const V* dips, unsigned steps, unsigned k) {
  Numbers<T> most;
#pragma unroll
  for (unsigned q = 0; q < P; ++q) most.at[q] = missing<T>();
  each_step(row, steps * STEP, true, [&](const Numbers<T>& x, unsigned base) { raise(most, x, dips[base / STEP]); },
            Nothing());
  float places[P];
#pragma unroll
  for (unsigned q = 0; q < P; ++q) places[q] = (float)(V)wide(most.at[q]);
  // The k-th largest of all places, of numbers with 7 bits of mantissa.
  unsigned found = 0;
  for (int bit = 30; bit >= 16; --bit) {
    const float tried = __uint_as_float(found | 1u << bit);
    unsigned count = 0;
#pragma unroll
    for (unsigned q = 0; q < P; ++q) count += places[q] >= tried;
    if (__reduce_add_sync(ALL, count) >= k) found |= 1u << bit;
  }
  const float bound = __uint_as_float(found);
  return bound < INFINITY ? (V)(bound - SUMS<T> * bound) : V(0);
}

// A warp holds more than k entries of a row, up to MORE or k more.
constexpr unsigned MORE = 96;

// What a warp holds of a row: entries in the order of latents.
template <typename V> struct Held {
  V* values;
  unsigned* latents;
  unsigned n;
  // All that are held are above it, or else not below the k-th largest.
  V bound;

  // How many keys are `key` or more.
  template <typename K> __device__ __forceinline__ unsigned at_least(K key) const {
    unsigned count = 0;
    for (unsigned i = threadIdx.x % 32; i < n; i += 32) count += key_of(values[i]) >= key;
    return __reduce_add_sync(ALL, count);
  }

  // Keeps the k largest of more than k, up to `spare` more where that is sooner done.
  __device__ __forceinline__ void cut(unsigned k, unsigned spare) {
    using K = decltype(key_of(V()));
    const unsigned lane = threadIdx.x % 32;
    K most = 0, base = bound > 0 ? key_of(bound) : 0;
    for (unsigned i = lane; i < n; i += 32) {
      const K key = key_of(values[i]);
      if (key > most) most = key;
    }
    largest_key(most);
    // The k-th largest key has the bits that all keys have in common, then bit after bit.
    const int first = (int)highest_bit(most ^ base);
    K found = first == 8 * sizeof(K) - 1 ? 0 : most >> (first + 1) << (first + 1);
    unsigned above = n;
    for (int bit = first; bit >= 0; --bit) {
      const K tried = found | (K)1 << bit;
      const unsigned count = at_least(tried);
      if (count >= k) {
        found = tried, above = count;
        if (count <= k + spare) break;
      }
    }
    // Of those at the last key, as many as are wanted, the lower latents first.
    const unsigned ties = above > k + spare ? k - at_least(found + 1) : ALL;
    unsigned kept = 0, tied = 0;
    for (unsigned start = 0; start < n; start += 32) {
      const unsigned i = start + lane;
      const V value = i < n ? values[i] : V(0);
      const unsigned latent = i < n ? latents[i] : 0;
      const K key = i < n ? key_of(value) : 0;
      const unsigned lower = (1u << lane) - 1, equal = __ballot_sync(ALL, i < n && key == found);
      const bool keep = i < n && (key > found || (key == found && tied + __popc(equal & lower) < ties));
      const unsigned all = __ballot_sync(ALL, keep);
      __syncwarp();
      if (keep) {
        const unsigned to = kept + __popc(all & lower);
        values[to] = value, latents[to] = latent;
      }
      kept += __popc(all), tied += __popc(equal);
      __syncwarp();
    }
    n = kept;
    bound = number_of(found);
  }
};

template <typename T, typename V>
__device__ __forceinline__ void top_k(unsigned* indices, V* values, unsigned* count, const T* pre, const V* bias,
                                      const unsigned* among, const V* slack, const V* dips, unsigned char* room,
                                      size_t m, unsigned n, unsigned n_among, unsigned k, unsigned most) {
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const size_t bytes = (size_t)most * (sizeof(V) + sizeof(unsigned));
  unsigned char* mine = room ? room + ((size_t)blockIdx.x * warps + warp) * bytes : shared + warp * bytes;
  Held<V> held;
  held.values = reinterpret_cast<V*>(mine);
  held.latents = reinterpret_cast<unsigned*>(mine + (size_t)most * sizeof(V));
  __shared__ unsigned queues[WARPS][QUEUE];
  const unsigned spare = max(k, 64u) / 4;
  const bool whole = is_whole(pre, bias, n);
  // A bound from the first eighth of a row spares most of what would be held and cut.
  const unsigned steps = whole && !among && k <= STEP / 2 && n >= 32 * STEP ? n / STEP / 8 : 0;
  for (size_t row = (size_t)blockIdx.x * warps + warp; row < m; row += (size_t)gridDim.x * warps) {
    const T* const of_row = pre + row * n;
    held.n = 0, held.bound = steps ? bound_of<T, V>(of_row, dips, steps, k) : V(0);
    const auto add = [&](const V(&v)[P], unsigned first) {
      unsigned hits = 0, all;
#pragma unroll
      for (unsigned q = 0; q < P; ++q) hits |= (unsigned)(v[q] > held.bound) << q;
      unsigned place = held.n + place_of(hits, all);
#pragma unroll
      for (unsigned q = 0; q < P; ++q)
        if (hits >> q & 1) held.values[place] = v[q], held.latents[place++] = among ? among[first + q] : first + q;
      held.n += all;
      __syncwarp();
      if (held.n > k + max(k, MORE)) held.cut(k, spare);
    };
    if (among) {
      for (unsigned base = 0; base < n_among; base += STEP) {
        const unsigned first = base + lane * P;
        V v[P];
#pragma unroll
        for (unsigned q = 0; q < P; ++q) {
          const unsigned at = first + q < n_among ? among[first + q] : n;
          v[q] = at < n ? (V)wide(of_row[at]) + bias[at] : missing<V>();
        }
        add(v, first);
      }
    } else {
      each_group(
          of_row, n, whole, queues[warp],
          [&](unsigned step) { return held.bound + slack[step] - 4 * rounding(held.bound) * held.bound; },
          [&](unsigned first) {
            Numbers<T> numbers;
            V v[P];
            numbers.fetch(of_row, first, n, whole);
            values_of(numbers, bias, first, n, whole, v);
            add(v, first);
          });
    }
    if (held.n > k) held.cut(k, 0);
    for (unsigned i = lane; i < k; i += 32) {
      const bool there = i < held.n;
      indices[row * k + i] = there ? held.latents[i] : 0;
      values[row * k + i] = there ? held.values[i] : V(0);
    }
    if (lane == 0) count[row] = held.n;
    __syncwarp();
  }
}

// Adds the count of a row to the largest count and the sum of counts.
__device__ __forceinline__ void tell(unsigned* told, unsigned count) { atomicMax(told, count), atomicAdd(told + 1, count); }

template <typename T, typename V>
__device__ __forceinline__ void list_active(unsigned* indices, V* values, unsigned* count, unsigned* told, const T* pre,
                                            const V* bias, const V* bound, const V* slack, unsigned bounds,
                                            unsigned or_equal, size_t m, unsigned n, unsigned width) {
  __shared__ unsigned queues[WARPS][QUEUE];
  const unsigned lane = threadIdx.x % 32;
  const size_t warps = (size_t)gridDim.x * (blockDim.x / 32);
  const bool whole = is_whole(pre, bias, n), of_bounds = is_whole(pre, bound, n);
  const V only = bounds == 1 ? bound[0] : V(0), least = only - 4 * rounding(only) * fabs(only);
  for (size_t row = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < m; row += warps) {
    unsigned found = 0;
    each_group(
        pre + row * n, n, whole, queues[threadIdx.x / 32], [&](unsigned step) { return least + slack[step]; },
        [&](unsigned first) {
          Numbers<T> numbers;
          Numbers<V> bounds_of;
          V v[P];
          numbers.fetch(pre + row * n, first, n, whole);
          values_of(numbers, bias, first, n, whole, v);
          if (bounds > 1) bounds_of.fetch(bound, first, n, of_bounds);
          unsigned hits = 0, all;
#pragma unroll
          for (unsigned q = 0; q < P; ++q) {
            const V b = bounds > 1 ? bounds_of.at[q] : only;
            hits |= (unsigned)(first + q < n && (v[q] > b || (or_equal && v[q] == b))) << q;
          }
          unsigned place = found + place_of(hits, all);
#pragma unroll
          for (unsigned q = 0; q < P; ++q) {
            if (!(hits >> q & 1)) continue;
            if (place < width) indices[row * width + place] = first + q, values[row * width + place] = v[q];
            ++place;
          }
          found += all;
        });
    for (unsigned i = found + lane; i < width; i += 32) indices[row * width + i] = 0, values[row * width + i] = 0;
    if (lane == 0) count[row] = found, tell(told, found);
  }
}

template <typename V>
__device__ __forceinline__ void keep(unsigned* to_indices, V* to_values, unsigned* to_count, unsigned* told,
                                     const unsigned* indices, const V* values, const unsigned* count, const V* bound,
                                     size_t m, unsigned s, unsigned width) {
  const size_t row = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (row >= m) return;
  const unsigned entries = min(count[row], s);
  unsigned kept = 0;
  for (unsigned base = 0; base < entries; base += 32) {
    const unsigned k = base + lane;
    const V value = k < entries ? values[row * s + k] : V(0);
    const bool stays = k < entries && value >= *bound;
    const unsigned all = __ballot_sync(ALL, stays), place = kept + __popc(all & ((1u << lane) - 1));
    if (stays && place < width)
      to_indices[row * width + place] = indices[row * s + k], to_values[row * width + place] = value;
    kept += __popc(all);
  }
  for (unsigned i = kept + lane; i < width; i += 32) to_indices[row * width + i] = 0, to_values[row * width + i] = 0;
  if (lane == 0) to_count[row] = kept, tell(told, kept);
}

struct Search {
  unsigned long long key, wanted, none;
};

template <typename T, typename V>
__device__ __forceinline__ void threshold_tally(unsigned* tally, const T* pre, const V* bias, const Search* search,
                                                size_t m, unsigned of_rows, unsigned n, unsigned shift, unsigned bits,
                                                unsigned first) {
  extern __shared__ unsigned counts[];
  if (!first && search->none) return;
  const unsigned lane = threadIdx.x % 32, mask = (1u << bits) - 1;
  const unsigned long long found = first ? 0 : search->key >> shift >> bits;
  if (first) {
    for (unsigned b = threadIdx.x; b <= mask; b += blockDim.x) counts[b] = 0;
    __syncthreads();
  }
  const bool whole = is_whole(pre, bias, n);
  const size_t warps = (size_t)gridDim.x * (blockDim.x / 32);
  const unsigned parts = (n + PART - 1) / PART;
  for (size_t i = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < m * parts; i += warps) {
    const unsigned start = (unsigned)(i % parts) * PART, end = min(n - start, PART);
    const V* const of_bias = bias ? bias + start : nullptr;
    each_step(pre + i / parts * of_rows * n + start, end, whole, [&](const Numbers<T>& numbers, unsigned base) {
      V v[P];
      values_of(numbers, of_bias, base + lane * P, end, whole, v);
#pragma unroll
      for (unsigned q = 0; q < P; ++q) {
        if (!(v[q] > V(0))) continue;
        const unsigned long long key = key_of(v[q]);
        const unsigned digit = (unsigned)(key >> shift) & mask;
        if (first) atomicAdd(counts + digit, 1u);
        else if (key >> shift >> bits == found) atomicAdd(tally + digit, 1u);
      }
    }, Nothing());
  }
  if (first) {
    __syncthreads();
    for (unsigned b = threadIdx.x; b <= mask; b += blockDim.x)
      if (counts[b]) atomicAdd(tally + b, counts[b]);
  }
}

template <typename V>
__device__ __forceinline__ void threshold_pick(unsigned* tally, Search* search, V* out, unsigned long long count,
                                               unsigned shift, unsigned bits, unsigned first, unsigned last) {
  __shared__ unsigned long long sums[1024];
  __shared__ Search now;
  const unsigned digits = 1u << bits, each = (digits + 1023) / 1024, t = threadIdx.x;
  // Thread t has digits below digits - t * each: sums of the highest come first.
  unsigned long long sum = 0;
  for (unsigned i = 0; i < each; ++i) {
    const unsigned before = t * each + i;
    if (before < digits) sum += tally[digits - 1 - before];
  }
  sums[t] = sum;
  if (t == 0) now = first ? Search{0, count, 0} : *search;
  __syncthreads();
  for (unsigned step = 1; step < 1024; step *= 2) {
    const unsigned long long before = t >= step ? sums[t - step] : 0;
    __syncthreads();
    sums[t] += before;
    __syncthreads();
  }
  const unsigned long long all = sums[1023];
  const bool none = now.none || (first && all == 0);
  // With fewer than are wanted, the least of all.
  const unsigned long long wanted = now.wanted < all ? now.wanted : all;
  const unsigned long long higher = sums[t] - sum;
  if (!none && higher < wanted && wanted <= sums[t]) {
    unsigned long long passed = higher;
    for (unsigned i = 0; i < each; ++i) {
      const unsigned before = t * each + i;
      if (before >= digits) break;
      const unsigned here = tally[digits - 1 - before];
      if (passed + here >= wanted) {
        const unsigned long long key = now.key | (unsigned long long)(digits - 1 - before) << shift;
        search->key = key, search->wanted = wanted - passed, search->none = 0;
        if (last) *out = number_of((decltype(key_of(V())))key);
        break;
      }
      passed += here;
    }
  }
  if (none && t == 0) search->none = 1, *out = INFINITY;
  __syncthreads();
  for (unsigned b = t; b < digits; b += 1024) tally[b] = 0;
}

#define SELECT(SUFFIX, T, V)                                                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      top_k_##SUFFIX(unsigned* indices, V* values, unsigned* count, const T* pre, const V* bias, const unsigned* among, \
                     const V* slack, const V* dips, unsigned char* room, const size_t m, const unsigned n,             \
                     const unsigned n_among, const unsigned k, const unsigned most) {                                  \
    top_k<T, V>(indices, values, count, pre, bias, among, slack, dips, room, m, n, n_among, k, most);                  \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      list_active_##SUFFIX(unsigned* indices, V* values, unsigned* count, unsigned* told, const T* pre, const V* bias, \
                           const V* bound, const V* slack, const size_t m, const unsigned n, const unsigned bounds,                    \
                           const unsigned or_equal, const unsigned width) {                                            \
    list_active<T, V>(indices, values, count, told, pre, bias, bound, slack, bounds, or_equal, m, n, width);                 \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(1024)                                                                   \
      threshold_tally_##SUFFIX(unsigned* tally, const T* pre, const V* bias, const Search* search, const size_t m,     \
                               const unsigned of_rows, const unsigned n, const unsigned shift, const unsigned bits,    \
                               const unsigned first) {                                                                 \
    threshold_tally<T, V>(tally, pre, bias, search, m, of_rows, n, shift, bits, first);                                \
  }
SELECT(f32, float, float)
SELECT(f64, double, double)
SELECT(bf16, __nv_bfloat16, float)

#define PICK(SUFFIX, V)                                                                                                \
  extern "C" __global__ void __launch_bounds__(1024) threshold_pick_##SUFFIX(                                          \
      unsigned* tally, Search* search, V* out, const unsigned long long count, const unsigned shift,                   \
      const unsigned bits, const unsigned first, const unsigned last) {                                                \
    threshold_pick<V>(tally, search, out, count, shift, bits, first, last);                                            \
  }
#define KEEP(SUFFIX, V)                                                                                                \
  extern "C" __global__ void keep_##SUFFIX(unsigned* to_indices, V* to_values, unsigned* to_count, unsigned* told,     \
                                           const unsigned* indices, const V* values, const unsigned* count,            \
                                           const V* bound, const size_t m, const unsigned s, const unsigned width) {   \
    keep<V>(to_indices, to_values, to_count, told, indices, values, count, bound, m, s, width);                        \
  }
#define SLACKS(SUFFIX, V)                                                                                              \
  extern "C" __global__ void slacks_##SUFFIX(V* slack, V* dips, const V* bias, const V* bound, const unsigned bounds,  \
                                             const unsigned n) {                                                       \
    slacks<V>(slack, dips, bias, bound, bounds, n);                                                                    \
  }
SLACKS(f32, float)
SLACKS(f64, double)
KEEP(f32, float)
KEEP(f64, double)
PICK(f32, float)
PICK(f64, double)
