#include "pool.h"

#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ip {
namespace {

// A barrier within a step is short; a core that spins longer than this is better given to whoever keeps the others
// waiting. Between steps the host plans, for some hundred microseconds.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

#ifdef __linux__
void sleep_while(std::atomic<int32_t>& word, int32_t value) {
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(std::atomic<int32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}
#else
void sleep_while(std::atomic<int32_t>& word, int32_t value) {
  if (word.load(std::memory_order_acquire) == value) std::this_thread::yield();
}
void wake_all(std::atomic<int32_t>&) {}
#endif

// Waits until the word differs from `value`: spinning first, then asleep.
void wait_change(std::atomic<int32_t>& word, int32_t value, std::atomic<int32_t>& sleeping) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    relax();
  }
  sleeping.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == value) sleep_while(word, value);
  sleeping.fetch_sub(1, std::memory_order_relaxed);
}

void pin(int cpu) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
#else
  (void)cpu;
#endif
}

}  // namespace

void Barrier::arrive() {
  if (count_ == 1) return;
  const int32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) != 0) wake_all(generation_);
    return;
  }
  wait_change(generation_, generation, sleeping_);
}

Pool::Pool(int threads, std::vector<int> cpus) : count_(threads < 1 ? 1 : threads), barrier_(count_) {
  for (auto& next : next_) next.store(0);
  const int64_t shared_bytes = kSharedCounters * 4 + kSharedOfThread * count_;
  auto* shared = static_cast<char*>(std::aligned_alloc(64, shared_bytes));
  std::memset(shared, 0, kSharedCounters * 4);
  for (int i = 0; i < count_; ++i) {
    auto* memory = static_cast<char*>(std::aligned_alloc(64, kScratch));
    scratch_.emplace_back(memory, std::free);
    workers_.push_back(Worker{i, count_, nullptr, memory, shared});
  }
  scratch_.emplace_back(shared, std::free);
  for (int i = 1; i < count_; ++i) {
    const int cpu = cpus.empty() ? -1 : cpus[i % cpus.size()];
    threads_.emplace_back([this, i, cpu] {
      if (cpu >= 0) pin(cpu);
      work(i);
    });
  }
}

Pool::~Pool() {
  stop_ = true;
  job_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(job_);
  for (auto& thread : threads_) thread.join();
}

void Pool::run(const void* ops, int64_t size, int count, Run run) {
  ops_ = static_cast<const char*>(ops);
  size_ = size;
  num_ops_ = count;
  run_ = run;
  if (count_ > 1) {
    job_.fetch_add(1, std::memory_order_seq_cst);
    if (idle_.load(std::memory_order_seq_cst) != 0) wake_all(job_);
  }
  pass(0);
}

// The counters alternate: the one of the next operation is reset by the first thread while this one runs, which is
// after everybody has left the previous operation, whose counter it was.
void Pool::pass(int index) {
  Worker& worker = workers_[index];
  // The first thread may begin the next list while others are leaving the last barrier: they must not read its length.
  const char* const ops = ops_;
  const int64_t size = size_;
  const int num_ops = num_ops_;
  const Run run = run_;
  for (int i = 0; i < num_ops; ++i) {
    worker.next = &next_[i & 1];
    if (index == 0) next_[(i + 1) & 1].store(0, std::memory_order_relaxed);
    run(ops + i * size, worker);
    barrier_.arrive();
  }
  if (index == 0) next_[0].store(0, std::memory_order_relaxed), next_[1].store(0, std::memory_order_relaxed);
}

void Pool::work(int index) {
  int32_t seen = 0;
  for (;;) {
    wait_change(job_, seen, idle_);
    seen = seen + 1;
    if (stop_) return;
    pass(index);
  }
}

}  // namespace ip
