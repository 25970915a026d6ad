// latent_select.cu: which latents of a sparse autoencoder are active, v = pre + bias.
//
//   top_k            of each row the k largest v above 0; of equal ones the lower latents
//   list_active      the v above their bound, or at it with or_equal, in the order of latents, in
//                    rows of `width` entries, and how many there are, also those that do not fit
//   keep             entries of codes of latents from start to below end, not below the bound
//   threshold_tally  tally[b] += number of v > 0 whose key is the found one above `shift + bits`
//                    and has b in the bits from `shift` on; the key of a number above 0 is its bits
//   threshold_pick   puts into the found key the bits of the number that is wanted, from a tally;
//                    with `last` gives the number, the least one of the found bits
//
// arrays   pre: [m, n] of T; bias: [n] of V, or null for 0; among: [n_among] u32, ascending, or
//          null for all; indices, values: [m, k] or [m, width], 0 beyond the count; count: [m]; bound:
//          [1] or [n] of V, of keep [1] or null. tally: [2^bits] u32, zeros before threshold_tally,
//          which threshold_pick leaves so; search: 3 u64, the found key, how many are still wanted,
//          and whether none is above 0, written by the first threshold_pick; out: [1] of V.
//          Contiguous; results overlap nothing. room: bytes of what top_k holds for each warp of
//          the grid, or null where that is in shared memory
// scalars  1 <= k; n, n_among < 2^32 - 512; most: entries that a warp holds, k + max(k, 64) + 512;
//          m n < 2^32 for thresholds; count: the number that is wanted; shift and bits of a digit;
//          first: whether it is the highest
// launch   1-D grids of 1-D blocks of whole warps, a warp for a row at a time, of keep for one row;
//          threshold_pick: one block of 1024
// shared   top_k: held entries of each warp; threshold_tally of the highest digit: 2^bits counts
// cost     reads pre once; the memory binds, in top_k the work on what is held. It holds more than
//          k entries, and cuts them down to the k largest when it has k more or 64 more
// same     what is chosen is a fact of v; atomics count integers
// NaN      is never chosen
// truth    src/codes/latents/select

#include "core/numbers.cuh"

// A warp takes STEP latents at a time: four chunks of 128, of which a lane has four neighbours
// each.
constexpr unsigned ALL = 0xffffffffu, P = 16, STEP = 32 * P;

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

// Which latent is number q of a lane, of those from `base` on.
__device__ __forceinline__ unsigned latent_of(unsigned base, unsigned lane, unsigned q) {
  return base + q / 4 * 128 + lane * 4 + q % 4;
}

// Whether lanes can take four numbers at a time: rows and what goes with them are aligned.
template <typename T, typename V>
__device__ __forceinline__ bool is_whole(const T* pre, const V* bias, unsigned n) {
  return n % 4 == 0 && ((size_t)pre | (size_t)bias) % 16 == 0;
}

// Four neighbours as they lie in memory.
__device__ __forceinline__ void copy4(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}
__device__ __forceinline__ void copy4(const __nv_bfloat16* from, __nv_bfloat16* to) {
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
}
__device__ __forceinline__ void copy4(const double* from, double* to) {
  reinterpret_cast<double2*>(to)[0] = reinterpret_cast<const double2*>(from)[0];
  reinterpret_cast<double2*>(to)[1] = reinterpret_cast<const double2*>(from)[1];
}

// The numbers of a lane, of those from `base` on, as they lie in memory; 0 from n on.
template <typename T> struct Numbers {
  alignas(16) T at[P];

  __device__ __forceinline__ void fetch(const T* from, unsigned base, unsigned lane, unsigned n, bool whole) {
#pragma unroll
    for (unsigned q = 0; q < P; q += 4) {
      const unsigned first = latent_of(base, lane, q);
      if (whole) {
        if (first < n) copy4(from + first, at + q);
      } else {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          if (first + i < n) at[q + i] = from[first + i];
      }
    }
  }
};

// v of the latents of a lane, from what was fetched; those from n on are minus infinity. Without a
// bias it is 0.
template <typename T, typename V>
__device__ __forceinline__ void values_of(const Numbers<T>& pre, const V* bias, unsigned base, unsigned lane,
                                          unsigned n, bool whole, V (&v)[P]) {
  Numbers<V> b;
  if (bias) b.fetch(bias, base, lane, n, whole);
#pragma unroll
  for (unsigned q = 0; q < P; ++q) v[q] = bias ? (V)wide(pre.at[q]) + b.at[q] : (V)wide(pre.at[q]);
  if (base + STEP > n) {
#pragma unroll
    for (unsigned q = 0; q < P; ++q)
      if (latent_of(base, lane, q) >= n) v[q] = missing<V>();
  }
}

// Calls take(place, q) for each hit q of a lane, in the order of latents over the warp; gives how
// many those of all lanes are.
template <typename F> __device__ __forceinline__ unsigned each_hit(unsigned hits, F take) {
  // The number of hits of each chunk in a byte of its own: 128 at most of a warp.
  unsigned counts = (hits & 0xf) | (hits & 0xf0) << 4 | (hits & 0xf00) << 8 | (hits & 0xf000) << 12;
  counts -= counts >> 1 & 0x05050505u;
  counts = (counts & 0x03030303u) + (counts >> 2 & 0x03030303u);
  unsigned sums = counts;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned below = __shfl_up_sync(ALL, sums, step);
    if (threadIdx.x % 32 >= step) sums += below;
  }
  const unsigned ends = __shfl_sync(ALL, sums, 31), before = sums - counts;
  unsigned chunk = ~0u, place = 0;
  for (unsigned left = hits; left; left &= left - 1) {
    const unsigned q = __ffs(left) - 1;
    if (q / 4 != chunk) {
      chunk = q / 4;
      // All of the chunks before, then those of the lanes before.
      const unsigned earlier = ends & ((1u << 8 * chunk) - 1);
      place = (earlier & 0xff) + (earlier >> 8 & 0xff) + (earlier >> 16 & 0xff) + (before >> 8 * chunk & 0xff);
    }
    take(place++, q);
  }
  return (ends & 0xff) + (ends >> 8 & 0xff) + (ends >> 16 & 0xff) + (ends >> 24);
}

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
                                      const unsigned* among, unsigned char* room, size_t m, unsigned n,
                                      unsigned n_among, unsigned k, unsigned most) {
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const size_t bytes = (size_t)most * (sizeof(V) + sizeof(unsigned));
  unsigned char* mine = room ? room + ((size_t)blockIdx.x * warps + warp) * bytes : shared + warp * bytes;
  Held<V> held;
  held.values = reinterpret_cast<V*>(mine);
  held.latents = reinterpret_cast<unsigned*>(mine + (size_t)most * sizeof(V));
  const unsigned spare = max(k, 64u) / 4, all = among ? n_among : n;
  const bool whole = is_whole(pre, bias, n);
  for (size_t row = (size_t)blockIdx.x * warps + warp; row < m; row += (size_t)gridDim.x * warps) {
    const T* const of_row = pre + row * n;
    held.n = 0, held.bound = 0;
    // What comes next is fetched while this is looked at.
    Numbers<T> next;
    if (!among) next.fetch(of_row, 0, lane, n, whole);
    for (unsigned base = 0; base < all; base += STEP) {
      V v[P];
      if (among) {
#pragma unroll
        for (unsigned q = 0; q < P; ++q) {
          const unsigned i = latent_of(base, lane, q), at = i < all ? among[i] : n;
          v[q] = at < n ? (V)wide(of_row[at]) + bias[at] : missing<V>();
        }
      } else {
        const Numbers<T> now = next;
        if (base + STEP < n) next.fetch(of_row, base + STEP, lane, n, whole);
        values_of(now, bias, base, lane, n, whole, v);
      }
      unsigned hits = 0;
#pragma unroll
      for (unsigned q = 0; q < P; ++q) hits |= (unsigned)(v[q] > held.bound) << q;
      if (!__any_sync(ALL, hits)) continue;
      // Few are hit: their numbers are read once more, from a cache.
      held.n += each_hit(hits, [&](unsigned place, unsigned q) {
        const unsigned i = latent_of(base, lane, q), at = among ? among[i] : i;
        held.values[held.n + place] = (V)wide(of_row[at]) + bias[at];
        held.latents[held.n + place] = at;
      });
      __syncwarp();
      if (held.n > k + max(k, 64u)) held.cut(k, spare);
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

template <typename T, typename V>
__device__ __forceinline__ void list_active(unsigned* indices, V* values, unsigned* count, const T* pre, const V* bias,
                                            const V* bound, unsigned bounds, unsigned or_equal, size_t m, unsigned n,
                                            unsigned width) {
  const unsigned lane = threadIdx.x % 32;
  const size_t warps = (size_t)gridDim.x * (blockDim.x / 32);
  const bool whole = is_whole(pre, bias, n), of_bounds = is_whole(pre, bound, n);
  const V only = bounds == 1 ? bound[0] : V(0);
  for (size_t row = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < m; row += warps) {
    unsigned found = 0;
    Numbers<T> next;
    next.fetch(pre + row * n, 0, lane, n, whole);
    for (unsigned base = 0; base < n; base += STEP) {
      V v[P];
      Numbers<V> least;
      const Numbers<T> now = next;
      if (base + STEP < n) next.fetch(pre + row * n, base + STEP, lane, n, whole);
      values_of(now, bias, base, lane, n, whole, v);
      if (bounds == 1) {
#pragma unroll
        for (unsigned q = 0; q < P; ++q) least.at[q] = only;
      } else {
        least.fetch(bound, base, lane, n, of_bounds);
      }
      unsigned hits = 0;
#pragma unroll
      for (unsigned q = 0; q < P; ++q)
        hits |= (unsigned)(v[q] > least.at[q] || (or_equal && v[q] == least.at[q])) << q;
      if (base + STEP > n) {
#pragma unroll
        for (unsigned q = 0; q < P; ++q)
          if (latent_of(base, lane, q) >= n) hits &= ~(1u << q);
      }
      if (!__any_sync(ALL, hits)) continue;
      // Few are hit: their numbers are read once more, from a cache.
      found += each_hit(hits, [&](unsigned place, unsigned q) {
        const unsigned at = latent_of(base, lane, q);
        if (found + place >= width) return;
        indices[row * width + found + place] = at;
        values[row * width + found + place] = (V)wide(pre[row * n + at]) + (bias ? bias[at] : V(0));
      });
    }
    for (unsigned i = found + lane; i < width; i += 32) indices[row * width + i] = 0, values[row * width + i] = 0;
    if (lane == 0) count[row] = found;
  }
}

template <typename V>
__device__ __forceinline__ void keep(unsigned* to_indices, V* to_values, unsigned* to_count, const unsigned* indices,
                                     const V* values, const unsigned* count, const V* bound, size_t m, unsigned s,
                                     unsigned start, unsigned end) {
  const size_t row = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (row >= m) return;
  const unsigned entries = min(count[row], s);
  const V least = bound ? *bound : missing<V>();
  unsigned kept = 0;
  for (unsigned base = 0; base < entries; base += 32) {
    const unsigned k = base + lane;
    const unsigned latent = k < entries ? indices[row * s + k] : 0;
    const V value = k < entries ? values[row * s + k] : V(0);
    const bool stays = k < entries && start <= latent && latent < end && value >= least;
    const unsigned all = __ballot_sync(ALL, stays);
    if (stays) {
      const size_t to = row * s + kept + __popc(all & ((1u << lane) - 1));
      to_indices[to] = latent, to_values[to] = value;
    }
    kept += __popc(all);
  }
  for (unsigned i = kept + lane; i < s; i += 32) to_indices[row * s + i] = 0, to_values[row * s + i] = 0;
  if (lane == 0) to_count[row] = kept;
}

struct Search {
  unsigned long long key, wanted, none;
};

template <typename T, typename V>
__device__ __forceinline__ void threshold_tally(unsigned* tally, const T* pre, const V* bias, const Search* search,
                                                size_t m, unsigned n, unsigned shift, unsigned bits, unsigned first) {
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
  for (size_t row = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < m; row += warps) {
    Numbers<T> next;
    next.fetch(pre + row * n, 0, lane, n, whole);
    for (unsigned base = 0; base < n; base += STEP) {
      V v[P];
      const Numbers<T> now = next;
      if (base + STEP < n) next.fetch(pre + row * n, base + STEP, lane, n, whole);
      values_of(now, bias, base, lane, n, whole, v);
#pragma unroll
      for (unsigned q = 0; q < P; ++q) {
        if (!(v[q] > V(0))) continue;
        const unsigned long long key = key_of(v[q]);
        const unsigned digit = (unsigned)(key >> shift) & mask;
        if (first) atomicAdd(counts + digit, 1u);
        else if (key >> shift >> bits == found) atomicAdd(tally + digit, 1u);
      }
    }
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
                     unsigned char* room, const size_t m, const unsigned n, const unsigned n_among, const unsigned k,  \
                     const unsigned most) {                                                                            \
    top_k<T, V>(indices, values, count, pre, bias, among, room, m, n, n_among, k, most);                               \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      list_active_##SUFFIX(unsigned* indices, V* values, unsigned* count, const T* pre, const V* bias, const V* bound, \
                           const size_t m, const unsigned n, const unsigned bounds, const unsigned or_equal,           \
                           const unsigned width) {                                                                     \
    list_active<T, V>(indices, values, count, pre, bias, bound, bounds, or_equal, m, n, width);                        \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(1024)                                                                   \
      threshold_tally_##SUFFIX(unsigned* tally, const T* pre, const V* bias, const Search* search, const size_t m,     \
                               const unsigned n, const unsigned shift, const unsigned bits, const unsigned first) {    \
    threshold_tally<T, V>(tally, pre, bias, search, m, n, shift, bits, first);                                         \
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
  extern "C" __global__ void keep_##SUFFIX(unsigned* to_indices, V* to_values, unsigned* to_count,                     \
                                           const unsigned* indices, const V* values, const unsigned* count,            \
                                           const V* bound, const size_t m, const unsigned s, const unsigned start,     \
                                           const unsigned end) {                                                       \
    keep<V>(to_indices, to_values, to_count, indices, values, count, bound, m, s, start, end);                         \
  }
KEEP(f32, float)
KEEP(f64, double)
PICK(f32, float)
PICK(f64, double)
