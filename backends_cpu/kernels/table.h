// The functions of one instruction set.
#pragma once
#include "abi.h"
#include "pool.h"

namespace ip {

struct Table {
  using Run = void (*)(const void* args, Worker& worker);
  using Pack = void (*)(const void* w, int64_t stride, int first, int count, int n, int k, void* packed);

  Run run[2][IP_NUM_KINDS] = {};
  Pack pack[2] = {};
  int64_t (*quant_packed_bytes)(int scheme, int n, int k) = nullptr;
  int group[2] = {};
  int panel = 0;
};

}  // namespace ip
