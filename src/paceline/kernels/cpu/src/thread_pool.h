// A thread pool for fork-join phases with dynamic scheduling.
//
// A job is a sequence of phases, each divided into chunks. Every thread takes the next chunk, and a phase ends when all
// its chunks are done, not when all threads have arrived: a thread that the system has descheduled delays
// only the chunk it is running. Which thread runs a chunk does not affect results.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace paceline {

constexpr int SPINS = 20000;       // before a waiting thread yields
constexpr int IDLE_SPINS = 50000;  // before an idle thread sleeps: decoding steps follow each other quickly
constexpr int LARGE_PERCENT = 85;  // percent of a phase in as many chunks as there are threads, and
constexpr int SMALL_CHUNKS = 2;    // chunks per thread of the rest, for load balancing

struct alignas(64) Phase {
    std::atomic<int> taken{0}, done{0};
};

// Phases on demand, in blocks that never move.
class Phases {
   public:
    Phase &at(long i) {
        std::atomic<Phase *> &block = blocks_[i / BLOCK];
        Phase *found = block.load(std::memory_order_acquire);
        if (!found) {
            Phase *made = new Phase[BLOCK];
            if (block.compare_exchange_strong(found, made, std::memory_order_acq_rel))
                found = made;
            else
                delete[] made;
        }
        return found[i % BLOCK];
    }
    void clear(long used) {
        for (long i = 0; i < used; i++) {
            at(i).taken.store(0, std::memory_order_relaxed);
            at(i).done.store(0, std::memory_order_relaxed);
        }
    }
    std::vector<float> scratch;  // of the job's threads together

   private:
    static constexpr long BLOCK = 256, BLOCKS = 1 << 14;  // four million; the longest prompt uses a fraction
    std::atomic<Phase *> blocks_[BLOCKS]{};
};

// One thread's view of a job.
class Worker {
   public:
    Worker(Phases *phases, int threads) : phases_(phases), threads_(threads) {}

    // The next phase: work(begin, end) for chunks of count items, in multiples of step. Returns when all are done.
    template <class Work>
    void parallel_for(long count, long step, Work &&work) {
        if (!phases_) return count > 0 ? work(0, count) : void();
        const long blocks = (count + step - 1) / step,
                   chunks = std::min<long>(blocks, (long)threads_ * (1 + SMALL_CHUNKS));
        // Large chunks first: sequential memory is read fastest.
        const long large = blocks > chunks ? blocks * LARGE_PERCENT / 100 / threads_ : 0,
                   others = large ? chunks - threads_ : chunks;
        auto begin = [&](long i) {
            if (large && i <= threads_) return large * i;
            const long beyond = large ? large * threads_ : 0, from = large ? threads_ : 0;
            return beyond + (blocks - beyond) * (i - from) / others;
        };
        Phase &phase = phases_->at(at_++);
        for (long i; (i = phase.taken.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
            work(begin(i) * step, std::min(count, begin(i + 1) * step));
            phase.done.fetch_add(1, std::memory_order_acq_rel);
        }
        for (int spins = 0; phase.done.load(std::memory_order_acquire) < chunks; spins++)
            if (spins > SPINS) std::this_thread::yield();
    }
    // The next phase, run by one thread.
    template <class Work>
    void single(Work &&work) {
        parallel_for(1, 1, [&](long, long) { work(); });
    }
    // Memory that the threads of a job share, until its next call; null if there is one thread.
    float *shared(long count) {
        if (!phases_) return nullptr;
        single([&] {
            if ((long)phases_->scratch.size() < count) phases_->scratch.resize(count);
        });
        return phases_->scratch.data();
    }
    long phases() const { return at_; }

   private:
    Phases *phases_;
    int threads_;
    long at_ = 0;
};

class ThreadPool {
   public:
    // The pool of this process. Never destroyed, since its threads may outlive static objects.
    static ThreadPool &instance() {
        static ThreadPool *threads = new ThreadPool;
        if (threads->pid_ != getpid()) new (threads) ThreadPool;  // after a fork only the calling thread exists
        return *threads;
    }

    // Runs job(worker) on up to threads threads; on the caller alone if the pool is busy.
    template <class Job>
    void run(int threads, Job &&job) {
        std::unique_lock<std::mutex> lock(job_mutex_, std::try_to_lock);
        if (threads <= 1 || !lock || !ensure_workers(threads - 1)) {
            Worker sequential(nullptr, 1);
            return job(sequential);
        }
        call_ = [](void *it, Worker &worker) { (*(std::remove_reference_t<Job> *)it)(worker); };
        job_ = &job, threads_ = threads;
        accepting_.store(true);
        generation_.fetch_add(1);
        if (num_sleeping_.load() > 0) {
            std::lock_guard<std::mutex> waking(sleep_mutex_);
            wake_.notify_all();
        }
        Worker own(&phases_, threads);
        job(own);
        accepting_.store(false);
        for (int spins = 0; num_active_.load() > 0; spins++)
            if (spins > SPINS) std::this_thread::yield();
        phases_.clear(own.phases());
    }

   private:
    const pid_t pid_ = getpid();
    std::mutex job_mutex_, sleep_mutex_;
    std::condition_variable wake_;
    int num_workers_ = 0;
    std::atomic<unsigned> generation_{0};
    std::atomic<int> num_sleeping_{0}, num_active_{0};
    std::atomic<bool> accepting_{false};
    void (*call_)(void *, Worker &) = nullptr;
    void *job_ = nullptr;
    int threads_ = 1;
    Phases phases_;

    // Starts threads up to wanted, or as many as the system allows; false if there are none.
    bool ensure_workers(int wanted) {
        try {
            for (; num_workers_ < wanted; num_workers_++)
                std::thread([this, rank = num_workers_] { worker_loop(rank); }).detach();
        } catch (const std::system_error &) {
        }
        return num_workers_ > 0;
    }

    void worker_loop(int rank) {
        for (unsigned seen = generation_.load() - 1;;) {
            seen = wait_for_job(seen);
            num_active_.fetch_add(1);
            // Accepting: the caller waits for active workers, so the job is alive.
            if (accepting_.load() && rank < threads_ - 1) {
                Worker worker(&phases_, threads_);
                call_(job_, worker);
            }
            num_active_.fetch_sub(1);
        }
    }

    unsigned wait_for_job(unsigned seen) {
        for (int spins = 0; spins < IDLE_SPINS; spins++)
            if (generation_.load(std::memory_order_acquire) != seen) return generation_.load();
        std::unique_lock<std::mutex> lock(sleep_mutex_);
        num_sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        num_sleeping_.fetch_sub(1);
        return generation_.load();
    }
};

// work(begin, end) for chunks of count items, by several threads.
template <class Work>
void parallel_for(int threads, long count, Work &&work) {
    ThreadPool::instance().run(threads, [&](Worker &worker) { worker.parallel_for(count, 1, work); });
}

}  // namespace paceline
