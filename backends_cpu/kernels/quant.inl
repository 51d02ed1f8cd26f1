// Products with weights in ggml's block formats. Included by kernels.inl.
//
// Weights are repacked once, in panels of kPanel output features as the dense ones are, and stay integers: a group of 32
// inputs is, for every vector of output features, 8 steps of 4 inputs a lane. Activations are rounded to 8 bits by groups
// of 32, so that a group's product is a sum of integers, exact, and one multiplication with both scales:
//
//   Σ_g scale_w[g] · scale_x[g] · (Σ (q_w - offset) · q_x)  +  min_w[g] · scale_x[g] · Σ q_x
//
// q_w is unsigned, as the instructions want one operand; `offset` makes it signed and is taken off by what the sum of a
// group starts with.

constexpr int kGroup32 = 32;
constexpr int kSteps = kGroup32 / 4;
constexpr int kBlockRows = 64;  // rows whose sums stay in the first-level cache
#if IP_LANES == 16
constexpr int kTogether = 2;    // rows a time: the weights of a group are 16 of 32 registers
#else
constexpr int kTogether = 3;
#endif

// A group of 32 activations
struct Activations {
  int8_t q[kGroup32];
  float scale;
  int32_t first, second;  // -offset · Σ q: of the group, or of its halves
  float sum;              // scale · Σ q
};

// How a repacked format is stored: Bits 4, 5 or 8 a weight, Scales a group, and whether there is a minimum.
template <int Bits_, int Scales_, bool Min_, int Offset_>
struct Format {
  static constexpr int kBits = Bits_, kScales = Scales_, kOffset = Offset_;
  static constexpr bool kMin = Min_;
  static constexpr int kFactors = kScales + (kMin ? 1 : 0);
  static constexpr int kWords = Bits_ == 8 ? kSteps : kSteps / 2 + (Bits_ == 5 ? 1 : 0);  // 4 bytes of a feature
  static constexpr int kBytes = 2 * kPanel * kFactors + kWords * kPanel * 4;              // of a group in a panel
};

// Calls f with the format of a scheme.
template <class F>
IP_INLINE void with_format(int scheme, F&& f) {
  switch (scheme) {
    case IP_Q4_0: return f(Format<4, 1, false, 8>{});
    case IP_Q4_1: case IP_Q4_K: return f(Format<4, 1, true, 0>{});
    case IP_Q5_0: return f(Format<5, 1, false, 16>{});
    case IP_Q5_1: case IP_Q5_K: return f(Format<5, 1, true, 0>{});
    case IP_Q8_0: return f(Format<8, 1, false, 128>{});
    case IP_Q6_K: return f(Format<8, 2, false, 32>{});
  }
}

IP_INLINE vf widen_half(const void* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_cvtph_ps(load<__m256i>(p)));
#elif defined(__F16C__)
  return reinterpret_cast<vf>(_mm256_cvtph_ps(load<__m128i>(p)));
#else
  // The exponent's bias is made up for by a multiplication, which is right for subnormal numbers too.
  const vu bits = __builtin_convertvector(load<vh>(p), vu);
  const vf magnitude = reinterpret_cast<vf>((bits & 0x7fffu) << 13) * 0x1p112f;
  return reinterpret_cast<vf>(reinterpret_cast<vu>(magnitude) | ((bits & 0x8000u) << 16));
#endif
}

float half_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h & 0x7fff) << 13;
  float x;
  std::memcpy(&x, &bits, 4);
  return h & 0x8000 ? -(x * 0x1p112f) : x * 0x1p112f;
}

// Round to nearest even; what is too large is infinite.
uint16_t float_to_half(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float magnitude = std::fabs(x);
  if (!(magnitude < 65520.0f)) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  bits += 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((bits - (112u << 23)) >> 13);
}

// sum + the 4 products of each lane; w unsigned of `Bits` bits, x signed
template <int Bits>
IP_INLINE vi dot_bytes(vi sum, vu w, vu x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(w),
                                                  reinterpret_cast<__m512i>(x)));
#else
  typedef int16_t vs __attribute__((vector_size(4 * IP_LANES), may_alias));
#if defined(__AVX512F__)
  const auto madd = [](vu a, vu b) {
    return reinterpret_cast<vi>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  };
  const auto maddubs = [](vu a, vu b) {
    return reinterpret_cast<vu>(_mm512_maddubs_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  };
#elif defined(__AVX2__)
  const auto madd = [](vu a, vu b) {
    return reinterpret_cast<vi>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  };
  const auto maddubs = [](vu a, vu b) {
    return reinterpret_cast<vu>(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  };
#endif
  const auto even_x = [&] { return reinterpret_cast<vs>((reinterpret_cast<vs>(x) << 8) >> 8); };
  const auto odd_x = [&] { return reinterpret_cast<vs>(reinterpret_cast<vs>(x) >> 8); };
#if defined(__AVX512F__) || defined(__AVX2__)
  if constexpr (Bits <= 6) {
    // two products are at most 2 · 63 · 127: they do not saturate
    return sum + madd(maddubs(w, x), splat_bits(0x00010001u));
  } else {
    return sum + madd(w & 0x00ff00ffu, reinterpret_cast<vu>(even_x())) +
           madd((w >> 8) & 0x00ff00ffu, reinterpret_cast<vu>(odd_x()));
  }
#else
  // 255 · 127 fits in 16 bits
  const vs even = reinterpret_cast<vs>(w & 0x00ff00ffu) * even_x();
  const vs odd = reinterpret_cast<vs>((w >> 8) & 0x00ff00ffu) * odd_x();
  const auto halves = [](vs p) { return ((reinterpret_cast<vi>(p) << 16) >> 16) + (reinterpret_cast<vi>(p) >> 16); };
  if constexpr (Bits <= 6) return sum + halves(even + odd);
  return sum + halves(even) + halves(odd);
#endif
#endif
}

// The processor reads memory ahead where loads follow each other, nearly twice as fast as where the compiler moved some
// before the others. (Not with 16 registers, which a group's weights do not fit in; and bytes with one scale are left in
// order by the compiler, which then reads them where they are used: a sixth faster than all of a group beforehand.)
template <class F, class V>
IP_INLINE void in_order(V& loaded) {
#if defined(__AVX512F__)
  if constexpr (F::kBits != 8 || F::kScales == 2) asm volatile("" : "+v"(loaded));
#else
  (void)loaded;
#endif
}

// The weights of a group, a byte each: of two vectors of output features.
template <class F>
IP_INLINE void unpack_group(const uint8_t* group, vu (&w)[kSteps][2]) {
  const auto* words = group + 2 * kPanel * F::kFactors;
#pragma GCC unroll 8
  for (int t = 0; t < (F::kBits == 8 ? kSteps : kSteps / 2); ++t)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      vu word = load<vu>(words + (2 * t + v) * kLanes * 4);
      in_order<F>(word);
      if constexpr (F::kBits == 8) {
        w[t][v] = word;
      } else {
        w[t][v] = word & 0x0f0f0f0fu;
        w[t + kSteps / 2][v] = (word >> 4) & 0x0f0f0f0fu;
      }
    }
  if constexpr (F::kBits == 5) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const vu high = load<vu>(words + (kSteps + v) * kLanes * 4);
#pragma GCC unroll 8
      for (int t = 0; t < kSteps; ++t) w[t][v] |= (t < 4 ? high << (4 - t) : high >> (t - 4)) & 0x10101010u;
    }
  }
}

// sums[R][2] += the products of a group
template <class F, int R>
IP_INLINE void multiply_group(const Activations* x, const vu (&w)[kSteps][2], const vf (&factors)[F::kFactors][2],
                              vf* sums) {
  vi dots[R][2];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) dots[r][0] = dots[r][1] = vi{} + x[r].first;
#pragma GCC unroll 8
  for (int t = 0; t < kSteps; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      uint32_t bits;
      std::memcpy(&bits, x[r].q + 4 * t, 4);
      const vu a = splat_bits(bits);
      dots[r][0] = dot_bytes<F::kBits>(dots[r][0], w[t][0], a);
      dots[r][1] = dot_bytes<F::kBits>(dots[r][1], w[t][1], a);
    }
    const bool half = F::kScales == 2 && t == kSteps / 2 - 1, end = t == kSteps - 1;
    if (half || end) {
      const int s = F::kScales == 2 && end ? 1 : 0;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          vf sum = sums[2 * r + v];
          if (F::kMin && end) sum += factors[F::kFactors - 1][v] * x[r].sum;
          sums[2 * r + v] = (__builtin_convertvector(dots[r][v], vf) * factors[s][v]) * x[r].scale + sum;
          if (half) dots[r][v] = vi{} + x[r].second;
        }
    }
  }
}

template <class F>
IP_INLINE void load_factors(const uint8_t* group, vf (&factors)[F::kFactors][2]) {
  for (int s = 0; s < F::kFactors; ++s)
    for (int v = 0; v < 2; ++v) {
      factors[s][v] = widen_half(group + (2 * s + v) * kLanes * 2);
      in_order<F>(factors[s][v]);
    }
}

// sums[rows][2] of one panel; x[groups][stride]
template <class F>
void multiply_rows(const Activations* x, int64_t stride, const uint8_t* panel, int groups, int rows, vf* sums) {
  for (int i = 0; i < 2 * rows; ++i) sums[i] = vf{};
  for (int g = 0; g < groups; ++g, panel += F::kBytes, x += stride) {
    vu w[kSteps][2];
    vf factors[F::kFactors][2];
    load_factors<F>(panel, factors);
    unpack_group<F>(panel, w);
    int r = 0;
    for (; r + kTogether <= rows; r += kTogether) multiply_group<F, kTogether>(x + r, w, factors, sums + 2 * r);
    for (; r < rows; ++r) multiply_group<F, 1>(x + r, w, factors, sums + 2 * r);
  }
}

// The same for very few rows, whose sums stay in registers: weights come from memory, in the order in which they lie.
template <class F, int R>
void multiply_few(const Activations* x, int64_t stride, const uint8_t* panel, int groups, vf* result) {
  vf sums[2 * R] = {};
  for (int g = 0; g < groups; ++g, panel += F::kBytes, x += stride) {
    vu w[kSteps][2];
    vf factors[F::kFactors][2];
    load_factors<F>(panel, factors);
    unpack_group<F>(panel, w);
    multiply_group<F, R>(x, w, factors, sums);
  }
  for (int i = 0; i < 2 * R; ++i) result[i] = sums[i];
}

template <class T, class F, class Out>
void quant_panel(const IpQuantLinear& a, const Activations* x, int panel, int first, int last) {
  const int n0 = panel * kPanel, width = std::min(kPanel, a.n - n0), groups = a.k / kGroup32;
  const auto* packed = static_cast<const uint8_t*>(a.packed) + static_cast<int64_t>(panel) * groups * F::kBytes;
  vf bias[2] = {vf{}, vf{}};
  if (a.bias) {
    float values[kPanel] = {};
    for (int i = 0; i < width; ++i) values[i] = T::to_float(at<T>(a.bias, n0)[i]);
    bias[0] = load<vf>(values);
    bias[1] = load<vf>(values + kLanes);
  }
  vf sums[2 * kBlockRows];
  const int blocks = (last - first + kBlockRows - 1) / kBlockRows;
  for (int b = 0; b < blocks; ++b) {
    const int begin = first + static_cast<int64_t>(last - first) * b / blocks;
    const int rows = first + static_cast<int64_t>(last - first) * (b + 1) / blocks - begin;
    if (rows <= kTogether) {
      with_rows<kTogether>(rows, [&](auto constant) {
        multiply_few<F, decltype(constant)::value>(x + begin, a.rows, packed, groups, sums);
      });
    } else {
      multiply_rows<F>(x + begin, a.rows, packed, groups, rows, sums);
    }
    for (int r = 0; r < rows; ++r)
      store_sums<Out, T>(static_cast<Out*>(a.y) + (begin + r) * a.y_stride + n0, sums[2 * r] + bias[0],
                         sums[2 * r + 1] + bias[1], width);
  }
}

IP_INLINE int32_t total_of(vi x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x));
#else
  int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
#endif
}
IP_INLINE int32_t largest_of(vi x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(x));
#else
  int32_t most = x[0];
  for (int i = 1; i < kLanes; ++i) most = std::max<int32_t>(most, x[i]);
  return most;
#endif
}

template <class T, int Offset, bool Halves>
IP_INLINE void quantize_group(const typename T::Element* x, Activations& out) {
  constexpr int kVectors = kGroup32 / kLanes;
  vf values[kVectors];
  // Magnitudes are in the order of their bits, with what is not finite above the rest.
  vi magnitude = vi{};
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    values[i] = T::load_v(x + i * kLanes);
    const vi bits = reinterpret_cast<vi>(values[i]) & 0x7fffffff;
    magnitude = bits > magnitude ? bits : magnitude;
  }
  const int32_t bits = largest_of(magnitude);
  float most;
  std::memcpy(&most, &bits, 4);
  const float inverse = most > 1e-30f ? 127.0f / most : 0.0f;  // that of less may be infinite
  const vf magic = splat(12582912.0f);                          // 1.5 · 2^23: adding it rounds to an integer
  typedef int8_t bytes __attribute__((vector_size(IP_LANES), may_alias));
  vi sums[2] = {vi{}, vi{}};
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const vi q = reinterpret_cast<vi>(values[i] * inverse + magic) - reinterpret_cast<vi>(magic);
    store(out.q + i * kLanes, __builtin_convertvector(q, bytes));
    sums[i / (kVectors / 2)] += q;
  }
  out.scale = bits < 0x7f800000 ? (most > 1e-30f ? most * (1.0f / 127.0f) : 0.0f) : NAN;
  if (Halves) {
    out.first = -Offset * total_of(sums[0]);
    out.second = -Offset * total_of(sums[1]);
  } else {
    const int32_t total = total_of(sums[0] + sums[1]);
    out.first = -Offset * total;
    out.sum = out.scale * static_cast<float>(total);
  }
}

// out[groups][rows]
template <class T>
void quantize_rows(const void* x, int64_t x_stride, int first, int last, int64_t rows, int k, int scheme,
                   Activations* out) {
  with_format(scheme, [&](auto format) {
    using F = decltype(format);
    for (int r = first; r < last; ++r)
      for (int g = 0; g < k / kGroup32; ++g)
        quantize_group<T, F::kOffset, F::kScales == 2>(at<T>(x, r * x_stride + g * kGroup32), out[g * rows + r]);
  });
}

template <class T>
void quantize(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpQuantize*>(args);
  const int rows = static_cast<int>(a.rows), step = std::max(1, 8192 / a.k), pieces = (rows + step - 1) / step;
  for (int i; (i = worker.take(pieces)) >= 0;)
    quantize_rows<T>(a.x, a.x_stride, i * step, std::min(rows, (i + 1) * step), rows, a.k, a.scheme,
                     static_cast<Activations*>(a.quantized));
}

template <class T>
void quant_linear(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpQuantLinear*>(args);
  const int rows = static_cast<int>(a.rows), panels = (a.n + kPanel - 1) / kPanel;
  if (rows == 0) return;
  const auto* x = static_cast<const Activations*>(a.quantized);
  if (!x) {
    // Every thread rounds the few rows for itself, which costs less than waiting for the others.
    auto* own = reinterpret_cast<Activations*>(worker.scratch);
    quantize_rows<T>(a.x, a.x_stride, 0, rows, rows, a.k, a.scheme, own);
    x = own;
  }
  with_format(a.scheme, [&](auto format) {
    using F = decltype(format);
    const int64_t panel_bytes = static_cast<int64_t>(a.k / kGroup32) * F::kBytes;
    const int row_step = rows <= 256 ? rows : 256, row_pieces = (rows + row_step - 1) / row_step;
    int step = static_cast<int>(std::max<int64_t>(1, (256 << 10) / panel_bytes));
    if (rows > 4) step = 1;
    step = std::min(step, std::max(1, panels / (4 * worker.count)));
    const int panel_pieces = (panels + step - 1) / step, total = panel_pieces * row_pieces;
    for (int i; (i = worker.take(total)) >= 0;) {
      const int first = i / panel_pieces * row_step, piece = i % panel_pieces;
      for (int p = piece * step; p < std::min(panels, (piece + 1) * step); ++p) {
        if (a.out_f32) {
          quant_panel<T, F, float>(a, x, p, first, std::min(rows, first + row_step));
        } else {
          quant_panel<T, F, typename T::Element>(a, x, p, first, std::min(rows, first + row_step));
        }
      }
    }
  });
}

// What a format's 32 weights are in a file: bytes of 0 to 2 · offset - 1 (or to 31), scales and minimum.
struct Group {
  uint32_t words[kSteps];
  float scales[2];
  float min;
};

IP_INLINE uint32_t word_at(const uint8_t* p) {
  uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}
IP_INLINE float half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}
// 16 bytes of two weights: the low halves come first
IP_INLINE void read_nibbles(const uint8_t* p, uint32_t (&words)[kSteps]) {
  for (int j = 0; j < 4; ++j) {
    words[j] = word_at(p + 4 * j) & 0x0f0f0f0fu;
    words[j + 4] = (word_at(p + 4 * j) >> 4) & 0x0f0f0f0fu;
  }
}
// Bit i is the fifth bit of weight i.
IP_INLINE void add_fifth_bits(uint32_t bits, uint32_t (&words)[kSteps]) {
  for (int j = 0; j < kSteps; ++j) words[j] |= ((((bits >> (4 * j)) & 15) * 0x00204081u) & 0x01010101u) << 4;
}
// The 6-bit scale and minimum of a sub-block of Q4_K and Q5_K
IP_INLINE void read_k_scales(const uint8_t* block, int sub, Group& group) {
  const uint8_t* s = block + 4;
  const int i = sub % 4;
  const int scale = sub < 4 ? s[i] & 63 : (s[8 + i] & 15) | ((s[i] >> 2) & 48);
  const int min = sub < 4 ? s[4 + i] & 63 : (s[8 + i] >> 4) | ((s[4 + i] >> 2) & 48);
  group.scales[0] = half_at(block) * scale;
  group.min = -half_at(block + 2) * min;
}

int block_weights(int scheme) { return scheme == IP_Q4_K || scheme == IP_Q5_K || scheme == IP_Q6_K ? 256 : 32; }
int block_bytes(int scheme) {
  constexpr int kBytes[IP_NUM_SCHEMES] = {18, 20, 22, 24, 34, 144, 176, 210};
  return kBytes[scheme];
}

// Group `sub` of a block
IP_INLINE void read_group(int scheme, const uint8_t* block, int sub, Group& group) {
  group.min = group.scales[1] = 0;
  if (scheme <= IP_Q8_0) group.scales[0] = half_at(block);
  switch (scheme) {
    case IP_Q4_0:
      return read_nibbles(block + 2, group.words);
    case IP_Q4_1:
      group.min = half_at(block + 2);
      return read_nibbles(block + 4, group.words);
    case IP_Q5_0:
      read_nibbles(block + 6, group.words);
      return add_fifth_bits(word_at(block + 2), group.words);
    case IP_Q5_1:
      group.min = half_at(block + 2);
      read_nibbles(block + 8, group.words);
      return add_fifth_bits(word_at(block + 4), group.words);
    case IP_Q8_0:
      for (int j = 0; j < kSteps; ++j) group.words[j] = word_at(block + 2 + 4 * j) ^ 0x80808080u;
      return;
    case IP_Q4_K:
    case IP_Q5_K: {
      read_k_scales(block, sub, group);
      const uint8_t* low = block + (scheme == IP_Q4_K ? 16 : 48) + sub / 2 * 32;
      for (int j = 0; j < kSteps; ++j) {
        group.words[j] = (word_at(low + 4 * j) >> (4 * (sub & 1))) & 0x0f0f0f0fu;
        if (scheme == IP_Q5_K) group.words[j] |= ((word_at(block + 16 + 4 * j) >> sub) & 0x01010101u) << 4;
      }
      return;
    }
    case IP_Q6_K: {
      const int part = sub % 4;
      const uint8_t* low = block + sub / 4 * 64 + (part & 1) * 32;
      const uint8_t* high = block + 128 + sub / 4 * 32;
      for (int j = 0; j < kSteps; ++j)
        group.words[j] = ((word_at(low + 4 * j) >> (4 * (part >> 1))) & 0x0f0f0f0fu) |
                         (((word_at(high + 4 * j) >> (2 * part)) & 0x03030303u) << 4);
      const auto* scales = reinterpret_cast<const int8_t*>(block + 192) + 2 * sub;
      for (int h = 0; h < 2; ++h) group.scales[h] = half_at(block + 208) * scales[h];
      return;
    }
  }
}

// Returns false where a scale has no float16.
template <class F>
IP_INLINE bool write_group(const Group& group, uint8_t* panel_group, int feature) {
  bool fits = true;
  for (int s = 0; s < F::kFactors; ++s) {
    const uint16_t h = float_to_half(s < F::kScales ? group.scales[s] : group.min);
    fits = fits && (h & 0x7c00) != 0x7c00;
    std::memcpy(panel_group + 2 * (s * kPanel + feature), &h, 2);
  }
  uint8_t* to = panel_group + 2 * kPanel * F::kFactors + feature * 4;
  const auto put = [&](int t, uint32_t word) { std::memcpy(to + t * kPanel * 4, &word, 4); };
  if constexpr (F::kBits == 8) {
    for (int t = 0; t < kSteps; ++t) put(t, group.words[t]);
  } else {
    uint32_t high = 0;
    for (int t = 0; t < kSteps / 2; ++t)
      put(t, (group.words[t] & 0x0f0f0f0fu) | ((group.words[t + kSteps / 2] & 0x0f0f0f0fu) << 4));
    if constexpr (F::kBits == 5) {
      for (int t = 0; t < kSteps; ++t) high |= ((group.words[t] >> 4) & 0x01010101u) << t;
      put(kSteps / 2, high);
    }
  }
  return fits;
}

void quant_pack(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpQuantPack*>(args);
  const int groups = a.k / kGroup32, of_block = block_weights(a.scheme) / kGroup32, bytes = block_bytes(a.scheme);
  const auto* blocks = static_cast<const uint8_t*>(a.blocks);
  with_format(a.scheme, [&](auto format) {
    using F = decltype(format);
    bool fits = true;
    for_rows(worker, a.count, 16384 / kPanel, [&](int r) {
      const int row = a.first + r;
      auto* panel = static_cast<uint8_t*>(a.packed) + static_cast<int64_t>(row / kPanel) * groups * F::kBytes;
      const uint8_t* in = blocks + r * a.stride;
      for (int g = 0; g < groups; ++g) {
        Group group;
        read_group(a.scheme, in + g / of_block * bytes, g % of_block, group);
        fits = write_group<F>(group, panel + static_cast<int64_t>(g) * F::kBytes, row % kPanel) && fits;
      }
    });
    if (!fits) __atomic_store_n(a.too_large, 1, __ATOMIC_RELAXED);
  });
}

// y[m] = row ids[m] of the weights
template <class T>
void quant_rows(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpQuantRows*>(args);
  const int groups = a.k / kGroup32;
  with_format(a.scheme, [&](auto format) {
    using F = decltype(format);
    for_rows(worker, static_cast<int>(a.rows), 4 * static_cast<int64_t>(a.k), [&](int r) {
      const int64_t row = std::clamp<int64_t>(a.ids[r], 0, a.n - 1);
      const int feature = static_cast<int>(row % kPanel);
      const auto* group = static_cast<const uint8_t*>(a.packed) + row / kPanel * groups * F::kBytes;
      auto* y = at<T>(a.y, r * a.y_stride);
      for (int g = 0; g < groups; ++g, group += F::kBytes, y += kGroup32) {
        const auto* words = group + 2 * kPanel * F::kFactors + feature * 4;
        const float min = F::kMin ? half_at(group + 2 * ((F::kFactors - 1) * kPanel + feature)) : 0.0f;
        for (int i = 0; i < kGroup32; ++i) {
          const int t = i / 4, b = i % 4, half = F::kScales == 2 && t >= kSteps / 2;
          int q;
          if constexpr (F::kBits == 8) {
            q = words[t * kPanel * 4 + b];
          } else {
            q = words[t % 4 * kPanel * 4 + b] >> (t >= 4 ? 4 : 0) & 15;
            if constexpr (F::kBits == 5) q |= (words[4 * kPanel * 4 + b] >> t & 1) << 4;
          }
          y[i] = T::from_float(half_at(group + 2 * (half * kPanel + feature)) * (q - F::kOffset) + min);
        }
      }
    });
  });
}

int64_t quant_packed_bytes(int scheme, int n, int k) {
  int64_t bytes = 0;
  with_format(scheme, [&](auto format) { bytes = decltype(format)::kBytes; });
  return (n + kPanel - 1) / kPanel * (k / kGroup32) * bytes;
}

template <class T>
void add_quant(Table::Run (&run)[IP_NUM_KINDS]) {
  run[IP_QUANTIZE] = quantize<T>;
  run[IP_QUANT_LINEAR] = quant_linear<T>;
  run[IP_QUANT_PACK] = quant_pack;
  run[IP_QUANT_ROWS] = quant_rows<T>;
}
