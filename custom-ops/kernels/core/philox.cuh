// philox.cuh: Philox4x32-10, the only source of random bits. src/core/philox.rs has the rounds, the
// layout of key and counter, and the source; its known-answer tests also apply to this function.
#pragma once

struct Philox {
  unsigned long long seed;    // key
  unsigned long long stream;  // upper half of the counter
  unsigned long long offset;  // lower half, in blocks of four words; wraps
};

// The place in the sequence, moved on by the blocks that `counter` (one i64, or null) holds.
__device__ __forceinline__ Philox philox_at(unsigned long long seed, unsigned long long stream,
                                            unsigned long long offset, const long long* counter) {
  return Philox{seed, stream, offset + (counter ? (unsigned long long)*counter : 0ull)};
}

// A product of 64 bits. Where factors are converted for `*`, nvcc adds the keys in more steps: a
// block then takes a third more instructions.
__device__ __forceinline__ unsigned long long wide_product(unsigned a, unsigned b) {
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

// The four words of block `index`, counted from the offset: elements 4 * index to 4 * index + 3.
__device__ __forceinline__ uint4 philox_block(const Philox& at, unsigned long long index) {
  const unsigned long long low = at.offset + index;
  uint4 c = make_uint4((unsigned)low, (unsigned)(low >> 32), (unsigned)at.stream, (unsigned)(at.stream >> 32));
  unsigned k0 = (unsigned)at.seed, k1 = (unsigned)(at.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = wide_product(0xD2511F53u, c.x), p1 = wide_product(0xCD9E8D57u, c.z);
    c = make_uint4((unsigned)(p1 >> 32) ^ c.y ^ k0, (unsigned)p1, (unsigned)(p0 >> 32) ^ c.w ^ k1, (unsigned)p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}
