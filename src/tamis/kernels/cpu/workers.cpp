// Tasks are handed out one by one from a counter: a thread that comes late, or that the system has put aside, finds less to
// do.
//
// Where PyTorch runs on OpenMP, tasks run on its threads. Those look for new work for some milliseconds after each of
// PyTorch's operations, and threads of our own would have to share the processor with them. Elsewhere, and in a child
// process, where OpenMP's threads are gone and it does not know, there are workers: they look for new work for a short
// while before they sleep, since waking one up takes as long as a small layer does, and the caller waits only for tasks
// that were begun.

#include "workers.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace tamis {
namespace {

constexpr std::size_t most_workers = 255;
constexpr auto patience = std::chrono::microseconds(100);  // before a worker without work sleeps

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

class Workers {
public:
    void run(std::size_t threads, std::size_t tasks, void (*task)(void*, std::size_t), void* context) {
        if (threads > most_workers + 1) threads = most_workers + 1;
        if (threads > tasks) threads = tasks;
        std::unique_lock<std::mutex> alone(busy_, std::try_to_lock);
        if (threads <= 1 || !alone.owns_lock()) {
            for (std::size_t i = 0; i < tasks; ++i) task(context, i);
            return;
        }
        start_workers(threads - 1);
        task_ = task;
        context_ = context;
        tasks_ = tasks;
        next_.store(0, std::memory_order_relaxed);
        // The tickets of this round; a worker of an earlier one that wakes up now finds none.
        tickets_.store(threads - 1, std::memory_order_seq_cst);
        round_.fetch_add(1);  // in one order with `asleep_`: either the worker sees the round, or the caller the sleeper
        if (asleep_.load() > 0) {
            const std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        work();
        // No worker may begin any more, and those that did are waited for.
        tickets_.store(0, std::memory_order_seq_cst);
        for (unsigned spins = 0; working_.load(std::memory_order_seq_cst) != 0; ++spins) {
            if (spins < 10000) pause();
            else std::this_thread::yield();
        }
    }

private:
    void work() {
        for (std::size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) task_(context_, i);
    }

    void start_workers(std::size_t wanted) {
        for (; started_ < wanted; ++started_) {
            try {
                std::thread([this] { live(); }).detach();
            } catch (...) {
                return;  // no thread to be had: those that there are do the work
            }
        }
    }

    // Takes part in a round if it still has a ticket. `working_` rises before the ticket is looked at, so that the caller,
    // who takes the tickets away before it looks at `working_`, misses no one.
    void take_part() {
        working_.fetch_add(1, std::memory_order_seq_cst);
        std::size_t left = tickets_.load(std::memory_order_seq_cst);
        while (left > 0 && !tickets_.compare_exchange_weak(left, left - 1, std::memory_order_seq_cst)) {
        }
        if (left > 0) work();
        working_.fetch_sub(1, std::memory_order_seq_cst);
    }

    [[noreturn]] void live() {
        // A worker is started within a round, and takes part in it.
        std::uint64_t seen = round_.load() - 1;
        for (;;) {
            auto until = std::chrono::steady_clock::now() + patience;
            for (unsigned spins = 1; round_.load(std::memory_order_acquire) == seen; ++spins) {
                pause();
                if (spins % 64 == 0 && std::chrono::steady_clock::now() > until) {
                    std::unique_lock<std::mutex> lock(sleep_);
                    asleep_.fetch_add(1);
                    wake_.wait(lock, [&] { return round_.load() != seen; });
                    asleep_.fetch_sub(1);
                }
            }
            seen = round_.load(std::memory_order_acquire);
            take_part();
        }
    }

    std::mutex busy_, sleep_;
    std::condition_variable wake_;
    std::size_t started_ = 0;
    alignas(64) std::atomic<std::uint64_t> round_{0};
    std::atomic<std::size_t> asleep_{0};
    void (*task_)(void*, std::size_t) = nullptr;
    void* context_ = nullptr;
    std::size_t tasks_ = 0;
    alignas(64) std::atomic<std::size_t> next_{0};
    alignas(64) std::atomic<std::size_t> tickets_{0};
    std::atomic<std::size_t> working_{0};
};

// Never destroyed: workers may outlive what the process does at its end. A child process has none of the workers of its
// parent, and perhaps a mutex that one of them held: it gets an object of its own.
std::atomic<Workers*> workers{nullptr};

Workers& the_workers() {
    Workers* here = workers.load(std::memory_order_acquire);
    if (here != nullptr) return *here;
    auto* fresh = new Workers;
    if (workers.compare_exchange_strong(here, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
    return *here;
}

// Runs a function on every thread of a team, the calling one among them. PyTorch makes its OpenMP library known to all.
using Team = void (*)(void (*)(void*), void*, unsigned, unsigned);
std::atomic<Team> team{nullptr};

void find_team() {
#if defined(__unix__) || defined(__APPLE__)
    team.store(reinterpret_cast<Team>(dlsym(RTLD_DEFAULT, "GOMP_parallel")));
    pthread_atfork(nullptr, nullptr, [] {
        team.store(nullptr);
        workers.store(nullptr, std::memory_order_release);
    });
#endif
}

struct Round {
    void (*task)(void*, std::size_t);
    void* context;
    std::size_t tasks;
    std::atomic<std::size_t> places, next{0};
};

void take_part(void* given) {
    auto& round = *static_cast<Round*>(given);
    std::size_t left = round.places.load(std::memory_order_relaxed);
    while (left > 0 && !round.places.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
    }
    if (left == 0) return;
    for (std::size_t i; (i = round.next.fetch_add(1, std::memory_order_relaxed)) < round.tasks;)
        round.task(round.context, i);
}

}  // namespace

void run_tasks(std::size_t threads, std::size_t tasks, void (*task)(void*, std::size_t), void* context) {
    if (threads <= 1 || tasks <= 1) {
        for (std::size_t i = 0; i < tasks; ++i) task(context, i);
        return;
    }
    static std::once_flag once;
    std::call_once(once, find_team);
    const Team run = team.load(std::memory_order_acquire);
    if (run == nullptr) return the_workers().run(threads, tasks, task, context);
    Round round{task, context, tasks, threads};
    run(&take_part, &round, 0, 0);  // all threads, as PyTorch has it: for a team of another size some would be made anew
}

}  // namespace tamis
