// Vectors of the instruction set that a file is compiled for, through the compiler's vector types. IP_LANES is given.
#pragma once
#include <cstdint>
#include <cstring>
#include <cmath>

#if defined(__AVX512F__)
#include <immintrin.h>
#define IP_LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define IP_LANES 8
#else
#define IP_LANES 4
#endif

#define IP_INLINE inline __attribute__((always_inline))

namespace {

typedef float vf __attribute__((vector_size(4 * IP_LANES), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * IP_LANES), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * IP_LANES), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * IP_LANES), may_alias));
constexpr int kLanes = IP_LANES;

template <class V>
IP_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}
template <class V>
IP_INLINE void store(void* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}
IP_INLINE vf splat(float x) { return vf{} + x; }
IP_INLINE vu splat_bits(uint32_t x) { return vu{} + x; }

IP_INLINE float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
// Round to nearest even; NaN stays NaN.
IP_INLINE uint16_t float_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
IP_INLINE vf widen(vh h) { return reinterpret_cast<vf>(__builtin_convertvector(h, vu) << 16); }
IP_INLINE vh narrow(vf x) {
#if defined(__AVX512BF16__)
  __m256bh r = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));
  return reinterpret_cast<vh>(r);
#else
  const vu bits = reinterpret_cast<vu>(x);
  const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const vu quiet = (bits >> 16) | 0x40u;
  const vu is_nan = reinterpret_cast<vu>((bits & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), vh);
#endif
}

IP_INLINE vf max_of(vf a, vf b) { return a > b ? a : b; }
IP_INLINE float sum_of(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(x));
#else
  float s = 0;
  for (int i = 0; i < kLanes; ++i) s += x[i];
  return s;
#endif
}
IP_INLINE float largest_of(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#else
  float m = x[0];
  for (int i = 1; i < kLanes; ++i) m = x[i] > m ? x[i] : m;
  return m;
#endif
}

// exp to about 1 unit in the last place: 2^n · p(r), n the nearest integer to x / ln 2 (Cephes' polynomial).
IP_INLINE vf exp_of(vf x) {
  const vf low = splat(-87.33654f), high = splat(88.3762626f);
  const vf clamped = x > high ? high : (x > low ? x : low);
  const vf magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer
  const vf n = (clamped * 1.44269504088896341f + magic) - magic;
  const vf r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const vi scale = (__builtin_convertvector(n, vi) + 127) << 23;
  const vf result = p * reinterpret_cast<vf>(scale);
  // below the range is 0 (a masked score), NaN stays NaN
  return x != x ? x : (x < low ? splat(0.0f) : result);
}
// 2^x to about 2 units in the last place; what underflows is 0, NaN stays NaN. x is at most 127.
IP_INLINE vf exp2_of(vf x) {
  // minimax polynomial of 2^r on [-1/2, 1/2]
  const auto polynomial = [](vf r) {
    vf p = splat(1.5353362e-4f);
    p = p * r + 1.3398874e-3f;
    p = p * r + 9.6184373e-3f;
    p = p * r + 5.5503325e-2f;
    p = p * r + 2.4022648e-1f;
    p = p * r + 6.9314720e-1f;
    return p * r + 1.0f;
  };
#if defined(__AVX512F__)
  const __m512 v = reinterpret_cast<__m512>(x);
  const vf n = reinterpret_cast<vf>(_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  // scalef gives 0 for n = -inf, where r is NaN: the difference is taken of what is in range
  const vf r = x < splat(-150.0f) ? vf{} : x - n;
  return reinterpret_cast<vf>(_mm512_scalef_ps(reinterpret_cast<__m512>(polynomial(r)), reinterpret_cast<__m512>(n)));
#else
  const vf low = splat(-126.0f);
  const vf clamped = x > low ? x : low;
  const vf magic = splat(12582912.0f);
  const vf n = (clamped + magic) - magic;
  const vi scale = (__builtin_convertvector(n, vi) + 127) << 23;
  const vf result = polynomial(clamped - n) * reinterpret_cast<vf>(scale);
  return x != x ? x : (x < low ? vf{} : result);
#endif
}

// The sum of each of kLanes vectors, in one vector: lane i is that of vector i. Neighbours are added in a tree.
template <int Stride = 1, int Count>
IP_INLINE vf sums_of(vf (&x)[Count]) {
  if constexpr (Count == 1) {
    return x[0];
  } else {
    vi first, second;
    for (int i = 0; i < kLanes; ++i) {
      const int of_pair = (i / Stride) % 2, lane = i / (2 * Stride) * (2 * Stride) + i % Stride;
      first[i] = of_pair * kLanes + lane;
      second[i] = of_pair * kLanes + lane + Stride;
    }
    vf half[Count / 2];
    for (int i = 0; i < Count / 2; ++i)
      half[i] = __builtin_shuffle(x[2 * i], x[2 * i + 1], first) + __builtin_shuffle(x[2 * i], x[2 * i + 1], second);
    return sums_of<2 * Stride>(half);
  }
}

IP_INLINE vf tanh_of(vf x) {
  // 1 - 2 / (e^2x + 1): no overflow, since e^2x is clamped
  return 1.0f - 2.0f / (exp_of(x + x) + 1.0f);
}

// How activations and weights of a type are stored and multiplied. A group is what one 32-bit lane holds.
struct F32 {
  using Element = float;
  static constexpr int kGroup = 1;
  static IP_INLINE vf load_v(const Element* p) { return load<vf>(p); }
  static IP_INLINE void store_v(Element* p, vf x) { store(p, x); }
  static IP_INLINE float to_float(Element x) { return x; }
  static IP_INLINE Element from_float(float x) { return x; }
  static IP_INLINE vf dot(vf sum, vu weights, vu x) {
    return reinterpret_cast<vf>(weights) * reinterpret_cast<vf>(x) + sum;
  }
};

struct BF16 {
  using Element = uint16_t;
  static constexpr int kGroup = 2;
  static IP_INLINE vf load_v(const Element* p) { return widen(load<vh>(p)); }
  static IP_INLINE void store_v(Element* p, vf x) { store(p, narrow(x)); }
  static IP_INLINE float to_float(Element x) { return bf16_to_float(x); }
  static IP_INLINE Element from_float(float x) { return float_to_bf16(x); }
  static IP_INLINE vf dot(vf sum, vu weights, vu x) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<vf>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(weights),
                                                 reinterpret_cast<__m512bh>(x)));
#else
    const vf low = reinterpret_cast<vf>(weights << 16) * reinterpret_cast<vf>(x << 16) + sum;
    return reinterpret_cast<vf>(weights & 0xffff0000u) * reinterpret_cast<vf>(x & 0xffff0000u) + low;
#endif
  }
};

}  // namespace
