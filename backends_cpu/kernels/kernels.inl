// Every operation for one instruction set. Included by a file that defines IP_ISA and is compiled for it.
#include <algorithm>

#include "abi.h"
#include "pool.h"
#include "table.h"
#include "vec.h"

namespace ip {
namespace IP_ISA {
namespace {

// Output features of a panel of packed weights: two vectors, so that each broadcast activation is used twice.
constexpr int kPanel = 2 * kLanes;
// Rows of x whose sums stay in registers: 2 · 14 sums, 2 weights and a broadcast are 31 of 32 registers.
#if IP_LANES == 16
constexpr int kTile = 14;
#else
constexpr int kTile = 6;
#endif
constexpr int64_t kL2 = 512 << 10;

int64_t groups_of(int k, int group) { return (k + group - 1) / group; }

template <class T>
int64_t panel_elements(int k) {
  return groups_of(k, T::kGroup) * T::kGroup * kPanel;
}

template <class T>
const typename T::Element* at(const void* base, int64_t offset) {
  return static_cast<const typename T::Element*>(base) + offset;
}
template <class T>
typename T::Element* at(void* base, int64_t offset) {
  return static_cast<typename T::Element*>(base) + offset;
}

template <class T>
IP_INLINE vu broadcast_group(const typename T::Element* p) {
  uint32_t bits;
  std::memcpy(&bits, p, 4);
  return splat_bits(bits);
}

// sums[R][2] = x[R, k] · panel; x rows `stride` apart. k counts whole groups; an odd end is given by `tail`.
template <class T, int R>
IP_INLINE void multiply(const typename T::Element* x, int64_t stride, const uint32_t* panel, int k, vf (&sums)[R][2]) {
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = vf{};
  const int groups = k / T::kGroup;
  if constexpr (R <= 2) {
    // Few rows leave registers free: two sets of sums hide the latency of the products.
    vf other[R][2];
    for (int r = 0; r < R; ++r) other[r][0] = other[r][1] = vf{};
    int g = 0;
    for (; g + 2 <= groups; g += 2) {
      const uint32_t* w = panel + static_cast<int64_t>(g) * kPanel;
      __builtin_prefetch(w + 32 * kPanel);
      __builtin_prefetch(w + 32 * kPanel + 16);
      __builtin_prefetch(w + 33 * kPanel);
      __builtin_prefetch(w + 33 * kPanel + 16);
      const vu w00 = load<vu>(w), w01 = load<vu>(w + kLanes);
      const vu w10 = load<vu>(w + kPanel), w11 = load<vu>(w + kPanel + kLanes);
      for (int r = 0; r < R; ++r) {
        const vu a = broadcast_group<T>(x + r * stride + g * T::kGroup);
        const vu b = broadcast_group<T>(x + r * stride + (g + 1) * T::kGroup);
        sums[r][0] = T::dot(sums[r][0], w00, a);
        sums[r][1] = T::dot(sums[r][1], w01, a);
        other[r][0] = T::dot(other[r][0], w10, b);
        other[r][1] = T::dot(other[r][1], w11, b);
      }
    }
    if (g < groups) {
      const uint32_t* w = panel + static_cast<int64_t>(g) * kPanel;
      for (int r = 0; r < R; ++r) {
        const vu a = broadcast_group<T>(x + r * stride + g * T::kGroup);
        sums[r][0] = T::dot(sums[r][0], load<vu>(w), a);
        sums[r][1] = T::dot(sums[r][1], load<vu>(w + kLanes), a);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < 2; ++j) sums[r][j] += other[r][j];
  } else {
    for (int g = 0; g < groups; ++g) {
      const uint32_t* w = panel + static_cast<int64_t>(g) * kPanel;
      const vu w0 = load<vu>(w), w1 = load<vu>(w + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const vu a = broadcast_group<T>(x + r * stride + g * T::kGroup);
        sums[r][0] = T::dot(sums[r][0], w0, a);
        sums[r][1] = T::dot(sums[r][1], w1, a);
      }
    }
  }
  if (T::kGroup == 2 && k % 2) {
    const uint32_t* w = panel + static_cast<int64_t>(groups) * kPanel;
    for (int r = 0; r < R; ++r) {
      uint16_t last;
      std::memcpy(&last, x + r * stride + k - 1, 2);
      const vu a = splat_bits(last);
      sums[r][0] = T::dot(sums[r][0], load<vu>(w), a);
      sums[r][1] = T::dot(sums[r][1], load<vu>(w + kLanes), a);
    }
  }
}

// Calls f with the constant r as a template argument.
template <int Max, class F>
IP_INLINE void with_rows(int r, F&& f) {
  if constexpr (Max >= 1) {
    if (r == Max) {
      f(std::integral_constant<int, Max>{});
    } else {
      with_rows<Max - 1>(r, std::forward<F>(f));
    }
  }
}

template <class Element, class T>
IP_INLINE void store_sums(Element* y, vf a, vf b, int width) {
  constexpr bool wide = std::is_same_v<Element, float>;
  if (width == kPanel) {
    if constexpr (wide) {
      store(y, a);
      store(y + kLanes, b);
    } else {
      T::store_v(y, a);
      T::store_v(y + kLanes, b);
    }
    return;
  }
  float values[kPanel];
  store(values, a);
  store(values + kLanes, b);
  for (int i = 0; i < width; ++i) {
    if constexpr (wide) {
      y[i] = values[i];
    } else {
      y[i] = T::from_float(values[i]);
    }
  }
}

template <class T, class Out>
void linear_panel(const IpLinear& a, int panel, int first_row, int last_row) {
  const int n0 = panel * kPanel, width = std::min(kPanel, a.n - n0);
  const auto* packed = reinterpret_cast<const uint32_t*>(at<T>(a.packed, panel * panel_elements<T>(a.k)));
  vf bias[2] = {vf{}, vf{}};
  if (a.bias) {
    float values[kPanel] = {};
    for (int i = 0; i < width; ++i) values[i] = T::to_float(at<T>(a.bias, n0)[i]);
    bias[0] = load<vf>(values);
    bias[1] = load<vf>(values + kLanes);
  }
  const int rows = last_row - first_row, tiles = (rows + kTile - 1) / kTile;
  for (int t = 0; t < tiles; ++t) {
    // Even tiles: 16 rows are 8 and 8, not 14 and 2.
    const int begin = first_row + static_cast<int64_t>(rows) * t / tiles;
    const int end = first_row + static_cast<int64_t>(rows) * (t + 1) / tiles;
    with_rows<kTile>(end - begin, [&](auto constant) {
      constexpr int R = decltype(constant)::value;
      vf sums[R][2];
      multiply<T, R>(at<T>(a.x, begin * a.x_stride), a.x_stride, packed, a.k, sums);
      for (int r = 0; r < R; ++r) {
        Out* y = static_cast<Out*>(a.y) + (begin + r) * a.y_stride + n0;
        store_sums<Out, T>(y, sums[r][0] + bias[0], sums[r][1] + bias[1], width);
      }
    });
  }
}

template <class T>
void linear(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpLinear*>(args);
  const int rows = static_cast<int>(a.rows), panels = (a.n + kPanel - 1) / kPanel;
  if (rows == 0) return;
  // A piece is some panels by some rows: enough pieces that threads end together, few enough to stream memory.
  const int64_t panel_bytes = panel_elements<T>(a.k) * static_cast<int64_t>(sizeof(typename T::Element));
  const int row_step = rows <= 256 ? rows : 256;
  const int row_pieces = (rows + row_step - 1) / row_step;
  int step = static_cast<int>(std::max<int64_t>(1, (256 << 10) / panel_bytes));
  if (rows > 4) step = 1;
  step = std::min(step, std::max(1, panels / (4 * worker.count)));
  const int panel_pieces = (panels + step - 1) / step, total = panel_pieces * row_pieces;
  for (int i; (i = worker.take(total)) >= 0;) {
    const int row_piece = i / panel_pieces, piece = i % panel_pieces;
    const int first = row_piece * row_step, last = std::min(rows, first + row_step);
    for (int p = piece * step; p < std::min(panels, (piece + 1) * step); ++p) {
      if (a.out_f32) {
        linear_panel<T, float>(a, p, first, last);
      } else {
        linear_panel<T, typename T::Element>(a, p, first, last);
      }
    }
  }
}

// Words of 4 bytes (a group of inputs) of 32 output features change places: read row by row, written step by step.
template <class T>
void pack(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpPack*>(args);
  using E = typename T::Element;
  constexpr int G = T::kGroup, kWords = 16;
  const int words = static_cast<int>(groups_of(a.k, G)), whole = a.k / G, last = a.first + a.count;
  if (a.count == 0) return;
  const int first_panel = a.first / kPanel, panels = (last - 1) / kPanel - first_panel + 1;
  for (int i; (i = worker.take(panels)) >= 0;) {
    const int panel = first_panel + i, begin = std::max(a.first, panel * kPanel), end = std::min(last, (panel + 1) * kPanel);
    auto* out = static_cast<uint32_t*>(a.packed) + static_cast<int64_t>(panel) * words * kPanel + begin % kPanel;
    for (int w0 = 0; w0 < words; w0 += kWords) {
      const int count = std::min(kWords, words - w0), full = std::min(count, whole - w0);
      uint32_t block[kPanel][kWords];
      for (int r = begin; r < end; ++r) {
        const E* in = at<T>(a.w, (r - a.first) * a.stride) + static_cast<int64_t>(w0) * G;
        std::memcpy(block[r - begin], in, full * 4);
        if (full < count) {
          block[r - begin][full] = 0;
          std::memcpy(&block[r - begin][full], in + full * G, (a.k % G) * sizeof(E));
        }
      }
      for (int w = 0; w < count; ++w)
        for (int r = 0; r < end - begin; ++r) out[static_cast<int64_t>(w0 + w) * kPanel + r] = block[r][w];
    }
    if (end == a.n)
      for (int w = 0; w < words; ++w)
        for (int r = end - begin; (begin + r) % kPanel; ++r) out[static_cast<int64_t>(w) * kPanel + r] = 0;
  }
}

// Rows that one thread takes at a time in operations of little work.
int rows_per_piece(int rows, int64_t work_of_row) {
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(rows, 16384 / std::max<int64_t>(1, work_of_row))));
}

template <class F>
IP_INLINE void for_rows(Worker& worker, int rows, int64_t work_of_row, F&& f) {
  const int step = rows_per_piece(rows, work_of_row), pieces = (rows + step - 1) / step;
  for (int i; (i = worker.take(pieces)) >= 0;)
    for (int r = i * step; r < std::min(rows, (i + 1) * step); ++r) f(r);
}

template <class T>
void embedding(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpEmbedding*>(args);
  for_rows(worker, static_cast<int>(a.rows), a.size, [&](int r) {
    const int64_t id = std::clamp<int64_t>(a.ids[r], 0, a.vocab - 1);
    std::memcpy(at<T>(a.y, r * a.y_stride), at<T>(a.table, id * a.size), a.size * sizeof(typename T::Element));
  });
}

template <class T>
void rms_norm(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpRmsNorm*>(args);
  const int vectors = a.size / kLanes, rest = vectors * kLanes;
  for_rows(worker, static_cast<int>(a.rows), static_cast<int64_t>(a.size) * a.inner, [&](int r) {
    for (int h = 0; h < a.inner; ++h) {
      const auto* x = at<T>(a.x, r * a.x_stride + static_cast<int64_t>(h) * a.size);
      auto* y = at<T>(a.y, r * a.y_stride + static_cast<int64_t>(h) * a.size);
      const auto* source = x;
      if (a.residual) {
        const auto* residual = at<T>(a.residual, r * a.residual_stride + static_cast<int64_t>(h) * a.size);
        auto* total = at<T>(a.total, r * a.total_stride + static_cast<int64_t>(h) * a.size);
        for (int i = 0; i < rest; i += kLanes) T::store_v(total + i, T::load_v(x + i) + T::load_v(residual + i));
        for (int i = rest; i < a.size; ++i) total[i] = T::from_float(T::to_float(x[i]) + T::to_float(residual[i]));
        source = total;
      }
      vf squares = vf{};
      float sum = 0;
      for (int i = 0; i < rest; i += kLanes) {
        const vf v = T::load_v(source + i);
        squares = v * v + squares;
      }
      for (int i = rest; i < a.size; ++i) sum += T::to_float(source[i]) * T::to_float(source[i]);
      const float scale = 1.0f / std::sqrt((sum_of(squares) + sum) / a.size + a.eps);
      const auto* weight = at<T>(a.weight, 0);
      for (int i = 0; i < rest; i += kLanes)
        T::store_v(y + i, T::load_v(source + i) * scale * (T::load_v(weight + i) + a.offset));
      for (int i = rest; i < a.size; ++i)
        y[i] = T::from_float(T::to_float(source[i]) * scale * (T::to_float(weight[i]) + a.offset));
    }
  });
}

void angles(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpAngles*>(args);
  for_rows(worker, static_cast<int>(a.rows), 16 * static_cast<int64_t>(a.half), [&](int r) {
    const float position = static_cast<float>(a.positions[r]);
    float* cos = a.cos + static_cast<int64_t>(r) * a.half;
    float* sin = a.sin + static_cast<int64_t>(r) * a.half;
    for (int i = 0; i < a.half; ++i) {
      const float angle = position * a.frequencies[i];
      cos[i] = std::cos(angle) * a.factor;
      sin[i] = std::sin(angle) * a.factor;
    }
  });
}

void largest(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpLargest*>(args);
  for_rows(worker, static_cast<int>(a.rows), a.n, [&](int r) {
    const float* x = a.x + r * a.x_stride;
    vf best = splat(-INFINITY);
    vi at = vi{}, place = vi{}, unordered = vi{};
    for (int i = 0; i < kLanes; ++i) place[i] = i;
    int64_t i = 0;
    for (; i + kLanes <= a.n; i += kLanes, place += kLanes) {
      const vf v = load<vf>(x + i);
      const vi more = v > best;
      best = more ? v : best;
      at = more ? place : at;
      unordered |= v != v;
    }
    float value = -INFINITY;
    int64_t id = 0;
    bool nan = false;
    for (int lane = 0; lane < kLanes; ++lane) {
      nan = nan || unordered[lane];
      if (best[lane] > value || (best[lane] == value && at[lane] < id)) value = best[lane], id = at[lane];
    }
    for (; i < a.n; ++i) {
      nan = nan || x[i] != x[i];
      if (x[i] > value) value = x[i], id = i;
    }
    a.values[r] = nan ? NAN : value;
    a.ids[r] = id;
  });
}

template <class T>
void rope(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpRope*>(args);
  for_rows(worker, static_cast<int>(a.rows), static_cast<int64_t>(a.heads) * a.size, [&](int r) {
    const float* cos = a.cos + r * a.angle_stride;
    const float* sin = a.sin + r * a.angle_stride;
    for (int h = 0; h < a.heads; ++h) {
      const auto* x = at<T>(a.x, r * a.x_stride + static_cast<int64_t>(h) * a.size);
      auto* y = at<T>(a.y, r * a.y_stride + static_cast<int64_t>(h) * a.size);
      int i = 0;
      if (!a.interleaved)
        for (; i + kLanes <= a.half; i += kLanes) {
          const vf first = T::load_v(x + i), second = T::load_v(x + a.half + i);
          const vf c = load<vf>(cos + i), s = load<vf>(sin + i);
          T::store_v(y + i, first * c - second * s);
          T::store_v(y + a.half + i, second * c + first * s);
        }
      const int one = a.interleaved ? 2 : 1, apart = a.interleaved ? 1 : a.half;
      for (; i < a.half; ++i) {
        const float first = T::to_float(x[i * one]), second = T::to_float(x[i * one + apart]);
        y[i * one] = T::from_float(first * cos[i] - second * sin[i]);
        y[i * one + apart] = T::from_float(second * cos[i] + first * sin[i]);
      }
      for (i = 2 * a.half; i < a.size; ++i) y[i] = x[i];
    }
  });
}

template <int Activation>
IP_INLINE vf activated(vf x) {
  if constexpr (Activation == IP_SILU) return x / (1.0f + exp_of(-x));
  if constexpr (Activation == IP_GELU_TANH)
    return 0.5f * x * (1.0f + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
  vf y = x;
  for (int i = 0; i < kLanes; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.7071067811865476f));
  return y;
}

template <class T, int Activation>
void gated_rows(const IpGated& a, Worker& worker) {
  for_rows(worker, static_cast<int>(a.rows), 4 * static_cast<int64_t>(a.n), [&](int r) {
    const auto* gate = at<T>(a.x, r * a.x_stride);
    const auto* up = gate + a.n;
    auto* y = at<T>(a.y, r * a.y_stride);
    int i = 0;
    for (; i + kLanes <= a.n; i += kLanes)
      T::store_v(y + i, activated<Activation>(T::load_v(gate + i)) * T::load_v(up + i));
    for (; i < a.n; ++i) {
      const vf value = activated<Activation>(splat(T::to_float(gate[i])));
      y[i] = T::from_float(value[0] * T::to_float(up[i]));
    }
  });
}

template <class T>
void gated(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpGated*>(args);
  if (a.activation == IP_SILU) return gated_rows<T, IP_SILU>(a, worker);
  if (a.activation == IP_GELU_TANH) return gated_rows<T, IP_GELU_TANH>(a, worker);
  return gated_rows<T, IP_GELU>(a, worker);
}

template <class T, class C>
void kv_write_rows(const IpKvWrite& a, Worker& worker) {
  for_rows(worker, static_cast<int>(a.rows), 2 * static_cast<int64_t>(a.heads) * a.size, [&](int r) {
    const int64_t slot = a.slots[r];
    if (slot < 0) return;
    const int64_t page = slot / a.cache.tokens_per_page, token = slot % a.cache.tokens_per_page;
    const int64_t offset = page * a.cache.page_stride + token * a.cache.token_stride;
    for (int plane = 0; plane < 2; ++plane) {
      const auto* from = plane ? at<T>(a.v, r * a.v_stride) : at<T>(a.k, r * a.k_stride);
      auto* to = at<C>(plane ? a.cache.v : a.cache.k, offset);
      for (int h = 0; h < a.heads; ++h, from += a.size) {
        auto* head = to + h * a.cache.head_stride;
        if constexpr (std::is_same_v<T, C>) {
          std::memcpy(head, from, a.size * sizeof(*head));
        } else {
          for (int i = 0; i < a.size; ++i) head[i] = C::from_float(T::to_float(from[i]));
        }
      }
    }
  });
}

template <class T>
void kv_write(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpKvWrite*>(args);
  if (a.cache.type == IP_BF16) return kv_write_rows<T, BF16>(a, worker);
  return kv_write_rows<T, F32>(a, worker);
}

#include "attention.inl"
#include "quant.inl"
#include "noise.inl"

}  // namespace

Table table() {
  Table t;
  t.panel = kPanel;
  t.run[IP_F32][IP_LINEAR] = linear<F32>;
  t.run[IP_BF16][IP_LINEAR] = linear<BF16>;
  t.run[IP_F32][IP_EMBEDDING] = embedding<F32>;
  t.run[IP_BF16][IP_EMBEDDING] = embedding<BF16>;
  t.run[IP_F32][IP_RMS_NORM] = rms_norm<F32>;
  t.run[IP_BF16][IP_RMS_NORM] = rms_norm<BF16>;
  t.run[IP_F32][IP_ROPE] = rope<F32>;
  t.run[IP_BF16][IP_ROPE] = rope<BF16>;
  t.run[IP_F32][IP_GATED] = gated<F32>;
  t.run[IP_BF16][IP_GATED] = gated<BF16>;
  t.run[IP_F32][IP_KV_WRITE] = kv_write<F32>;
  t.run[IP_BF16][IP_KV_WRITE] = kv_write<BF16>;
  t.run[IP_F32][IP_ATTENTION] = attention<F32>;
  t.run[IP_BF16][IP_ATTENTION] = attention<BF16>;
  t.run[IP_F32][IP_ANGLES] = angles;
  t.run[IP_F32][IP_LARGEST] = largest;
  t.run[IP_F32][IP_GUMBEL_NOISE] = gumbel_noise;
  add_quant<F32>(t.run[IP_F32]);
  add_quant<BF16>(t.run[IP_BF16]);
  t.quant_packed_bytes = quant_packed_bytes;
  t.run[IP_F32][IP_PACK] = pack<F32>;
  t.run[IP_BF16][IP_PACK] = pack<BF16>;
  t.group[IP_F32] = F32::kGroup;
  t.group[IP_BF16] = BF16::kGroup;
  return t;
}

}  // namespace IP_ISA
}  // namespace ip
