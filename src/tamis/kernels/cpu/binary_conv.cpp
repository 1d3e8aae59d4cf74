// Sign, patches, product, borders and scale, a block of pixels at a time: the bits of an image are packed as far as the next
// block needs them, its patches stay in the first-level cache, and each number is written once.

#include "binary_conv.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "workers.h"

namespace tamis {
namespace {

constexpr std::size_t patch_bytes = 24 << 10;      // of a block: three quarters of a first-level cache
constexpr std::size_t least_for_thread = 4 << 20;  // products below which another thread does not pay: a few microseconds
constexpr std::size_t least_past_cache = 4 << 20;  // bytes of a result that no one will find in the cache

std::size_t up_to(std::size_t number, std::size_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Memory that a thread keeps from call to call.
class Scratch {
public:
    template <typename Entry>
    Entry* take(std::size_t count) {
        const std::size_t bytes = up_to(std::max<std::size_t>(count, 1) * sizeof(Entry), 64) + 64;
        if (bytes > size_) {
            memory_.reset();
            size_ = 0;
            memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
            size_ = bytes;
        }
        return reinterpret_cast<Entry*>(memory_.get());
    }

private:
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
    };
    std::unique_ptr<std::byte, Free> memory_;
    std::size_t size_ = 0;
};

thread_local Scratch of_planes, of_patches, of_counts, of_marks, of_words, of_ones, of_call;

// Sizes come from outside: a product that wraps around would make a check of lengths pass that must not.
std::size_t product_of(std::size_t a, std::size_t b) {
    constexpr std::size_t most = std::size_t{1} << 46;
    if (a != 0 && b > most / a) throw std::invalid_argument("binary_conv2d got sizes whose product is too large");
    return a * b;
}

// Taps of a kernel that lie inside the image, for one row or column of the output.
template <typename Range>
Range inside(std::size_t position, std::size_t length, std::size_t kernel, std::size_t stride, std::size_t padding,
             std::size_t dilation) {
    const std::size_t start = position * stride;
    std::size_t first = 0;
    while (first < kernel && start + first * dilation < padding) ++first;
    std::size_t last = first;
    while (last < kernel && start + last * dilation - padding < length) ++last;
    return {first, last};
}

// The class of every row or column: those with the same taps inside have the same.
template <typename Range>
std::vector<std::uint32_t> classes_of(std::size_t count, std::vector<Range>& ranges, std::size_t length,
                                      std::size_t kernel, std::size_t stride, std::size_t padding, std::size_t dilation) {
    std::vector<std::uint32_t> classes(count);
    for (std::size_t i = 0; i < count; ++i) {
        const auto range = inside<Range>(i, length, kernel, stride, padding, dilation);
        std::size_t found = ranges.size();
        while (found > 0 && (ranges[found - 1].first != range.first || ranges[found - 1].last != range.last)) --found;
        if (found == 0) {
            ranges.push_back(range);
            found = ranges.size();
        }
        classes[i] = static_cast<std::uint32_t>(found - 1);
    }
    return classes;
}

std::size_t length_of(std::size_t length, std::size_t kernel, std::size_t stride, std::size_t padding,
                      std::size_t dilation) {
    const std::size_t reach = product_of(dilation, kernel - 1) + 1, room = length + 2 * padding;
    if (room < reach) throw std::invalid_argument("binary_conv2d got an image smaller than its kernel");
    return (room - reach) / stride + 1;
}

template <typename Entry>
void check_length(const Part<Entry>& part, std::size_t length, const char* name) {
    if (part.length != length || (length > 0 && part.entries == nullptr))
        throw std::invalid_argument(std::string("binary_conv2d got ") + name + " of the wrong length");
}

std::uint64_t flips_of(const std::uint8_t* flips, std::size_t channels) {
    std::uint64_t word = 0;
    for (std::size_t c = 0; c < channels; ++c) word |= static_cast<std::uint64_t>(flips[c] != 0) << c;
    return word;
}

}  // namespace

// What the tasks of one call share.
struct BinaryPlan::Frame {
    const BinaryCall& call;
    const BinaryKernel& kernel;
    const std::uint64_t* flips;  // words of all groups
    const float *borders, *beta, *gamma;
    bool by_channels, past_cache;
};

BinaryPlan::BinaryPlan(const BinaryShape& shape) : shape_(shape) {
    const std::size_t sizes[] = {shape.outputs,       shape.channels,     shape.height,     shape.width,
                                 shape.kernel_height, shape.kernel_width, shape.stride_y,   shape.stride_x,
                                 shape.dilation_y,    shape.dilation_x,   shape.groups,     shape.padding_y + 1,
                                 shape.padding_x + 1};
    for (const std::size_t size : sizes)
        if (size < 1 || size > std::size_t{1} << 31) throw std::invalid_argument("binary_conv2d got a size out of range");
    if (shape.outputs % shape.groups != 0 || shape.channels % shape.groups != 0)
        throw std::invalid_argument("binary_conv2d got channels that its groups do not divide");
    each_ = shape.channels / shape.groups;
    of_group_ = shape.outputs / shape.groups;
    words_ = (each_ + 63) / 64;
    taps_ = product_of(shape.kernel_height, shape.kernel_width);
    // Borders, valid + 2 · outside, are at most twice this, and so are 2 · counts: below 2^24 every integer is a float32.
    if (product_of(each_, taps_) >= std::size_t{1} << 22)
        throw std::invalid_argument("binary_conv2d sums fewer than 2^22 products");
    rows_ = up_to(words_ * taps_, 3);
    octs_ = (of_group_ + 7) / 8;
    taps_in_word_ = each_ < std::size_t{1} << 16 ? 4 : 1;
    oct_words_ = (rows_ + (taps_ + taps_in_word_ - 1) / taps_in_word_) * 8;
    product_of(product_of(shape.groups, octs_), oct_words_);
    out_height_ = length_of(shape.height, shape.kernel_height, shape.stride_y, shape.padding_y, shape.dilation_y);
    out_width_ = length_of(shape.width, shape.kernel_width, shape.stride_x, shape.padding_x, shape.dilation_x);
    plane_ = product_of(out_height_, out_width_);
    in_plane_ = product_of(shape.height, shape.width);
    product_of(in_plane_, shape.channels);
    product_of(plane_, up_to(shape.outputs, 64));
    image_words_ = product_of(in_plane_, product_of(shape.groups, words_));
    std::vector<Range> row_ranges, column_ranges;
    const auto rows = classes_of(out_height_, row_ranges, shape.height, shape.kernel_height, shape.stride_y,
                                 shape.padding_y, shape.dilation_y);
    const auto columns = classes_of(out_width_, column_ranges, shape.width, shape.kernel_width, shape.stride_x,
                                    shape.padding_x, shape.dilation_x);
    for (const Range& r : row_ranges)
        for (const Range& c : column_ranges) {
            BorderClass border{each_ * (r.last - r.first) * (c.last - c.first), {}};
            for (std::size_t tap = 0; tap < taps_; ++tap) {
                const std::size_t y = tap / shape.kernel_width, x = tap % shape.kernel_width;
                if (y < r.first || y >= r.last || x < c.first || x >= c.last) border.outside.push_back(tap);
            }
            border_classes_.push_back(std::move(border));
        }
    // Sixteen classes fit a register, from which kernels take those of their pixels by a permutation.
    border_stride_ = plane_ == 1 ? 1 : up_to(border_classes_.size(), 16);
    product_of(border_stride_, shape.outputs);
    classes_.assign(plane_ + 16, 0);  // kernels load sixteen at a time, past the last pixel, too
    for (std::size_t y = 0; y < out_height_; ++y)
        for (std::size_t x = 0; x < out_width_; ++x)
            classes_[y * out_width_ + x] = rows[y] * static_cast<std::uint32_t>(column_ranges.size()) + columns[x];
}

void BinaryPlan::check(const BinaryCall& call) const {
    const std::size_t batch = call.batch;
    product_of(batch, product_of(std::max(plane_, in_plane_), up_to(std::max(shape_.outputs, shape_.channels), 64)));
    if (call.bits.entries != nullptr) {
        check_length(call.bits, batch * image_words_, "packed bits");
    } else {
        check_length(call.x, batch * shape_.channels * in_plane_, "inputs");
        check_length(call.thresholds, shape_.channels, "thresholds");
        check_length(call.flips, shape_.channels, "flips");
    }
    check_length(call.weights, shape_.groups * octs_ * oct_words_, "weights");
    if (call.full.entries != nullptr) {
        check_length(call.full, shape_.outputs * plane_, "scales");
    } else {
        check_length(call.alpha, shape_.outputs, "scales");
        if (call.gamma.entries != nullptr) {
            check_length(call.beta, out_height_, "scales");
            check_length(call.gamma, out_width_, "scales");
        } else if (call.beta.entries != nullptr) {
            check_length(call.beta, plane_, "scales");
        }
    }
    if (call.out_bits.entries != nullptr) {
        if (call.out_groups < 1 || shape_.outputs % call.out_groups != 0)
            throw std::invalid_argument("binary_conv2d got output channels that the next groups do not divide");
        const std::size_t words = (shape_.outputs / call.out_groups + 63) / 64 * call.out_groups;
        check_length(call.out_bits, product_of(batch, product_of(words, plane_)), "packed results");
        check_length(call.out_thresholds, shape_.outputs, "thresholds of the result");
        check_length(call.out_flips, shape_.outputs, "flips of the result");
        for (const auto* follows : {&call.bias, &call.slope, &call.shift, &call.added})
            check_length(*follows, 0, "what follows on bits");
        return;
    }
    check_length(call.out, batch * shape_.outputs * plane_, "results");
    if (call.bias.length > 0) check_length(call.bias, shape_.outputs, "a bias");
    if (call.added.length > 0) check_length(call.added, call.out.length, "numbers to add");
    check_length(call.slope, call.shift.length, "slopes");
    if (call.slope.length > 0) {
        check_length(call.slope, shape_.outputs, "slopes");
        check_length(call.shift, shape_.outputs, "shifts");
    }
}

// How many weights are 1, (taps, 8) for the eight channels of an oct, from their words.
void BinaryPlan::unpack_ones(const std::uint64_t* words, std::uint32_t* ones) const {
    const std::uint64_t mask = taps_in_word_ == 4 ? 0xFFFF : ~std::uint64_t{0};
    for (std::size_t tap = 0; tap < taps_; ++tap) {
        const std::uint64_t* const row = words + tap / taps_in_word_ * 8;
        const std::size_t shift = tap % taps_in_word_ * 16;
        for (std::size_t i = 0; i < 8; ++i) ones[tap * 8 + i] = static_cast<std::uint32_t>(row[i] >> shift & mask);
    }
}

void BinaryPlan::fill_borders(const std::uint64_t* weights, float* borders) const {
    std::uint32_t* const ones = of_ones.take<std::uint32_t>(taps_ * 8);
    for (std::size_t group = 0; group < shape_.groups; ++group)
        for (std::size_t oct = 0; oct < octs_; ++oct) {
            unpack_ones(weights + (group * octs_ + oct) * oct_words_ + rows_ * 8, ones);
            const std::size_t channel = group * of_group_ + oct * 8, here = std::min<std::size_t>(8, of_group_ - oct * 8);
            for (std::size_t k = 0; k < border_classes_.size(); ++k) {
                std::uint32_t outside[8] = {};
                for (const std::size_t tap : border_classes_[k].outside)
                    for (std::size_t i = 0; i < 8; ++i) outside[i] += ones[tap * 8 + i];
                const auto valid = static_cast<std::uint32_t>(border_classes_[k].valid);
                for (std::size_t i = 0; i < here; ++i)
                    borders[(channel + i) * border_stride_ + k] =
                        static_cast<float>(static_cast<std::int32_t>(valid + 2 * outside[i]));
            }
        }
}

// `fill_patches` where the three rows that are mixed are those of a row of the kernel.
void BinaryPlan::fill_threes(const BinaryKernel& kernel, const std::uint64_t* planes, std::size_t first, std::size_t last,
                             std::uint64_t* patches, std::size_t stride) const {
    const BinaryShape& s = shape_;
    for (std::size_t pixel = first; pixel < last;) {
        const std::size_t y = pixel / out_width_, x = pixel % out_width_;
        const std::size_t count = std::min(out_width_ - x, last - pixel);
        const std::ptrdiff_t start = static_cast<std::ptrdiff_t>(x) - static_cast<std::ptrdiff_t>(s.padding_x);
        for (std::size_t ky = 0; ky < s.kernel_height; ++ky) {
            const std::size_t row = y * s.stride_y + ky * s.dilation_y;  // counted with the padding
            std::uint64_t* const to = patches + ky * 3 * stride + (pixel - first);
            if (row >= s.padding_y && row - s.padding_y < s.height)
                kernel.three(planes + (row - s.padding_y) * s.width, start, s.width, count, to, stride);
            else
                for (std::size_t k = 0; k < 3; ++k) std::fill_n(to + k * stride, count, 0);
        }
        pixel += count;
    }
}

// The words under the kernel for pixels [first, last) of one image, rows `stride` apart. `planes` are those of one group.
void BinaryPlan::fill_patches(const BinaryKernel& kernel, const std::uint64_t* planes, std::size_t first,
                              std::size_t last, std::uint64_t* patches, std::size_t stride) const {
    const BinaryShape& s = shape_;
    if (kernel.three != nullptr && words_ == 1 && s.kernel_width == 3 && s.stride_x == 1 && s.dilation_x == 1)
        return fill_threes(kernel, planes, first, last, patches, stride);
    std::size_t pixel = first;
    while (pixel < last) {
        const std::size_t y = pixel / out_width_, x = pixel % out_width_;
        const std::size_t count = std::min(out_width_ - x, last - pixel);
        std::uint64_t* const segment = patches + (pixel - first);
        for (std::size_t ky = 0; ky < s.kernel_height; ++ky) {
            const std::size_t row = y * s.stride_y + ky * s.dilation_y;  // counted with the padding
            const bool within = row >= s.padding_y && row - s.padding_y < s.height;
            for (std::size_t kx = 0; kx < s.kernel_width; ++kx) {
                std::uint64_t* to = segment + (ky * s.kernel_width + kx) * words_ * stride;
                // Entries [begin, end) of the segment lie inside the image.
                const std::size_t left = x * s.stride_x + kx * s.dilation_x;
                std::size_t begin = left >= s.padding_x ? 0 : (s.padding_x - left + s.stride_x - 1) / s.stride_x;
                const std::size_t room = s.width + s.padding_x;
                std::size_t end = left >= room ? 0 : (room - left + s.stride_x - 1) / s.stride_x;
                end = std::min(end, count);
                begin = std::min(begin, end);
                if (!within) begin = end = 0;
                const std::size_t offset =
                    begin < end ? (row - s.padding_y) * s.width + (left + begin * s.stride_x - s.padding_x) : 0;
                for (std::size_t w = 0; w < words_; ++w, to += stride) {
                    const std::uint64_t* const from = planes + w * in_plane_ + offset;
                    for (std::size_t i = 0; i < begin; ++i) to[i] = 0;
                    if (s.stride_x == 1) kernel.copy(from, to + begin, end - begin);
                    else
                        for (std::size_t i = begin; i < end; ++i) to[i] = from[(i - begin) * s.stride_x];
                    for (std::size_t i = end; i < count; ++i) to[i] = 0;
                }
            }
        }
        pixel += count;
    }
    // Weights have zeros in the rows that fill up three, so that nothing differs there. What kernels read of a third row is
    // the xor of all three: see binary.h.
    const std::size_t count = last - first;
    for (std::size_t row = words_ * taps_; row < rows_; ++row) std::fill_n(patches + row * stride, count, 0);
    for (std::size_t row = 0; row < rows_; row += 3) {
        const std::uint64_t *const a = patches + row * stride, *const b = a + stride;
        std::uint64_t* const c = patches + (row + 2) * stride;
        kernel.mix(a, b, c, count);
    }
}

// The rows of the input that the output pixels [first, last) see.
BinaryPlan::Range BinaryPlan::rows_under(std::size_t first, std::size_t last) const {
    const BinaryShape& s = shape_;
    const std::size_t top = first / out_width_ * s.stride_y;
    const std::size_t bottom = (last - 1) / out_width_ * s.stride_y + (s.kernel_height - 1) * s.dilation_y + 1;
    const auto without_padding = [&](std::size_t row) {
        return row > s.padding_y ? std::min(row - s.padding_y, s.height) : 0;
    };
    return {without_padding(top), without_padding(bottom)};
}

// Packs rows [first, last) of an image.
void BinaryPlan::pack_rows(const Frame& frame, const float* image, std::size_t first, std::size_t last,
                                  std::uint64_t* planes) const {
    if (first >= last) return;
    const std::size_t start = first * shape_.width, pixels = (last - first) * shape_.width;
    for (std::size_t group = 0; group < shape_.groups; ++group)
        for (std::size_t w = 0; w < words_; ++w) {
            const std::size_t channel = group * each_ + w * 64;
            frame.kernel.pack(image + channel * in_plane_ + start, in_plane_, std::min<std::size_t>(64, each_ - w * 64),
                              pixels, frame.call.thresholds.entries + channel, frame.flips[group * words_ + w],
                              planes + (group * words_ + w) * in_plane_ + start);
        }
}

BinaryBlock BinaryPlan::block_of(const Frame& frame, std::size_t group, std::size_t image, std::size_t pixel) const {
    const BinaryCall& call = frame.call;
    const std::size_t channel = group * of_group_;
    BinaryBlock block{};
    block.rows = rows_;
    block.weights = call.weights.entries + group * octs_ * oct_words_;
    block.oct_words = oct_words_;
    block.first = 0;
    block.last = of_group_;
    block.borders = frame.borders + channel * border_stride_;
    block.border_stride = border_stride_;
    block.classes = classes_.data() + pixel;
    block.few_classes = border_stride_ == 16;
    block.plane = plane_;
    if (call.full.entries != nullptr) block.full = call.full.entries + channel * plane_ + pixel;
    else block.alpha = call.alpha.entries + channel;
    block.beta = frame.beta == nullptr ? nullptr : frame.beta + pixel;
    block.gamma = frame.gamma == nullptr ? nullptr : frame.gamma + pixel;
    block.image = shape_.outputs;
    block.past_cache = frame.past_cache;
    if (call.out_bits.entries == nullptr) {
        const std::size_t place = (image * shape_.outputs + channel) * plane_ + pixel;
        const auto from = [](const Part<const float>& part, std::size_t start) {
            return part.entries == nullptr ? nullptr : part.entries + start;
        };
        block.out = call.out.entries + place;
        block.after = {from(call.bias, channel), from(call.slope, channel), from(call.shift, channel),
                       call.one_rounding,        from(call.added, place),   call.relu};
        block.followed = call.relu || call.bias.entries != nullptr || call.slope.entries != nullptr ||
                         call.added.entries != nullptr;
        return block;
    }
    block.thresholds = call.out_thresholds.entries + channel;
    return block;
}

// Packs what the channels [first, last) of a block of pixels are marked with, or images where an image is one pixel.
void BinaryPlan::join_marks(const Frame& frame, const std::uint16_t* marks, std::size_t stride, std::size_t image,
                            std::size_t pixel, std::size_t pixels, std::size_t first, std::size_t last) const {
    const BinaryCall& call = frame.call;
    const std::size_t each = shape_.outputs / call.out_groups, words = (each + 63) / 64;
    std::uint64_t* const bits = call.out_bits.entries + image * call.out_groups * words * plane_ + pixel;
    std::uint64_t* const own = plane_ == 1 ? of_words.take<std::uint64_t>(pixels) : nullptr;
    for (std::size_t channel = first; channel < last;) {
        const std::size_t group = channel / each, within = channel % each;
        const std::size_t count = std::min<std::size_t>(64, each - within);
        const std::size_t word = group * words + within / 64;
        const std::uint64_t flips = flips_of(call.out_flips.entries + channel, count);
        frame.kernel.join(marks + channel * stride, stride, count, pixels, flips,
                          plane_ == 1 ? own : bits + word * plane_);
        if (plane_ == 1)
            for (std::size_t i = 0; i < pixels; ++i) bits[i * call.out_groups * words + word] = own[i];
        channel += count;
    }
}

// Pixels [first, last) of images [image, end), block by block.
void BinaryPlan::run_pixels(const Frame& frame, std::size_t image, std::size_t last_image, std::size_t first,
                            std::size_t last) const {
    const BinaryCall& call = frame.call;
    const std::size_t length = std::clamp<std::size_t>(patch_bytes / 8 / rows_ / 32 * 32, 32, up_to(last - first, 8));
    const std::size_t stride = (up_to(length, 8) / 8 | 1) * 8;  // an odd number of lines: rows spread over the cache
    std::uint64_t* const patches = of_patches.take<std::uint64_t>(rows_ * stride);
    std::int32_t* const counts = frame.by_channels ? of_counts.take<std::int32_t>(up_to(length, 16) * 32) : nullptr;
    const std::size_t marks_stride = up_to(length, 16) / 16;
    std::uint16_t* const marks =
        call.out_bits.entries != nullptr ? of_marks.take<std::uint16_t>(shape_.outputs * marks_stride) : nullptr;
    const bool from_numbers = call.bits.entries == nullptr;
    std::uint64_t* const own = from_numbers ? of_planes.take<std::uint64_t>(image_words_) : nullptr;
    const auto numbers_of = [&](std::size_t i) { return call.x.entries + i * shape_.channels * in_plane_; };
    for (; image < last_image; ++image) {
        const std::uint64_t* const planes = from_numbers ? own : call.bits.entries + image * image_words_;
        std::size_t packed = 0;  // rows
        for (std::size_t pixel = first; pixel < last; pixel += length) {
            const std::size_t end = std::min(pixel + length, last);
            // The kernel fetches from memory what the next block reads while it counts the bits of this one.
            const float* next = nullptr;  // the rows that the block after this one needs, here or in the next image
            Range next_rows{0, 0};
            if (from_numbers) {
                const Range rows = rows_under(pixel, end);
                pack_rows(frame, numbers_of(image), std::max(packed, rows.first), rows.last, own);
                packed = std::max(packed, rows.last);
                if (end < last) {
                    next = numbers_of(image);
                    next_rows = {packed, rows_under(end, std::min(end + length, last)).last};
                } else if (image + 1 < last_image) {
                    next = numbers_of(image + 1);
                    next_rows = rows_under(first, std::min(first + length, last));
                }
            }
            // Bits of the result are collected by channel and joined to words once all groups are done: a word may hold
            // channels of two of them.
            if (marks != nullptr) std::fill_n(marks, shape_.outputs * marks_stride, 0);
            for (std::size_t group = 0; group < shape_.groups; ++group) {
                fill_patches(frame.kernel, planes + group * words_ * in_plane_, pixel, end, patches, stride);
                BinaryBlock block = block_of(frame, group, image, pixel);
                block.patches = patches;
                block.stride = stride;
                block.pixels = end - pixel;
                block.counts = counts;
                if (marks != nullptr) block.marks = marks + group * of_group_ * marks_stride;
                block.marks_stride = marks_stride;
                if (next_rows.first < next_rows.last) {
                    const float* const start = next + group * each_ * in_plane_ + next_rows.first * shape_.width;
                    block.ahead = {reinterpret_cast<const char*>(start), each_, in_plane_ * sizeof(float),
                                   (next_rows.last - next_rows.first) * shape_.width * sizeof(float)};
                }
                (frame.by_channels ? frame.kernel.by_channels : frame.kernel.by_pixels)(block);
            }
            if (marks != nullptr) join_marks(frame, marks, marks_stride, image, pixel, end - pixel, 0, shape_.outputs);
        }
    }
}

// Images [first, last) of one output pixel each, and the output channels of each group from first to last.
void BinaryPlan::run_images(const Frame& frame, std::size_t first, std::size_t last, std::size_t first_channel,
                            std::size_t last_channel) const {
    const BinaryCall& call = frame.call;
    const std::size_t length = std::clamp<std::size_t>(patch_bytes / 8 / rows_ / 8 * 8, 8, up_to(last - first, 8));
    const std::size_t stride = (length / 8 | 1) * 8;
    std::uint64_t* const patches = of_patches.take<std::uint64_t>(rows_ * stride);
    std::int32_t* const counts = of_counts.take<std::int32_t>(up_to(length, 16) * 32);
    const std::size_t marks_stride = up_to(length, 16) / 16;
    std::uint16_t* const marks =
        call.out_bits.entries != nullptr ? of_marks.take<std::uint16_t>(shape_.outputs * marks_stride) : nullptr;
    const bool from_numbers = call.bits.entries == nullptr;
    std::uint64_t* const own = from_numbers ? of_planes.take<std::uint64_t>(length * image_words_) : nullptr;
    for (std::size_t image = first; image < last; image += length) {
        const std::size_t end = std::min(image + length, last);
        if (from_numbers)
            for (std::size_t i = image; i < end; ++i)
                pack_rows(frame, call.x.entries + i * shape_.channels * in_plane_, 0, shape_.height,
                          own + (i - image) * image_words_);
        const std::uint64_t* const planes = from_numbers ? own : call.bits.entries + image * image_words_;
        if (marks != nullptr) std::fill_n(marks, shape_.outputs * marks_stride, 0);
        for (std::size_t group = 0; group < shape_.groups; ++group) {
            for (std::size_t i = image; i < end; ++i)
                fill_patches(frame.kernel, planes + (i - image) * image_words_ + group * words_ * in_plane_, 0, 1,
                             patches + (i - image), stride);
            BinaryBlock block = block_of(frame, group, image, 0);
            block.patches = patches;
            block.stride = stride;
            block.pixels = end - image;
            block.counts = counts;
            block.first = first_channel;
            block.last = last_channel;
            if (marks != nullptr) block.marks = marks + group * of_group_ * marks_stride;
            block.marks_stride = marks_stride;
            frame.kernel.by_channels(block);
        }
        if (marks == nullptr) continue;
        const bool all = shape_.groups > 1;
        join_marks(frame, marks, marks_stride, image, 0, end - image, all ? 0 : first_channel,
                   all ? shape_.outputs : last_channel);
    }
}

void BinaryPlan::run(const BinaryCall& call, const BinaryKernel& kernel, std::size_t threads) const {
    check(call);
    if (call.batch == 0) return;
    // One piece of memory that the thread keeps, for all that the tasks share: allocating it takes as long as a small layer.
    const std::size_t border_count = shape_.outputs * border_stride_, flip_words = shape_.groups * words_;
    const bool rank_one = call.gamma.entries != nullptr;
    const std::size_t factors = rank_one ? 2 * plane_ : 0;
    std::byte* const memory = of_call.take<std::byte>(flip_words * 8 + (border_count + factors) * 4 + 192);
    auto* const flips = reinterpret_cast<std::uint64_t*>(memory);
    auto* const borders = reinterpret_cast<float*>(memory + up_to(flip_words * 8, 64));
    if (call.bits.entries == nullptr)
        for (std::size_t group = 0; group < shape_.groups; ++group)
            for (std::size_t w = 0; w < words_; ++w)
                flips[group * words_ + w] = flips_of(call.flips.entries + group * each_ + w * 64,
                                                     std::min<std::size_t>(64, each_ - w * 64));
    fill_borders(call.weights.entries, borders);
    const float *beta = call.beta.entries, *gamma = nullptr;
    if (rank_one) {  // written out for every pixel, so that kernels load factors side by side
        float* const by_row = borders + up_to(border_count, 16);
        float* const by_column = by_row + plane_;
        for (std::size_t y = 0; y < out_height_; ++y) {
            std::fill_n(by_row + y * out_width_, out_width_, call.beta.entries[y]);
            std::copy_n(call.gamma.entries, out_width_, by_column + y * out_width_);
        }
        beta = by_row;
        gamma = by_column;
    }
    const double pixels_wasted = static_cast<double>(up_to(plane_, 8)) / static_cast<double>(plane_);
    const double channels_wasted = static_cast<double>(octs_ * 8) / static_cast<double>(of_group_);
    const bool past_cache = call.out.length * sizeof(float) >= least_past_cache;
    // What is side by side in registers must fill them; channels have to be transposed afterwards, which costs a little.
    const Frame frame{call, kernel, flips, borders, beta, gamma, pixels_wasted > 1.04 * channels_wasted, past_cache};

    const std::size_t products = call.batch * plane_ * shape_.outputs * (rows_ * 64);
    threads = std::max<std::size_t>(1, std::min(threads, products / least_for_thread + 1));
    std::atomic<bool> failed{false};
    const auto run_all = [&](std::size_t tasks, auto body) {
        struct Context {
            decltype(body)& run;
            std::atomic<bool>& failed;
        } context{body, failed};
        run_tasks(threads, tasks,
                  [](void* given, std::size_t i) {
                      auto& here = *static_cast<Context*>(given);
                      try {
                          here.run(i);
                      } catch (...) {  // only for want of memory
                          here.failed.store(true);
                      }
                  },
                  &context);
        if (failed.load()) throw std::bad_alloc();
    };
    if (plane_ == 1) {
        const bool bits = call.out_bits.entries != nullptr;
        // Few images are shared out by channels, in whole words of the result, which each thread writes alone.
        const std::size_t words = (of_group_ + 63) / 64;
        if (call.batch < 2 * threads && shape_.groups == 1 && (!bits || call.out_groups == 1)) {
            const std::size_t parts = std::min(threads, words);
            return run_all(parts, [&](std::size_t i) {
                run_images(frame, 0, call.batch, words * i / parts * 64,
                           std::min(of_group_, words * (i + 1) / parts * 64));
            });
        }
        const std::size_t parts = std::min(threads, call.batch);
        return run_all(parts, [&](std::size_t i) {
            run_images(frame, call.batch * i / parts, call.batch * (i + 1) / parts, 0, of_group_);
        });
    }
    if (call.batch % threads == 0 || call.batch >= 8 * threads) {  // whole images, a few at a time
        const std::size_t parts = std::min(call.batch, threads == 1 ? 1 : 4 * threads);
        return run_all(parts, [&](std::size_t i) {
            run_pixels(frame, call.batch * i / parts, call.batch * (i + 1) / parts, 0, plane_);
        });
    }
    // Fewer images than threads, or not shared out evenly: each image is divided, in whole registers of pixels.
    const std::size_t step = frame.by_channels ? 1 : 16, lines = up_to(plane_, step) / step;
    const std::size_t parts = std::min(threads, lines);
    run_all(call.batch * parts, [&](std::size_t i) {
        const std::size_t image = i / parts, part = i % parts;
        run_pixels(frame, image, image + 1, lines * part / parts * step,
                   std::min(plane_, lines * (part + 1) / parts * step));
    });
}

void binary_pack(const Part<const float>& x, std::size_t batch, std::size_t channels, std::size_t plane,
                 std::size_t groups, const Part<const float>& thresholds, const Part<const std::uint8_t>& flips,
                 const Part<std::uint64_t>& bits, const BinaryKernel& kernel, std::size_t threads) {
    if (groups < 1 || channels < 1 || channels % groups != 0)
        throw std::invalid_argument("binary_pack got channels that its groups do not divide");
    const std::size_t each = channels / groups, words = (each + 63) / 64;
    check_length(x, product_of(batch, product_of(channels, plane)), "inputs");
    check_length(thresholds, channels, "thresholds");
    check_length(flips, channels, "flips");
    check_length(bits, product_of(batch, product_of(product_of(groups, words), plane)), "packed results");
    struct Context {
        const float *x, *thresholds;
        const std::uint8_t* flips;
        std::uint64_t* bits;
        std::size_t each, words, plane, groups;
        const BinaryKernel& kernel;
    } context{x.entries, thresholds.entries, flips.entries, bits.entries, each, words, plane, groups, kernel};
    if (batch == 0 || plane == 0) return;
    run_tasks(x.length < (1 << 16) ? 1 : threads, batch * groups * words,
              [](void* given, std::size_t i) {
                  const auto& here = *static_cast<const Context*>(given);
                  const std::size_t word = i % here.words, group = i / here.words % here.groups;
                  const std::size_t image = i / here.words / here.groups, channel = group * here.each + word * 64;
                  const std::size_t count = std::min<std::size_t>(64, here.each - word * 64);
                  here.kernel.pack(here.x + (image * here.each * here.groups + channel) * here.plane, here.plane, count,
                                   here.plane, here.thresholds + channel, flips_of(here.flips + channel, count),
                                   here.bits + i * here.plane);
              },
              &context);
}

std::vector<const BinaryKernel*> binary_kernels() {
    std::vector<const BinaryKernel*> kernels;
    const auto add = [&](const BinaryKernel* kernel, bool runs) {
        if (kernel != nullptr && runs) kernels.push_back(kernel);
    };
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    add(binary_avx512(), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni"));
    add(binary_avx2(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    add(binary_popcnt(), __builtin_cpu_supports("popcnt"));
#endif
    add(binary_neon(), true);
    add(binary_plain(), true);
    return kernels;
}

}  // namespace tamis
