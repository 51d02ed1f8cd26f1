// Gumbel noise: Philox4x32-10 (Salmon et al., 2011) and two logarithms in double, in loops that compilers vectorize.
// Of all 2^24 values that a word can give, one differs from the reference, by the last bit of a float32.

constexpr int kNoiseTile = 64;  // ids
constexpr int kNoiseBlocks = kNoiseTile / 4;
constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kPhiloxWeyl[2] = {0x9E3779B9u, 0xBB67AE85u};

// The words of `N` counters (counters[i], position, 0) under one key, word w of counter i in words[w][i].
template <int N>
IP_INLINE void philox(const uint32_t* counters, uint64_t position, uint64_t seed, uint32_t (*words)[N]) {
  uint32_t* c0 = words[0];
  uint32_t* c1 = words[1];
  uint32_t* c2 = words[2];
  uint32_t* c3 = words[3];
  for (int i = 0; i < N; ++i) {
    c0[i] = counters[i];
    c1[i] = static_cast<uint32_t>(position);
    c2[i] = static_cast<uint32_t>(position >> 32);
    c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += kPhiloxWeyl[0], k1 += kPhiloxWeyl[1])
    for (int i = 0; i < N; ++i) {
      const uint64_t product_0 = static_cast<uint64_t>(c0[i]) * kPhiloxMultipliers[0];
      const uint64_t product_1 = static_cast<uint64_t>(c2[i]) * kPhiloxMultipliers[1];
      c0[i] = static_cast<uint32_t>(product_1 >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(product_0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(product_1);
      c3[i] = static_cast<uint32_t>(product_0);
    }
}

// Of a positive, normal x, within 2 units in the last place (on all that are taken here): x = m 2^e with m in
// [sqrt(1/2), sqrt(2)), and log m = 2 artanh s with s = (m - 1) / (m + 1), |s| < 0.172, as its power series up to s^23.
IP_INLINE double log_of(double x) {
  constexpr uint64_t kRootHalf = 0x3FE6A09E667F3BCD, kExponents = 1024;
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  const uint64_t biased = (bits - kRootHalf + (kExponents << 52)) >> 52;
  const uint64_t mantissa = bits - ((biased - kExponents) << 52);
  const uint64_t whole = biased | 0x4330000000000000;  // 2^52 + biased, as a double: AVX2 converts no 64-bit integers
  double m, e;
  std::memcpy(&m, &mantissa, 8);
  std::memcpy(&e, &whole, 8);
  e -= 4503599627370496.0 + kExponents;
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 23 * z + 1.0 / 21;  // written out: a loop here would keep the caller's from being vectorized
  series = series * z + 1.0 / 19;
  series = series * z + 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  const double tail = 2.0 * s * z * series + e * 1.9082149292705877e-10;
  return e * 0.6931471803691238 + (2.0 * s + tail);
}

void gumbel_noise(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpGumbelNoise*>(args);
  const int tiles = static_cast<int>((a.n + kNoiseTile - 1) / kNoiseTile);
  constexpr int kTilesOfPiece = 64;
  const int pieces = (tiles + kTilesOfPiece - 1) / kTilesOfPiece;
  for (int piece; (piece = worker.take(static_cast<int>(a.rows) * pieces)) >= 0;) {
    const int64_t row = piece / pieces;
    const auto seed = static_cast<uint64_t>(a.seeds[row]), position = static_cast<uint64_t>(a.positions[row]);
    const int first = piece % pieces * kTilesOfPiece;
    for (int tile = first; tile < std::min(tiles, first + kTilesOfPiece); ++tile) {
      const int64_t start = static_cast<int64_t>(tile) * kNoiseTile;
      const int count = static_cast<int>(std::min<int64_t>(kNoiseTile, a.n - start));
      uint32_t drawn[kNoiseTile];
      if (a.ids) {
        const int64_t* ids = a.ids + row * a.ids_stride + start;
        uint32_t counters[kNoiseTile] = {}, words[4][kNoiseTile];
        for (int i = 0; i < count; ++i) counters[i] = static_cast<uint32_t>(ids[i] >> 2);
        philox<kNoiseTile>(counters, position, seed, words);
        for (int i = 0; i < count; ++i) drawn[i] = words[ids[i] & 3][i];
      } else {
        uint32_t counters[kNoiseBlocks], words[4][kNoiseBlocks];
        for (int i = 0; i < kNoiseBlocks; ++i) counters[i] = static_cast<uint32_t>(start / 4 + i);
        philox<kNoiseBlocks>(counters, position, seed, words);
        for (int i = 0; i < kNoiseTile; ++i) drawn[i] = words[i % 4][i / 4];
      }
      float noise[kNoiseTile];
      for (int i = 0; i < kNoiseTile; ++i) {
        const double uniform = (static_cast<double>(static_cast<int32_t>(drawn[i] >> 8)) + 0.5) * 0x1p-24;
        noise[i] = static_cast<float>(-log_of(-log_of(uniform)));
      }
      std::memcpy(a.y + row * a.n + start, noise, count * sizeof(float));
    }
  }
}
