// Chooses the instruction set at run time and offers the C interface. Knows which sets this library was built with.
#include <cstring>
#include <string>
#include <vector>

#include "abi.h"
#include "pool.h"
#include "table.h"

namespace ip {

#define IP_X(name) \
  namespace name { Table table(); }
IP_BUILT_ISAS
#undef IP_X

namespace {

struct Isa {
  const char* name;
  bool (*present)();
  Table (*table)();
};

#if defined(__x86_64__)
bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif
bool always() { return true; }

#if defined(__x86_64__)
#define IP_PRESENT_avx512_bf16 has_avx512_bf16
#define IP_PRESENT_avx512 has_avx512
#define IP_PRESENT_avx2 has_avx2
#endif
#define IP_PRESENT_portable always
#define IP_PRESENT_neon always

// best first
const Isa kIsas[] = {
#define IP_X(name) {#name, IP_PRESENT_##name, name::table},
    IP_BUILT_ISAS
#undef IP_X
};

Table selected;
std::string names;

void run_op(const void* op, Worker& worker) {
  const auto& o = *static_cast<const IpOp*>(op);
  selected.run[o.type][o.kind](o.args, worker);
}

}  // namespace
}  // namespace ip

extern "C" {

struct IpPool {
  ip::Pool pool;
};

const char* ip_isa_names() {
  ip::names.clear();
  for (const auto& isa : ip::kIsas)
    if (isa.present()) ip::names += (ip::names.empty() ? "" : ",") + std::string(isa.name);
  return ip::names.c_str();
}

const char* ip_select_isa(const char* force) {
  for (const auto& isa : ip::kIsas)
    if (isa.present() && (!force || std::strcmp(force, isa.name) == 0)) {
      ip::selected = isa.table();
      return isa.name;
    }
  return nullptr;
}

IpPool* ip_pool_create(int32_t threads, const int32_t* cpus, int32_t num_cpus) {
  return new IpPool{ip::Pool(threads, std::vector<int>(cpus, cpus + num_cpus))};
}

void ip_pool_destroy(IpPool* pool) { delete pool; }

int32_t ip_pool_threads(const IpPool* pool) { return pool->pool.threads(); }

void ip_run(IpPool* pool, const IpOp* ops, int32_t count) { pool->pool.run(ops, sizeof(IpOp), count, ip::run_op); }

int64_t ip_packed_bytes(int32_t type, int32_t n, int32_t k) {
  const int group = ip::selected.group[type], panel = ip::selected.panel;
  const int64_t panels = (n + panel - 1) / panel, groups = (k + group - 1) / group;
  return panels * panel * groups * 4;
}

int64_t ip_quant_packed_bytes(int32_t scheme, int32_t n, int32_t k) {
  return ip::selected.quant_packed_bytes(scheme, n, k);
}
}
