// What products by Kronecker-sparse matrices and their gradients share: how numbers fall into vectors, slabs of them copied
// into the cache, and work for threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "kronecker.h"
#include "workers.h"

namespace tamis {

constexpr std::size_t least_for_threads = 1 << 18;  // multiplications below which a second thread does not pay
constexpr std::size_t deepest = 256;                // terms of a sum: beyond, sums of so many are added up, and err less
constexpr std::size_t page = 1024;                  // numbers in 4 KiB: rows so far apart crowd the same lines of a cache

inline std::size_t pieces_of(std::size_t number, std::size_t size) { return (number + size - 1) / size; }

// Memory that a thread keeps from call to call.
class FloatScratch {
public:
    float* take(std::size_t count) {
        if (count > size_) {
            memory_.reset();
            size_ = 0;
            memory_.reset(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t{64})));
            size_ = count;
        }
        return memory_.get();
    }

private:
    struct Free {
        void operator()(float* memory) const { ::operator delete(memory, std::align_val_t{64}); }
    };
    std::unique_ptr<float, Free> memory_;
    std::size_t size_ = 0;
};

// How the numbers (count, d), side by side, fall into vectors: for d below the number of lanes several of `count` share a
// vector, and otherwise every vector is a part of d, of which there are `parts`.
struct VectorSplit {
    VectorSplit(std::size_t count, std::size_t d, std::size_t lanes, std::size_t most)
        : d(d), lanes(lanes), parts(d < lanes ? 1 : pieces_of(d, lanes)) {
        const std::size_t each = d < lanes ? lanes / d : 1;
        vectors = pieces_of(count, each);
        gap = each * d;
        last = (count - (vectors - 1) * each) * d;
        panels = pieces_of(vectors, most);
    }

    std::size_t group(std::size_t part) const { return d < lanes ? d : std::min(lanes, d - part * lanes); }
    std::size_t width(std::size_t part) const { return d < lanes ? gap : group(part); }
    std::size_t last_width(std::size_t part) const { return d < lanes ? last : group(part); }
    // Vectors of a panel: [first(p), first(p + 1)).
    std::size_t first(std::size_t panel) const { return panel * vectors / panels; }
    std::size_t count(std::size_t panel) const { return first(panel + 1) - first(panel); }

    std::size_t d, lanes, parts, vectors = 0, gap = 0, last = 0, panels = 0;
};

template <std::size_t width>
inline void copy_pieces(const float* from, std::size_t from_step, std::size_t pieces, float* to, std::size_t to_step) {
    for (std::size_t p = 0; p < pieces; ++p) std::memcpy(to + p * to_step, from + p * from_step, width * sizeof(float));
}

// (rows, pieces, width) from one place to another, a width side by side.
inline void copy_slab(const float* from, std::size_t from_row, std::size_t from_piece, std::size_t rows, std::size_t pieces,
                      std::size_t width, float* to, std::size_t to_row, std::size_t to_piece) {
    for (std::size_t r = 0; r < rows; ++r, from += from_row, to += to_row)
        switch (width) {  // short ones without a call
            case 1: copy_pieces<1>(from, from_piece, pieces, to, to_piece); break;
            case 2: copy_pieces<2>(from, from_piece, pieces, to, to_piece); break;
            case 4: copy_pieces<4>(from, from_piece, pieces, to, to_piece); break;
            case 8: copy_pieces<8>(from, from_piece, pieces, to, to_piece); break;
            case 16: copy_pieces<16>(from, from_piece, pieces, to, to_piece); break;
            default:
                for (std::size_t p = 0; p < pieces; ++p)
                    std::memcpy(to + p * to_piece, from + p * from_piece, width * sizeof(float));
        }
}

// body(i) for every i below `tasks`; what runs out of memory is said after all of them.
template <typename Body>
void in_parallel(std::size_t threads, std::size_t tasks, const Body& body) {
    std::atomic<bool> failed{false};
    struct Context {
        const Body& run;
        std::atomic<bool>& failed;
    } context{body, failed};
    run_tasks(threads, tasks,
              [](void* given, std::size_t i) {
                  auto& here = *static_cast<Context*>(given);
                  try {
                      here.run(i);
                  } catch (...) {
                      here.failed.store(true);
                  }
              },
              &context);
    if (failed.load()) throw std::bad_alloc();
}

}  // namespace tamis
