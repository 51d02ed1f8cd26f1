// The C interface of the native kernels: operations as data. Plain C types, no torch, no Python.
//
// An operation is a kind and a pointer to its arguments. Arguments hold addresses, sizes and strides (in elements), so
// that a recorded operation can run again with other contents at the same addresses.
#pragma once
#include <cstdint>

extern "C" {

enum IpType : int32_t { IP_F32 = 0, IP_BF16 = 1 };

enum IpKind : int32_t {
  IP_LINEAR = 0,
  IP_EMBEDDING = 1,
  IP_RMS_NORM = 2,
  IP_ROPE = 3,
  IP_GATED = 4,
  IP_KV_WRITE = 5,
  IP_ATTENTION = 6,
  IP_QUANTIZE = 7,
  IP_QUANT_LINEAR = 8,
  IP_QUANT_PACK = 9,
  IP_QUANT_ROWS = 10,
  IP_ANGLES = 11,
  IP_LARGEST = 12,
  IP_PACK = 13,
  IP_GUMBEL_NOISE = 14,
  IP_NUM_KINDS = 15,
};

struct IpOp {
  int32_t kind;
  int32_t type;       // IpType of activations
  const void* args;   // of the kind below
};

// y[m, n] = x[m, k] · Wᵀ + bias, W packed by IP_PACK
struct IpLinear {
  int64_t rows;
  const void* x;
  const void* packed;
  const void* bias;    // null or [n], in the activations' type
  void* y;
  int64_t x_stride, y_stride;
  int32_t n, k;
  int32_t out_f32;     // y is float32 whatever the activations are
};

// Rows [first, first + count) of a packed matrix of n rows, from w[count, k]
struct IpPack {
  const void* w;
  int64_t stride;
  void* packed;        // ip_packed_bytes
  int32_t first, count, n, k;
};

// y[m, size] = table[ids[m]]
struct IpEmbedding {
  int64_t rows;
  const int64_t* ids;
  const void* table;
  void* y;
  int64_t y_stride;
  int32_t size;
  int32_t vocab;
};

// total = x + residual (where there is one); y = total / rms(total) * (weight + offset)
struct IpRmsNorm {
  int64_t rows;
  const void* x;
  const void* residual;  // null: none
  const void* weight;
  void* total;           // null: not wanted
  void* y;
  int64_t x_stride, residual_stride, total_stride, y_stride;
  int32_t size;          // of the last dimension
  int32_t inner;         // vectors of `size` a row, `size` apart (heads)
  float eps, offset;
};

// cos, sin [m, half] of position[m] * frequencies, times factor
struct IpAngles {
  int64_t rows;
  const int64_t* positions;
  const float* frequencies;
  float* cos;
  float* sin;
  int32_t half;
  float factor;
};

// The largest of each row [m, n] of float32 and the first place it stands at; NaN where there is one in the row.
struct IpLargest {
  int64_t rows;
  const float* x;
  float* values;
  int64_t* ids;
  int64_t x_stride;
  int64_t n;
};

// y[m, n] = the noise of token ids[m, n] at a position under a seed; null: of ids 0 to n - 1. float32.
struct IpGumbelNoise {
  int64_t rows;
  const int64_t* seeds;
  const int64_t* positions;
  const int64_t* ids;
  float* y;
  int64_t ids_stride;
  int64_t n;
};

// Rotates [m, heads, size] in halves; elements beyond 2 * half are copied.
struct IpRope {
  int64_t rows;
  const void* x;
  const float* cos;      // [m, half]
  const float* sin;
  void* y;
  int64_t x_stride, y_stride, angle_stride;
  int32_t heads, size, half;
  int32_t interleaved;
};

enum IpActivation : int32_t { IP_SILU = 0, IP_GELU_TANH = 1, IP_GELU = 2 };

// y[m, n] = activation(x[m, :n]) * x[m, n:]
struct IpGated {
  int64_t rows;
  const void* x;
  void* y;
  int64_t x_stride, y_stride;
  int32_t n;
  int32_t activation;
};

struct IpCache {
  void* k;
  void* v;
  int64_t page_stride;     // elements between pages
  int64_t token_stride;    // elements between tokens of a page
  int64_t head_stride;     // elements between heads of a token
  int32_t tokens_per_page;
  int32_t type;            // IpType of the cache
};

// cache[slot[m]] = k[m], v[m]; a negative slot is not written
struct IpKvWrite {
  int64_t rows;
  const void* k;
  const void* v;
  const int64_t* slots;
  int64_t k_stride, v_stride;
  IpCache cache;
  int32_t heads, size;
};

// The step as a backend sees it (inferplane_api.batch.AttentionBatch), in buffers that keep their addresses
struct IpBatch {
  int32_t num_rows;
  int32_t num_decode_rows;
  int32_t num_tokens;          // tokens of the rows; what lies beyond them in `out` becomes zero
  int32_t reserved;
  const int32_t* query_start;  // [num_rows + 1]
  const int32_t* seq_lens;     // [num_rows]
  const int32_t* page_table;   // [num_rows, table_stride]
  int64_t table_stride;
};

struct IpAttention {
  int64_t rows;               // tokens in q and out, padding included
  const IpBatch* batch;
  const void* q;
  void* out;
  float* lse;                  // null or [tokens, heads]
  int64_t q_stride, out_stride;
  IpCache cache;
  int32_t heads, kv_heads, size;
  int32_t window;              // 0: none
  float scale;
  float softcap;               // 0: none
};

// ggml's block formats
enum IpScheme : int32_t {
  IP_Q4_0 = 0,
  IP_Q4_1 = 1,
  IP_Q5_0 = 2,
  IP_Q5_1 = 3,
  IP_Q8_0 = 4,
  IP_Q4_K = 5,
  IP_Q5_K = 6,
  IP_Q6_K = 7,
  IP_NUM_SCHEMES = 8,
};

// quantized = x[m, k] rounded to 8 bits for weights of a scheme; IP_QUANTIZED_BYTES a group of 32. k counts whole groups.
constexpr int64_t IP_QUANTIZED_BYTES = 48;
struct IpQuantize {
  int64_t rows;
  const void* x;
  void* quantized;
  int64_t x_stride;
  int32_t k;
  int32_t scheme;
};

// y[m, n] = x[m, k] · Wᵀ + bias, W packed by IP_QUANT_PACK
struct IpQuantLinear {
  int64_t rows;
  const void* x;           // read where `quantized` is null: by every thread, for few rows
  const void* quantized;   // by IP_QUANTIZE, for the same scheme
  const void* packed;
  const void* bias;        // null or [n], in the activations' type
  void* y;
  int64_t x_stride, y_stride;
  int32_t n, k;
  int32_t scheme;
  int32_t out_f32;         // y is float32 whatever the activations are
};

// Rows [first, first + count) of a packed matrix of n rows, from blocks as ggml has them; what is not packed must be zero.
struct IpQuantPack {
  const void* blocks;
  int64_t stride;          // bytes between rows
  void* packed;            // ip_quant_packed_bytes
  int32_t* too_large;      // becomes 1 where a scale has no float16
  int32_t first, count, n, k;
  int32_t scheme;
};

// y[m, k] = row ids[m] of a packed matrix
struct IpQuantRows {
  int64_t rows;
  const int64_t* ids;
  const void* packed;
  void* y;
  int64_t y_stride;
  int32_t n, k;
  int32_t scheme;
};

struct IpPool;

// The name of the instruction set in use. `force` is null or one of ip_isa_names.
const char* ip_select_isa(const char* force);  // null where this processor lacks it
const char* ip_isa_names();                    // comma-separated, best first, those this processor has

IpPool* ip_pool_create(int32_t threads, const int32_t* cpus, int32_t num_cpus);
void ip_pool_destroy(IpPool*);
int32_t ip_pool_threads(const IpPool*);
void ip_run(IpPool*, const IpOp* ops, int32_t count);

// Bytes of W[n, k] packed for the selected instruction set; weights of type `type`.
int64_t ip_packed_bytes(int32_t type, int32_t n, int32_t k);
// Bytes of W[n, k] of a scheme, packed for the selected instruction set.
int64_t ip_quant_packed_bytes(int32_t scheme, int32_t n, int32_t k);
}
