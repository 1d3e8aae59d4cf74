// Numbers that the next block will need, fetched while this one is computed, for files of kernels that include this one.
// All of it is local to the file: each is compiled for another processor.

#pragma once

#include <xmmintrin.h>

#include "binary.h"

namespace tamis {
namespace {

// Fetches into the second-level cache, a few lines with each tile, so that they are there in time and never stand in the
// way of each other.
struct Fetch {
    const char *line, *end;
    std::size_t channels, step, length, share;
};

// `calls`: how often `fetch_share` will be called.
Fetch fetch_of(const Ahead& ahead, std::size_t calls) {
    const std::size_t lines = ahead.channels * (ahead.length / 64 + 2);
    return {ahead.start, ahead.start + ahead.length, ahead.length > 0 ? ahead.channels : 0, ahead.step, ahead.length,
            (lines + calls - 1) / calls};
}

__attribute__((noinline)) void fetch_share(Fetch& fetch) {
    for (std::size_t i = 0; i < fetch.share && fetch.channels > 0; ++i) {
        _mm_prefetch(fetch.line, _MM_HINT_T1);
        fetch.line += 64;
        if (fetch.line < fetch.end + 63) continue;
        if (--fetch.channels == 0) return;
        fetch.end += fetch.step;
        fetch.line = fetch.end - fetch.length;
    }
}

}  // namespace
}  // namespace tamis
