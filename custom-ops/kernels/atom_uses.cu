// atom_uses.cu: sparse codes sorted by atom, a stable counting sort.
//
//   place e = i * s + k is used when k < count[i] and indices[e] < n;  key(e) = indices[e]
//   offsets[j] = places with key < j;  entries[offsets[j] ..] = the places with key j, ascending
//
// Places are cut into tiles, one warp each. tally counts the keys of each tile, scan_tiles turns the counts of an atom into starts within its
// list, scan_atoms adds up the lists, scatter goes over the tiles again and writes. A warp takes 32 places at a time, in order; lanes with
// one key find each other and the lowest writes for all, so that no atomic is needed and the order is that of the places.
//
// arrays   indices: [m, s] u32, count: [m] u32, contiguous. packed: offsets [n + 1], then entries [m * s], u32, zero at first.
//          table: [n, tiles] u32, zero at first. None overlap
// scalars  entries = m * s < 2^32; s >= 1 where there are entries; n >= 1; tile a multiple of 32; tiles >= 1
// launch   tally, scatter: a warp for each tile; scan_tiles: a warp for each atom; blocks of 128. scan_atoms: one block of 1024
// shared   128 bytes in scan_atoms
// cost     reads the indices twice and writes the entries once; latency of the table's counts binds
// bounds   an index of n or more, and a count above s, is left out
// same     lists on every device: the order is part of the result
// truth    Sort::sort in src/atoms/uses.rs

constexpr unsigned WARP = 32, ALL = 0xffffffffu, NONE = 0xffffffffu;

__device__ unsigned warp_of_grid() { return (blockIdx.x * blockDim.x + threadIdx.x) / WARP; }

// The atom of place at + lane, NONE for one that is not used.
__device__ unsigned key_of(unsigned at, unsigned lane, unsigned end, const unsigned* indices, const unsigned* count,
                           unsigned s, unsigned n) {
  if (lane >= end - at) return NONE;
  const unsigned e = at + lane;
  const unsigned signal = e / s, slot = e - signal * s;
  if (slot >= count[signal]) return NONE;
  const unsigned atom = indices[e];
  return atom < n ? atom : NONE;
}

__device__ unsigned last_of(unsigned start, unsigned tile, unsigned entries) {
  return entries - start < tile ? entries : start + tile;
}

extern "C" __global__ void tally(unsigned* table, const unsigned* indices, const unsigned* count,
                                 const unsigned entries, const unsigned s, const unsigned n, const unsigned tile,
                                 const unsigned tiles) {
  const unsigned t = warp_of_grid(), lane = threadIdx.x % WARP;
  if (t >= tiles || (size_t)t * tile >= entries) return;
  const unsigned start = t * tile, end = last_of(start, tile, entries);
  for (unsigned at = start; at < end; at += WARP) {
    const unsigned key = key_of(at, lane, end, indices, count, s, n);
    const unsigned same = __match_any_sync(ALL, key);
    if (key != NONE && __ffs(same) - 1 == (int)lane) table[(size_t)key * tiles + t] += __popc(same);
    __syncwarp();
    if (end - at <= WARP) break;  // at + WARP may wrap
  }
}

// Exclusive sum over the lanes of a warp; `all` becomes the sum of all.
__device__ unsigned scan_warp(unsigned x, unsigned lane, unsigned& all) {
  unsigned sum = x;
  for (unsigned by = 1; by < WARP; by *= 2) {
    const unsigned left = __shfl_up_sync(ALL, sum, by);
    if (lane >= by) sum += left;
  }
  all = __shfl_sync(ALL, sum, WARP - 1);
  return sum - x;
}

extern "C" __global__ void scan_tiles(unsigned* offsets, unsigned* table, const unsigned n, const unsigned tiles) {
  const unsigned atom = warp_of_grid(), lane = threadIdx.x % WARP;
  if (atom >= n) return;
  unsigned* row = table + (size_t)atom * tiles;
  unsigned before = 0;
  for (unsigned at = 0; at < tiles; at += WARP) {
    unsigned all;
    const unsigned x = at + lane < tiles ? row[at + lane] : 0;
    const unsigned sum = scan_warp(x, lane, all);
    if (at + lane < tiles) row[at + lane] = before + sum;
    before += all;
  }
  if (lane == 0) offsets[atom + 1] = before;  // a length for now
}

extern "C" __global__ void scan_atoms(unsigned* offsets, const unsigned n) {
  __shared__ unsigned sums[WARP];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  unsigned before = 0;
  for (unsigned at = 0; at < n; at += blockDim.x) {
    const unsigned j = at + threadIdx.x;
    const unsigned x = j < n ? offsets[j + 1] : 0;
    unsigned all;
    const unsigned sum = scan_warp(x, lane, all);
    if (lane == 0) sums[warp] = all;
    __syncthreads();
    unsigned of_warps;
    const unsigned others = scan_warp(sums[lane], lane, of_warps);
    const unsigned start = __shfl_sync(ALL, others, warp);
    if (j < n) offsets[j + 1] = before + start + sum + x;
    before += of_warps;
    __syncthreads();
  }
}

extern "C" __global__ void scatter(unsigned* packed, unsigned* table, const unsigned* indices, const unsigned* count,
                                   const unsigned entries, const unsigned s, const unsigned n, const unsigned tile,
                                   const unsigned tiles) {
  const unsigned t = warp_of_grid(), lane = threadIdx.x % WARP;
  if (t >= tiles || (size_t)t * tile >= entries) return;
  unsigned* list = packed + n + 1;
  const unsigned start = t * tile, end = last_of(start, tile, entries);
  for (unsigned at = start; at < end; at += WARP) {
    const unsigned key = key_of(at, lane, end, indices, count, s, n);
    const unsigned same = __match_any_sync(ALL, key);
    unsigned* next = table + (size_t)(key == NONE ? 0 : key) * tiles + t;
    const unsigned base = *next;
    __syncwarp();
    if (key != NONE) {
      list[packed[key] + base + __popc(same & ((1u << lane) - 1))] = at + lane;
      if (__ffs(same) - 1 == (int)lane) *next = base + __popc(same);
    }
    __syncwarp();
    if (end - at <= WARP) break;
  }
}
