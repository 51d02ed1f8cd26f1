// Softmax attention over a paged cache. Included by kernels.inl.
//
// A decode row reads each key and value once for all query heads that share it (Milakov and Gimelshein's running
// softmax, blocks of keys as in FlashAttention; a long row is split over threads as in Flash-Decoding). Prompt chunks
// pack a block of keys and values once for many queries and multiply with the kernel of the linear layers.

constexpr int kBlock = 128;       // keys a time
constexpr int kQueries = 128;     // most queries of a piece of a prompt chunk
constexpr int kHeads = 4;         // query heads whose sums stay in registers
constexpr int kShortSplit = 256;  // keys that are worth a piece of their own
constexpr int kAhead = 64;        // keys that a decode row fetches before it needs them

struct Span {
  int first, last;  // visible keys
};

IP_INLINE int64_t cache_offset(const IpCache& cache, const int32_t* pages, int token, int head) {
  return static_cast<int64_t>(pages[token / cache.tokens_per_page]) * cache.page_stride +
         static_cast<int64_t>(token % cache.tokens_per_page) * cache.token_stride + head * cache.head_stride;
}

IP_INLINE float capped(float score, float cap) { return cap > 0 ? cap * std::tanh(score / cap) : score; }

// Queries of a decode row: as they are where they are multiplied in the cache's own type, else float32.
template <class T, class C>
struct Queries {
  // Pairs of bfloat16 are multiplied by one instruction, if vectors of them fill the head.
  static constexpr bool kSame = std::is_same_v<T, C> && T::kGroup == 2;
  const typename T::Element* own;
  const float* wide;
  int64_t own_stride;
  int wide_stride;
};

// Where a block's keys and values lie, in elements, and those of the keys that are fetched ahead.
struct Places {
  int64_t at[kBlock + kAhead];
  int count;

  Places(const IpCache& cache, const int32_t* pages, int first, int last, int head)
      : count(std::min(last - first, kBlock + kAhead)) {
    const int64_t head_offset = head * cache.head_stride;
    for (int t = 0; t < count;) {
      const int page = (first + t) / cache.tokens_per_page, in_page = first + t - page * cache.tokens_per_page;
      const int run = std::min(count - t, cache.tokens_per_page - in_page);
      int64_t offset = pages[page] * cache.page_stride + in_page * cache.token_stride + head_offset;
      for (int u = 0; u < run; ++u, offset += cache.token_stride) at[t + u] = offset;
      t += run;
    }
  }
};

// Rows of the cache lie apart, too short for the processor to foresee the next.
template <class C>
IP_INLINE void fetch(const void* plane, int64_t offset, int size) {
  constexpr int kLine = 64 / sizeof(typename C::Element);
  for (int i = 0; i < size; i += kLine) __builtin_prefetch(at<C>(plane, offset + i), 0, 2);
}

// One vector of pairs for each 2 * kLanes elements of a head: what a query is in registers.
template <class T, class C, int R, int W>
IP_INLINE void score_pairs(const Queries<T, C>& q, int head, const void* keys, const int64_t* places, vf (&sums)[R][kLanes],
                           int u) {
  const auto* k = at<C>(keys, places[u]);
  vf sum[R] = {};
#pragma GCC unroll 4
  for (int i = 0; i < W; ++i) {
    const vu key = load<vu>(k + 2 * kLanes * i);
    for (int r = 0; r < R; ++r)
      sum[r] = T::dot(sum[r], key, load<vu>(q.own + (head + r) * q.own_stride + 2 * kLanes * i));
  }
  for (int r = 0; r < R; ++r) sums[r][u] = sum[r];
}

template <class T, class C, int R>
IP_INLINE void score_any(const IpAttention& a, const Queries<T, C>& q, int head, const int64_t* places,
                         vf (&sums)[R][kLanes], int u) {
  const int rest = a.size / kLanes * kLanes;
  const auto* k = at<C>(a.cache.k, places[u]);
  vf sum[R] = {};
  for (int i = 0; i < rest; i += kLanes) {
    const vf key = C::load_v(k + i);
    for (int r = 0; r < R; ++r) sum[r] += key * load<vf>(q.wide + (head + r) * q.wide_stride + i);
  }
  for (int i = rest; i < a.size; ++i)
    for (int r = 0; r < R; ++r) sum[r][0] += C::to_float(k[i]) * q.wide[(head + r) * q.wide_stride + i];
  for (int r = 0; r < R; ++r) sums[r][u] = sum[r];
}

// scores[R][t] of R query heads with `count` keys; the first heads of a group fetch for the others.
template <class T, class C, int R>
void decode_scores(const IpAttention& a, const Queries<T, C>& q, int head, const Places& places, int count, float* scores) {
  const bool same = Queries<T, C>::kSame && a.size % (2 * kLanes) == 0;
  int64_t padded[kLanes];
  for (int t = 0; t < count; t += kLanes) {
    const int64_t* own = places.at + t;
    if (t + kLanes > count) {
      for (int u = 0; u < kLanes; ++u) padded[u] = places.at[std::min(t + u, count - 1)];
      own = padded;
    }
    if (head == 0)
      for (int u = t; u < std::min(t + kLanes, count); ++u) {
        fetch<C>(a.cache.v, places.at[u], a.size);
        if (u + kAhead < places.count) fetch<C>(a.cache.k, places.at[u + kAhead], a.size);
      }
    vf sums[R][kLanes];
    if (same) {
      if constexpr (Queries<T, C>::kSame) {
        switch (a.size / (2 * kLanes)) {
          case 1:
            for (int u = 0; u < kLanes; ++u) score_pairs<T, C, R, 1>(q, head, a.cache.k, own, sums, u);
            break;
          case 2:
            for (int u = 0; u < kLanes; ++u) score_pairs<T, C, R, 2>(q, head, a.cache.k, own, sums, u);
            break;
          case 4:
            for (int u = 0; u < kLanes; ++u) score_pairs<T, C, R, 4>(q, head, a.cache.k, own, sums, u);
            break;
          default:
            for (int u = 0; u < kLanes; ++u) {
              const auto* k = at<C>(a.cache.k, own[u]);
              vf sum[R] = {};
              for (int i = 0; i < a.size; i += 2 * kLanes) {
                const vu key = load<vu>(k + i);
                for (int r = 0; r < R; ++r) sum[r] = T::dot(sum[r], key, load<vu>(q.own + (head + r) * q.own_stride + i));
              }
              for (int r = 0; r < R; ++r) sums[r][u] = sum[r];
            }
        }
      }
    } else {
      for (int u = 0; u < kLanes; ++u) score_any<T, C, R>(a, q, head, own, sums, u);
    }
    for (int r = 0; r < R; ++r) store(scores + (head + r) * kBlock + t, sums_of(sums[r]));
  }
}

// out[R][size] += weights[R][t] · v[t]
template <class C, int R>
void decode_values(const IpAttention& a, const float* weights, int head, const Places& places, int count, float* out,
                   int out_stride) {
  constexpr int kWide = 4;
  const int rest = a.size / kLanes * kLanes;
  weights += head * kBlock;
  out += head * out_stride;
  for (int i0 = 0; i0 < rest; i0 += kWide * kLanes) {
    with_rows<kWide>(std::min(kWide, (rest - i0) / kLanes), [&](auto constant) {
      constexpr int W = decltype(constant)::value;
      vf sums[R][W];
      for (int r = 0; r < R; ++r)
        for (int w = 0; w < W; ++w) sums[r][w] = load<vf>(out + r * out_stride + i0 + w * kLanes);
      for (int t = 0; t < count; ++t) {
        const auto* v = at<C>(a.cache.v, places.at[t] + i0);
        for (int w = 0; w < W; ++w) {
          const vf value = C::load_v(v + w * kLanes);
          for (int r = 0; r < R; ++r) sums[r][w] += weights[r * kBlock + t] * value;
        }
      }
      for (int r = 0; r < R; ++r)
        for (int w = 0; w < W; ++w) store(out + r * out_stride + i0 + w * kLanes, sums[r][w]);
    });
  }
  for (int i = rest; i < a.size; ++i)
    for (int r = 0; r < R; ++r) {
      float sum = 0;
      for (int t = 0; t < count; ++t) sum += weights[r * kBlock + t] * C::to_float(at<C>(a.cache.v, places.at[t])[i]);
      out[r * out_stride + i] += sum;
    }
}

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// Scores in units of a factor of two: what the softmax multiplies raw scores by.
IP_INLINE float exponent_scale(const IpAttention& a) { return a.softcap > 0 ? kLog2E : a.scale * kLog2E; }

IP_INLINE void cap_scores(const IpAttention& a, float* scores, int count) {
  if (a.softcap > 0)
    for (int t = 0; t < count; ++t) scores[t] = capped(scores[t] * a.scale, a.softcap);
}

// Turns a block of scores into weights, in place or as T's elements, and moves the running maximum (in powers of two)
// and sum; returns what earlier sums shrink by. The scale is positive.
template <class E, class Store>
IP_INLINE float softmax_block(const float* scores, int count, float scale, float& maximum, float& total, E* out,
                              Store&& store_weights) {
  int t = 0;
  float largest = -INFINITY;
  vf most = splat(-INFINITY);
  for (; t + kLanes <= count; t += kLanes) most = max_of(load<vf>(scores + t), most);
  if (t) largest = largest_of(most);
  for (; t < count; ++t) largest = scores[t] > largest ? scores[t] : largest;
  largest *= scale;
  // A block whose scores are all NaN must give NaN, not zero.
  const float next = largest > maximum ? largest : maximum;
  const float base = next == -INFINITY ? 0.0f : next;
  vf sums = vf{};
  for (t = 0; t + kLanes <= count; t += kLanes) {
    const vf weight = exp2_of(load<vf>(scores + t) * scale - base);
    store_weights(out + t, weight);
    sums += weight;
  }
  float sum = sum_of(sums);
  if (t < count) {
    float tail[kLanes];
    for (int i = 0; i < kLanes; ++i) tail[i] = t + i < count ? scores[t + i] : 0.0f;
    vf weight = exp2_of(load<vf>(tail) * scale - base);
    for (int i = 0; i < kLanes; ++i) {
      if (t + i < count) {
        sum += weight[i];
      } else {
        weight[i] = 0;
      }
    }
    store_weights(out + t, weight);
  }
  const float shrink = maximum == -INFINITY ? 0.0f : exp2_of(splat(maximum - base))[0];
  total = total * shrink + sum;
  maximum = next;
  return shrink;
}

struct Partial {
  float maximum, total;
};

template <class T, class C>
void decode_piece(const IpAttention& a, int row, int kv_head, Span span, char* scratch, Partial* partials, float* out,
                  int out_stride) {
  const int group = a.heads / a.kv_heads;
  const int q_stride = (a.size + kLanes - 1) / kLanes * kLanes;
  float* q = reinterpret_cast<float*>(scratch);
  float* scores = q + group * q_stride;
  const int token = a.batch->query_start[row];
  const auto* own = at<T>(a.q, token * a.q_stride + static_cast<int64_t>(kv_head) * group * a.size);
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < q_stride; ++i)
      q[g * q_stride + i] = i < a.size ? T::to_float(own[static_cast<int64_t>(g) * a.size + i]) : 0.0f;
    for (int i = 0; i < out_stride; ++i) out[g * out_stride + i] = 0;
    partials[g] = {-INFINITY, 0};
  }
  const Queries<T, C> queries{own, q, a.size, q_stride};
  const int32_t* pages = a.batch->page_table + row * a.batch->table_stride;
  const float scale = exponent_scale(a);
  for (int first = span.first; first < span.last; first += kBlock) {
    const int count = std::min(kBlock, span.last - first);
    const Places places(a.cache, pages, first, span.last, kv_head);
    if (first == span.first)
      for (int t = 0; t < std::min(kAhead, places.count); ++t) fetch<C>(a.cache.k, places.at[t], a.size);
    for (int g = 0; g < group; g += kHeads)
      with_rows<kHeads>(std::min(kHeads, group - g), [&](auto constant) {
        decode_scores<T, C, decltype(constant)::value>(a, queries, g, places, count, scores);
      });
    for (int g = 0; g < group; ++g) {
      float* score = scores + g * kBlock;
      cap_scores(a, score, count);
      const float shrink = softmax_block(score, count, scale, partials[g].maximum, partials[g].total, score,
                                         [](float* to, vf weight) { store(to, weight); });
      if (first != span.first)
        for (int i = 0; i < out_stride; ++i) out[g * out_stride + i] *= shrink;
    }
    for (int g = 0; g < group; g += kHeads)
      with_rows<kHeads>(std::min(kHeads, group - g), [&](auto constant) {
        decode_values<C, decltype(constant)::value>(a, scores, g, places, count, out, out_stride);
      });
  }
}

template <class T>
IP_INLINE void write_head(const IpAttention& a, int token, int head, const float* sums, Partial partial) {
  auto* out = at<T>(a.out, token * a.out_stride + static_cast<int64_t>(head) * a.size);
  const float scale = partial.total > 0 || partial.total != partial.total ? 1.0f / partial.total : 0.0f;
  for (int i = 0; i < a.size; ++i) out[i] = T::from_float(sums[i] * scale);
  if (a.lse) a.lse[static_cast<int64_t>(token) * a.heads + head] = partial.maximum * kLn2 + std::log(partial.total);
}

template <class T>
void clear_tokens(const IpAttention& a, int first, int last) {
  for (int token = first; token < last; ++token)
    std::memset(at<T>(a.out, token * a.out_stride), 0,
                static_cast<int64_t>(a.heads) * a.size * sizeof(typename T::Element));
}

template <class T>
void clear_row(const IpAttention& a, int row) {
  clear_tokens<T>(a, a.batch->query_start[row], a.batch->query_start[row + 1]);
}

IP_INLINE Span visible(const IpAttention& a, int row) {
  const int last = a.batch->seq_lens[row];
  return {a.window > 0 ? std::max(0, last - a.window) : 0, last};
}

// Keys and values of `count` tokens from `first` on, packed as the linear kernel wants them: keys [panels of keys]
// [groups of elements], values [panels of elements][groups of keys].
template <class T, class C>
void pack_block(const IpAttention& a, const int32_t* pages, int first, int count, int kv_head,
                typename T::Element* keys, typename T::Element* values) {
  using E = typename T::Element;
  constexpr int G = T::kGroup;
  const int64_t key_panel = panel_elements<T>(a.size), value_panel = panel_elements<T>(kBlock);
  const int key_groups = static_cast<int>(groups_of(a.size, G)), sizes = (a.size + kPanel - 1) / kPanel * kPanel;
  for (int t = 0; t < count; ++t) {
    const int64_t offset = cache_offset(a.cache, pages, first + t, kv_head);
    const auto* k = at<C>(a.cache.k, offset);
    E* to_k = keys + t / kPanel * key_panel + t % kPanel * G;
    if constexpr (std::is_same_v<T, C>) {
      const int whole = a.size / G;
      for (int g = 0; g < whole; ++g) std::memcpy(to_k + static_cast<int64_t>(g) * kPanel * G, k + g * G, 4);
      if (whole < key_groups)
        for (int j = 0; j < G; ++j) to_k[whole * kPanel * G + j] = whole * G + j < a.size ? k[whole * G + j] : E{};
    } else {
      for (int g = 0; g < key_groups; ++g)
        for (int j = 0; j < G; ++j)
          to_k[g * kPanel * G + j] = g * G + j < a.size ? T::from_float(C::to_float(k[g * G + j])) : E{};
    }
  }
  // Values of two tokens side by side where a lane holds two, a vector at a time.
  int paired = 0;
  if constexpr (std::is_same_v<T, C> && G == 2) {
    if (a.size % kPanel == 0)
      for (; paired + 2 <= count; paired += 2) {
        const auto* v0 = at<C>(a.cache.v, cache_offset(a.cache, pages, first + paired, kv_head));
        const auto* v1 = at<C>(a.cache.v, cache_offset(a.cache, pages, first + paired + 1, kv_head));
        E* to = values + paired / 2 * (kPanel * 2);
        for (int i = 0; i < a.size; i += kLanes) {
          const vu low = __builtin_convertvector(load<vh>(v0 + i), vu), high = __builtin_convertvector(load<vh>(v1 + i), vu);
          store(to + i / kPanel * value_panel + i % kPanel * 2, low | (high << 16));
        }
      }
  }
  for (int t = paired; t < count; ++t) {
    const auto* v = at<C>(a.cache.v, cache_offset(a.cache, pages, first + t, kv_head));
    E* to_v = values + t / G * (kPanel * G) + t % G;
    for (int i = 0; i < sizes; ++i) {
      E value{};
      if (i < a.size) {
        if constexpr (std::is_same_v<T, C>) {
          value = v[i];
        } else {
          value = T::from_float(C::to_float(v[i]));
        }
      }
      to_v[i / kPanel * value_panel + i % kPanel * G] = value;
    }
  }
  const int padded_keys = (count + kPanel - 1) / kPanel * kPanel;
  for (int t = count; t < padded_keys; ++t)
    for (int g = 0; g < key_groups; ++g)
      for (int j = 0; j < G; ++j) keys[t / kPanel * key_panel + t % kPanel * G + g * kPanel * G + j] = E{};
  for (int t = count; t % G; ++t)
    for (int i = 0; i < sizes; ++i) values[i / kPanel * value_panel + t / G * (kPanel * G) + i % kPanel * G + t % G] = E{};
}

// As many as the scratch memory holds, but no more than give every thread several pieces: the last ones end together.
int queries_of_piece(const IpAttention& a, int threads) {
  const int64_t row_bytes = static_cast<int64_t>(a.heads / a.kv_heads) * (a.size + kPanel) * 4;
  const int most = static_cast<int>(std::clamp<int64_t>((1 << 20) / row_bytes, 1, kQueries));
  const int64_t prompt_tokens = a.batch->num_tokens - a.batch->num_decode_rows;
  const int64_t share = prompt_tokens * a.kv_heads / (6 * threads);
  return static_cast<int>(std::clamp<int64_t>(share, std::min(32, most), most));
}

template <class T, class C>
void prompt_piece(const IpAttention& a, int row, int kv_head, int first_query, int last_query, char* scratch) {
  using E = typename T::Element;
  const int group = a.heads / a.kv_heads, queries = last_query - first_query;
  const int token0 = a.batch->query_start[row], before = a.batch->seq_lens[row] - (a.batch->query_start[row + 1] - token0);
  const int sizes = (a.size + kPanel - 1) / kPanel * kPanel;
  const int64_t key_panel = panel_elements<T>(a.size), value_panel = panel_elements<T>(kBlock);
  const int32_t* pages = a.batch->page_table + row * a.batch->table_stride;

  char* free_memory = scratch;
  const auto carve = [&](int64_t bytes) {
    char* p = free_memory;
    free_memory += (bytes + 63) / 64 * 64;
    return p;
  };
  auto* keys = reinterpret_cast<E*>(carve((kBlock + kPanel - 1) / kPanel * key_panel * sizeof(E)));
  auto* values = reinterpret_cast<E*>(carve(sizes / kPanel * value_panel * sizeof(E)));
  auto* scores = reinterpret_cast<float*>(carve(kTile * kBlock * sizeof(float)));
  auto* weights = reinterpret_cast<E*>(carve((kTile * kBlock + kLanes) * sizeof(E)));
  auto* partials = reinterpret_cast<Partial*>(carve(group * queries * sizeof(Partial)));
  auto* sums = reinterpret_cast<float*>(carve(static_cast<int64_t>(group) * queries * sizes * sizeof(float)));
  for (int i = 0; i < group * queries; ++i) partials[i] = {-INFINITY, 0};
  std::memset(sums, 0, static_cast<int64_t>(group) * queries * sizes * sizeof(float));

  const int first_position = before + first_query, last_position = before + last_query - 1;
  const int begin = a.window > 0 ? std::max(0, first_position - a.window + 1) : 0;
  const int tiles = (queries + kTile - 1) / kTile;
  const float scale = exponent_scale(a);
  for (int first = begin; first <= last_position; first += kBlock) {
    const int count = std::min(kBlock, last_position + 1 - first);
    pack_block<T, C>(a, pages, first, count, kv_head, keys, values);
    for (int g = 0; g < group; ++g)
      for (int tile = 0; tile < tiles; ++tile) {
        const int tile_begin = queries * tile / tiles, tile_end = queries * (tile + 1) / tiles;
        // What the tile's last query sees of the block, and whether its first query sees it.
        const int seen = std::min(count, before + first_query + tile_end - first);
        if (seen <= 0) continue;
        if (a.window > 0 && first + count <= before + first_query + tile_begin - a.window + 1) continue;
        with_rows<kTile>(tile_end - tile_begin, [&](auto constant) {
          constexpr int R = decltype(constant)::value;
          const auto* q = at<T>(a.q, static_cast<int64_t>(token0 + first_query + tile_begin) * a.q_stride +
                                         static_cast<int64_t>(kv_head * group + g) * a.size);
          vf product[R][2];
          for (int panel = 0; panel * kPanel < seen; ++panel) {
            multiply<T, R>(q, a.q_stride, reinterpret_cast<const uint32_t*>(keys + panel * key_panel), a.size, product);
            for (int r = 0; r < R; ++r) {
              store(scores + r * kBlock + panel * kPanel, product[r][0]);
              store(scores + r * kBlock + panel * kPanel + kLanes, product[r][1]);
            }
          }
          for (int r = 0; r < R; ++r) {
            const int index = g * queries + tile_begin + r, position = before + first_query + tile_begin + r;
            float* score = scores + r * kBlock;
            E* weight = weights + r * kBlock;
            const int end = std::clamp(position + 1 - first, 0, seen);
            const int start = a.window > 0 ? std::clamp(position - a.window + 1 - first, 0, end) : 0;
            Partial& partial = partials[index];
            float shrink = 1;
            int done = start;
            for (int t = 0; t < start; ++t) weight[t] = E{};
            if (end > start) {
              cap_scores(a, score + start, end - start);
              shrink = softmax_block(score + start, end - start, scale, partial.maximum, partial.total, weight + start,
                                     [](E* to, vf w) { T::store_v(to, w); });
              done = start + (end - start + kLanes - 1) / kLanes * kLanes;
            }
            for (int t = done; t < seen; ++t) weight[t] = E{};
            if (shrink != 1) {
              float* sum = sums + static_cast<int64_t>(index) * sizes;
              for (int i = 0; i < sizes; i += kLanes) store(sum + i, load<vf>(sum + i) * shrink);
            }
          }
          for (int panel = 0; panel * kPanel < sizes; ++panel) {
            multiply<T, R>(weights, kBlock, reinterpret_cast<const uint32_t*>(values + panel * value_panel), seen, product);
            for (int r = 0; r < R; ++r) {
              float* sum = sums + static_cast<int64_t>(g * queries + tile_begin + r) * sizes + panel * kPanel;
              store(sum, load<vf>(sum) + product[r][0]);
              store(sum + kLanes, load<vf>(sum + kLanes) + product[r][1]);
            }
          }
        });
      }
  }
  for (int g = 0; g < group; ++g)
    for (int i = 0; i < queries; ++i)
      write_head<T>(a, token0 + first_query + i, kv_head * group + g,
                    sums + static_cast<int64_t>(g * queries + i) * sizes, partials[g * queries + i]);
}

// Pieces of a decode row's keys: one where there is other work, more where threads would wait.
IP_INLINE int splits_of(const IpAttention& a, Span span, int threads, int64_t piece_bytes) {
  const int others = std::max(1, a.batch->num_decode_rows * a.kv_heads);
  if (others >= 4 * threads || others > kSharedCounters) return 1;
  const int fit = static_cast<int>(std::min<int64_t>(kSharedOfThread * threads / (piece_bytes * others), 64));
  const int wanted = std::min((4 * threads + others - 1) / others, (span.last - span.first) / kShortSplit);
  return std::clamp(wanted, 1, std::max(1, fit));
}

template <class T, class C>
void attention_of(const IpAttention& a, Worker& worker) {
  const IpBatch& batch = *a.batch;
  const int group = a.heads / a.kv_heads, queries = queries_of_piece(a, worker.count);
  const int sizes = (a.size + kLanes - 1) / kLanes * kLanes;
  const int64_t piece_floats = static_cast<int64_t>(group) * (sizes + 2);
  // Every thread counts the pieces alike: first the prompt chunks, the longest work, then the decode rows.
  int next = worker.take(INT32_MAX), piece = 0;
  for (int row = batch.num_decode_rows; row < batch.num_rows; ++row) {
    const int length = batch.query_start[row + 1] - batch.query_start[row];
    if (batch.seq_lens[row] <= 0) {
      if (worker.index == 0) clear_row<T>(a, row);
      continue;
    }
    // The last queries see the most: they begin first.
    for (int block = (length - 1) / queries; block >= 0 && length > 0; --block)
      for (int head = 0; head < a.kv_heads; ++head, ++piece) {
        if (piece != next) continue;
        prompt_piece<T, C>(a, row, head, block * queries, std::min(length, (block + 1) * queries), worker.scratch);
        next = worker.take(INT32_MAX);
      }
  }
  int split_index = 0;    // of the row and head
  int64_t results_before = 0;  // pieces of the rows and heads before
  for (int row = 0; row < batch.num_decode_rows; ++row) {
    const Span span = visible(a, row);
    if (span.last <= 0) {
      if (worker.index == 0) clear_row<T>(a, row);
      continue;
    }
    const int splits = splits_of(a, span, worker.count, piece_floats * 4);
    const int step = ((span.last - span.first + splits - 1) / splits + kLanes - 1) / kLanes * kLanes;
    for (int head = 0; head < a.kv_heads; ++head, ++split_index, results_before += splits)
      for (int split = 0; split < splits; ++split, ++piece) {
        if (piece != next) continue;
        const int first = span.first + split * step;
        const Span part{first, std::min(span.last, first + step)};
        auto* memory = reinterpret_cast<float*>(worker.scratch);
        if (splits == 1) {
          auto* partials = reinterpret_cast<Partial*>(memory + static_cast<int64_t>(group) * sizes);
          char* rest = worker.scratch + (piece_floats * 4 + 63) / 64 * 64;
          decode_piece<T, C>(a, row, head, part, rest, partials, memory, sizes);
          for (int g = 0; g < group; ++g)
            write_head<T>(a, batch.query_start[row], head * group + g, memory + g * sizes, partials[g]);
        } else {
          auto* counters = reinterpret_cast<std::atomic<int32_t>*>(worker.shared);
          auto* results = reinterpret_cast<float*>(worker.shared + kSharedCounters * 4);
          const auto result = [&](int index) {
            return results + (results_before + index) * piece_floats;
          };
          float* sums = result(split);
          auto* partials = reinterpret_cast<Partial*>(sums + static_cast<int64_t>(group) * sizes);
          decode_piece<T, C>(a, row, head, part, worker.scratch, partials, sums, sizes);
          if (counters[split_index].fetch_add(1, std::memory_order_acq_rel) == splits - 1) {
            counters[split_index].store(0, std::memory_order_relaxed);
            for (int g = 0; g < group; ++g) {
              Partial whole{-INFINITY, 0};
              for (int s = 0; s < splits; ++s)
                whole.maximum = std::max(
                    whole.maximum, reinterpret_cast<Partial*>(result(s) + static_cast<int64_t>(group) * sizes)[g].maximum);
              float* sum = memory;
              for (int i = 0; i < sizes; ++i) sum[i] = 0;
              for (int s = 0; s < splits; ++s) {
                const Partial p = reinterpret_cast<Partial*>(result(s) + static_cast<int64_t>(group) * sizes)[g];
                const float factor = p.maximum == -INFINITY && p.total == 0 ? 0.0f : exp2_of(splat(p.maximum - whole.maximum))[0];
                whole.total += p.total * factor;
                for (int i = 0; i < a.size; ++i) sum[i] += result(s)[g * sizes + i] * factor;
              }
              write_head<T>(a, batch.query_start[row], head * group + g, sum, whole);
            }
          }
        }
        next = worker.take(INT32_MAX);
      }
  }
  // Tokens of no row
  if (worker.index == 0) clear_tokens<T>(a, batch.num_tokens, static_cast<int>(a.rows));
}

template <class T>
void attention(const void* args, Worker& worker) {
  const auto& a = *static_cast<const IpAttention*>(args);
  if (a.cache.type == IP_BF16) return attention_of<T, BF16>(a, worker);
  return attention_of<T, F32>(a, worker);
}
