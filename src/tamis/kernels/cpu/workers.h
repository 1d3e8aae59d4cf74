// Threads that stay, for work that takes microseconds.

#pragma once

#include <cstddef>

namespace tamis {

// Runs task(context, i) for every i below `tasks`, on up to `threads` threads, the calling one among them, and returns
// when all are done. Tasks must not throw, nor call this. Which thread runs which task is left open; where other calls use
// the threads, the calling one does all of them.
void run_tasks(std::size_t threads, std::size_t tasks, void (*task)(void*, std::size_t), void* context);

}  // namespace tamis
