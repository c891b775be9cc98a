// Threads that walk the same work together, and how they share it out.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace paceline {

constexpr int SPINS = 20000;  // before a waiting thread lets others run

class Barrier {
   public:
    void start(int threads) { threads_ = threads; }
    void wait() {
        if (threads_ == 1) return;
        const int turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; spins++)
            if (spins > SPINS) std::this_thread::yield();
    }

   private:
    int threads_ = 1;
    std::atomic<int> arrived_{0}, turn_{0};
};

#if defined(_OPENMP)
inline int team_size() { return omp_get_num_threads(); }
inline int team_rank() { return omp_get_thread_num(); }
#else
inline int team_size() { return 1; }
inline int team_rank() { return 0; }
#endif

// A thread's share of count things, in multiples of step.
struct Share {
    int begin, end;
    Share(int count, int step, int thread, int threads) {
        const long blocks = (count + step - 1) / step;
        begin = std::min<long>(count, blocks * thread / threads * step);
        end = std::min<long>(count, blocks * (thread + 1) / threads * step);
    }
};

}  // namespace paceline
