// Threads that go through the same work together.
//
// A job is a sequence of phases, each of some pieces. Whoever comes takes the next piece, and a phase is over when all
// its pieces are done, not when all threads have come: a thread that the system keeps from running holds up nobody but
// for the piece in its hands. Which thread does a piece changes no number.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

namespace paceline {

constexpr int SPINS = 20000;       // before a waiting thread lets others run
constexpr int IDLE_SPINS = 50000;  // before a thread without a job sleeps: some steps follow each other that fast
constexpr int LARGE = 85;          // percent of a phase in as many pieces as there are threads, and
constexpr int SMALL = 2;           // the rest, for each thread, so that a slow one takes fewer

struct alignas(64) Phase {
    std::atomic<int> taken{0}, done{0};
};

// As many as asked for, in blocks that stay where they are.
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

   private:
    static constexpr long BLOCK = 256, BLOCKS = 1 << 14;  // of four million, one prompt of the longest takes a part
    std::atomic<Phase *> blocks_[BLOCKS]{};
};

// One thread's way through a job.
class Walk {
   public:
    Walk(Phases *phases, int threads) : phases_(phases), threads_(threads) {}

    // The next phase: work(begin, end) for pieces of count things, in multiples of step. Returns when all are done.
    template <class Work>
    void share(long count, long step, Work &&work) {
        if (!phases_) return count > 0 ? work(0, count) : void();
        const long blocks = (count + step - 1) / step, pieces = std::min<long>(blocks, (long)threads_ * (1 + SMALL));
        // Large pieces first: what lies one after another is read fastest.
        const long large = blocks > pieces ? blocks * LARGE / 100 / threads_ : 0, others = large ? pieces - threads_ : pieces;
        auto begin = [&](long i) {
            if (large && i <= threads_) return large * i;
            const long beyond = large ? large * threads_ : 0, from = large ? threads_ : 0;
            return beyond + (blocks - beyond) * (i - from) / others;
        };
        Phase &phase = phases_->at(at_++);
        for (long i; (i = phase.taken.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
            work(begin(i) * step, std::min(count, begin(i + 1) * step));
            phase.done.fetch_add(1, std::memory_order_acq_rel);
        }
        for (int spins = 0; phase.done.load(std::memory_order_acquire) < pieces; spins++)
            if (spins > SPINS) std::this_thread::yield();
    }
    // The next phase, of one piece.
    template <class Work>
    void once(Work &&work) {
        share(1, 1, [&](long, long) { work(); });
    }
    long phases() const { return at_; }

   private:
    Phases *phases_;
    int threads_;
    long at_ = 0;
};

class Team {
   public:
    // The one of this process. Never destroyed, since its threads may outlive what is.
    static Team &of_process() {
        static Team *team = new Team;
        if (team->process_ != getpid()) new (team) Team;  // after a fork there are no threads but the caller
        return *team;
    }

    // job(walk) by as many threads as can be had, all through the same phases; where the team is busy, by the caller.
    template <class Job>
    void run(int threads, Job &&job) {
        std::unique_lock<std::mutex> held(busy_, std::try_to_lock);
        if (threads <= 1 || !held || !grow(threads - 1)) {
            Walk alone(nullptr, 1);
            return job(alone);
        }
        call_ = [](void *it, Walk &walk) { (*(std::remove_reference_t<Job> *)it)(walk); };
        job_ = &job, threads_ = threads;
        open_.store(true);
        turn_.fetch_add(1);
        if (asleep_.load() > 0) {
            std::lock_guard<std::mutex> waking(sleep_);
            wake_.notify_all();
        }
        Walk mine(&phases_, threads);
        job(mine);
        open_.store(false);
        for (int spins = 0; inside_.load() > 0; spins++)
            if (spins > SPINS) std::this_thread::yield();
        phases_.clear(mine.phases());
    }

   private:
    const pid_t process_ = getpid();
    std::mutex busy_, sleep_;
    std::condition_variable wake_;
    int members_ = 0;
    std::atomic<unsigned> turn_{0};
    std::atomic<int> asleep_{0}, inside_{0};
    std::atomic<bool> open_{false};
    void (*call_)(void *, Walk &) = nullptr;
    void *job_ = nullptr;
    int threads_ = 1;
    Phases phases_;

    // Whether there are so many members, or as many as the system gives but not none.
    bool grow(int wanted) {
        try {
            for (; members_ < wanted; members_++) std::thread([this, rank = members_] { serve(rank); }).detach();
        } catch (const std::system_error &) {
        }
        return members_ > 0;
    }

    void serve(int rank) {
        for (unsigned seen = turn_.load() - 1;;) {
            seen = wait_beyond(seen);
            inside_.fetch_add(1);
            // Open: the caller waits for whoever is inside, so the job lives.
            if (open_.load() && rank < threads_ - 1) {
                Walk walk(&phases_, threads_);
                call_(job_, walk);
            }
            inside_.fetch_sub(1);
        }
    }

    unsigned wait_beyond(unsigned seen) {
        for (int spins = 0; spins < IDLE_SPINS; spins++)
            if (turn_.load(std::memory_order_acquire) != seen) return turn_.load();
        std::unique_lock<std::mutex> held(sleep_);
        asleep_.fetch_add(1);
        wake_.wait(held, [&] { return turn_.load() != seen; });
        asleep_.fetch_sub(1);
        return turn_.load();
    }
};

// work(begin, end) for pieces of count things, by several threads.
template <class Work>
void share(int threads, long count, Work &&work) {
    Team::of_process().run(threads, [&](Walk &walk) { walk.share(count, 1, work); });
}

}  // namespace paceline
