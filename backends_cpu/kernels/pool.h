// Threads that run a list of operations together, with a barrier between two. Knows no operation.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace ip {

// Handed to an operation in every thread. Work is taken in turn, so that a thread that lost its processor to another
// process delays the others by one piece at most.
struct Worker {
  int index;
  int count;
  std::atomic<int32_t>* next;
  char* scratch;       // kScratch bytes of the thread's own, 64-byte aligned
  char* shared;        // kShared bytes, the same for all

  int take(int total) {
    int i = next->fetch_add(1, std::memory_order_relaxed);
    return i < total ? i : -1;
  }
};

constexpr int64_t kScratch = 2 << 20;
constexpr int64_t kSharedOfThread = 1 << 20;
constexpr int kSharedCounters = 1024;

class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void arrive();

 private:
  const int count_;
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<int32_t> generation_{0};
  alignas(64) std::atomic<int32_t> sleeping_{0};
};

class Pool {
 public:
  using Run = void (*)(const void* op, Worker& worker);

  Pool(int threads, std::vector<int> cpus);
  ~Pool();
  int threads() const { return count_; }
  // Runs `count` operations of `size` bytes each, in order.
  void run(const void* ops, int64_t size, int count, Run run);

 private:
  void work(int index);
  void pass(int index);

  const int count_;
  Barrier barrier_;
  std::vector<std::thread> threads_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<char, void (*)(void*)>> scratch_;  // the last one is shared
  alignas(64) std::atomic<int32_t> job_{0};
  alignas(64) std::atomic<int32_t> idle_{0};
  alignas(64) std::atomic<int32_t> next_[2];
  const char* ops_ = nullptr;
  int64_t size_ = 0;
  int num_ops_ = 0;
  Run run_ = nullptr;
  bool stop_ = false;
};

}  // namespace ip
