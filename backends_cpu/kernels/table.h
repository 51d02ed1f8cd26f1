// The functions of one instruction set.
#pragma once
#include "abi.h"
#include "pool.h"

namespace ip {

struct Table {
  using Run = void (*)(const void* args, Worker& worker);

  Run run[2][IP_NUM_KINDS] = {};
  int64_t (*quant_packed_bytes)(int scheme, int n, int k) = nullptr;
  int group[2] = {};
  int panel = 0;
};

}  // namespace ip
