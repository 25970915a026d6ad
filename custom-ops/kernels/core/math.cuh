// math.cuh: elementary functions that give the same bits as those of src/core/math.rs, which has
// their ranges, errors and sources. Each line has the same operations in the same order there;
// always change both files.
//
// Rounded rounds every operation to nearest by itself, whatever -fmad says. Subnormals must not be
// flushed: the kernels are compiled without -ftz=true and -use_fast_math.
#pragma once

struct Rounded {
  float v;
  __device__ __forceinline__ Rounded() {}
  __device__ __forceinline__ Rounded(float v) : v(v) {}
};
__device__ __forceinline__ Rounded operator+(Rounded a, Rounded b) { return __fadd_rn(a.v, b.v); }
__device__ __forceinline__ Rounded operator-(Rounded a, Rounded b) { return __fsub_rn(a.v, b.v); }
__device__ __forceinline__ Rounded operator*(Rounded a, Rounded b) { return __fmul_rn(a.v, b.v); }
__device__ __forceinline__ Rounded operator/(Rounded a, Rounded b) { return __fdiv_rn(a.v, b.v); }
__device__ __forceinline__ bool operator<(Rounded a, Rounded b) { return a.v < b.v; }
__device__ __forceinline__ bool operator>(Rounded a, Rounded b) { return a.v > b.v; }
__device__ __forceinline__ unsigned bits_of(Rounded a) { return __float_as_uint(a.v); }
__device__ __forceinline__ Rounded of_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ Rounded minus_abs(Rounded a) { return of_bits(bits_of(a) | 0x80000000u); }
__device__ __forceinline__ Rounded root(Rounded a) { return __fsqrt_rn(a.v); }

constexpr float ROUNDER = 12582912.f;  // 1.5 * 2^23
constexpr unsigned ROUNDER_BITS = 0x4B400000u;
constexpr unsigned SQRT_HALF_BITS = 0x3f3504f3u;

// 2^n for -126 <= n <= 127.
__device__ __forceinline__ Rounded power_of_two(int n) { return of_bits((unsigned)(n + 127) << 23); }

__device__ __forceinline__ Rounded exact_exp(Rounded x) {
  x = x > 89.5f ? Rounded(89.5f) : x;
  x = x < -105.f ? Rounded(-105.f) : x;
  const Rounded shifted = x * 1.44269504f + ROUNDER;
  const Rounded n = shifted - ROUNDER;
  Rounded r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Rounded p = Rounded(1.9875691500e-4f) * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Rounded y = (p * (r * r) + r) + 1.f;
  const int power = (int)(bits_of(shifted) - ROUNDER_BITS);
  const int half = power >> 1;
  return (y * power_of_two(half)) * power_of_two(power - half);
}

// ln x for finite x >= 2^-126.
__device__ __forceinline__ Rounded exact_ln_normal(Rounded x) {
  const unsigned bits = bits_of(x) + (0x3f800000u - SQRT_HALF_BITS);
  const Rounded k = __int2float_rn((int)(bits >> 23) - 127);
  const Rounded f = of_bits((bits & 0x007fffffu) + SQRT_HALF_BITS) - 1.f;
  const Rounded s = f / (Rounded(2.f) + f);
  const Rounded z = s * s;
  const Rounded w = z * z;
  const Rounded even = z * (Rounded(0.66666662693f) + w * 0.28498786688f);
  const Rounded odd = w * (Rounded(0.40000972152f) + w * 0.24279078841f);
  const Rounded r = even + odd;
  const Rounded half_square = Rounded(0.5f) * f * f;
  return s * (half_square + r) + k * 9.0580006145e-6f - half_square + f + k * 6.9313812256e-1f;
}

__device__ __forceinline__ Rounded exact_sigmoid(Rounded x) {
  const Rounded e = exact_exp(minus_abs(x));
  const Rounded numerator = x < 0.f ? e : Rounded(1.f);
  return numerator / (Rounded(1.f) + e);
}

__device__ __forceinline__ Rounded exact_softplus(Rounded x) {
  const Rounded e = exact_exp(minus_abs(x));
  const Rounded u = Rounded(1.f) + e;
  const Rounded lost = e - (u - 1.f);
  const Rounded positive = x > 0.f ? x : Rounded(0.f);
  return positive + (exact_ln_normal(u) + lost / u);
}

__device__ __forceinline__ void exact_sin_cos_turns(Rounded u, Rounded& sine, Rounded& cosine) {
  const Rounded shifted = Rounded(4.f) * u + ROUNDER;
  const Rounded quarters = shifted - ROUNDER;
  const Rounded angle = (u - Rounded(0.25f) * quarters) * 6.28318530717958647692f;
  const Rounded z = angle * angle;
  Rounded s = (Rounded(-1.9515295891e-4f) * z + 8.3321608736e-3f) * z - 1.6666654611e-1f;
  s = s * z * angle + angle;
  Rounded c = (Rounded(2.443315711809948e-5f) * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
  c = c * z * z - Rounded(0.5f) * z + 1.f;
  const unsigned quadrant = bits_of(shifted);
  const bool odd = quadrant & 1u;
  sine = of_bits(bits_of(odd ? c : s) ^ ((quadrant & 2u) << 30));
  cosine = of_bits(bits_of(odd ? s : c) ^ (((quadrant + 1u) & 2u) << 30));
}

// A random word as a multiple of 2^-24 in [0, 1).
__device__ __forceinline__ Rounded uniform_of(unsigned word) {
  return Rounded(__int2float_rn((int)(word >> 8))) * (1.f / 16777216.f);
}

// Two random words as two independent normal draws.
__device__ __forceinline__ void normal_of(unsigned word0, unsigned word1, Rounded& first, Rounded& second) {
  constexpr float SCALE = 1.f / 4294967296.f;
  const Rounded u = Rounded(__uint2float_rn(word0)) * SCALE + 0.5f * SCALE;
  const Rounded radius = root(Rounded(-2.f) * exact_ln_normal(u));
  Rounded sine, cosine;
  exact_sin_cos_turns(uniform_of(word1), sine, cosine);
  first = radius * cosine;
  second = radius * sine;
}

// The draws of one block of four elements.
__device__ __forceinline__ void uniform_of(const uint4& words, Rounded (&draws)[4]) {
  draws[0] = uniform_of(words.x);
  draws[1] = uniform_of(words.y);
  draws[2] = uniform_of(words.z);
  draws[3] = uniform_of(words.w);
}
__device__ __forceinline__ void normal_of(const uint4& words, Rounded (&draws)[4]) {
  normal_of(words.x, words.y, draws[0], draws[1]);
  normal_of(words.z, words.w, draws[2], draws[3]);
}
