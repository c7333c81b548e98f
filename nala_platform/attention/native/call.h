// One call as Python describes it, and how rows of its tensors become numbers of the type of sums and back.
#pragma once

#include "lanes.h"

enum Dtype : int64_t { FLOAT32 = 0, FLOAT64 = 1, BFLOAT16 = 2, FLOAT16 = 3 };

// (B, H, N, X) of any strides but the last, which is 1; strides are in numbers.
struct Tensor {
    char* data;
    int64_t batch, head, token, dtype;
};

// `library.Call` is the same in Python. Null pointers: no rope, no mask. R is float or double, see `library`.
struct Call {
    int64_t batch, heads, queries, keys, size, values, is_causal, span, threads;
    Tensor query, key, value, out, query_grad, key_grad, value_grad;  // backward, out is the gradient of the output
    const void *cos, *sin;  // R (N, D)
    const uint8_t* mask;    // (B, M), 1 = ignored
    const void* counts;     // R (B), or (B, N) if causal: how many keys a query sees, at least 1
    const void *low, *high; // R (H)
    double gate_slope, key_power, eps;
    void* states;           // R: means over the keys (B, H, X), or if causal the sums before each span but the first
    int64_t state_numbers;  // so many
    void* bound_grads;      // R (2, H)
    // Sums over earlier keys and, after the call, over all: R (B, H, 2D, E) and (B, H, 2D), causal and forward alone.
    // Null: there are no earlier ones, and nobody asks.
    const void *start_sums, *start_keys;
    void *end_sums, *end_keys;
};

struct Bf16 {
    uint16_t bits;
};
struct Fp16 {
    uint16_t bits;
};

template <class To, class From> inline To bits_as(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof(y));
    return y;
}

inline float number(float x) { return x; }
inline double number(double x) { return x; }
inline float number(Bf16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }
inline float number(Fp16 x) {
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = uint32_t(x.bits & 0x7fff) << 13;
    // no product with a power of two, which a flushed denormal would make 0
    const float small = bits_as<float>(rest + 0x38800000u) - 6.103515625e-05f;
    const uint32_t usual = rest + 0x38000000u, special = rest | 0x7f800000u;
    const uint32_t value = rest < 0x00800000u ? bits_as<uint32_t>(small) : rest >= 0x0f800000u ? special : usual;
    return bits_as<float>(value | sign);
}

// To the nearest, ties to even, as PyTorch does.
inline void put(float& to, float x) { to = x; }
inline void put(double& to, double x) { to = x; }
inline void put(Bf16& to, float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    const uint32_t near = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = uint16_t(x != x ? 0x7fc0 : near);
}
inline void put(Fp16& to, float x) {
    const uint32_t bits = bits_as<uint32_t>(x), rest = bits & 0x7fffffffu;
    const uint32_t small = bits_as<uint32_t>(bits_as<float>(rest) + 0.5f) - 0x3f000000u;
    const uint32_t usual = (rest + 0xfff + ((rest >> 13) & 1) - 0x38000000u) >> 13;
    const uint32_t value = x != x ? 0x7e00 : rest >= 0x47800000u ? 0x7c00 : rest < 0x38800000u ? small : usual;
    to.bits = uint16_t(value | ((bits >> 16) & 0x8000));
}

// `precision.bounded`: finite numbers saturate at the largest of S, inf and NaN stay.
template <class S> inline R bounded(R x) {
    if constexpr (sizeof(S) == sizeof(R)) {
        return x;
    } else {
        const R top = std::is_same_v<S, Fp16> ? R(65504) : R(3.3895313892515355e38), size = std::fabs(x);
        return size > top && size <= std::numeric_limits<R>::max() ? std::copysign(top, x) : x;
    }
}

// f(S*) with the place of a row in the tensor's own type.
template <class Fn> inline void as_stored(const Tensor& x, int64_t b, int64_t h, int64_t n, Fn f) {
    const int64_t place = b * x.batch + h * x.head + n * x.token;
    if constexpr (!IS_FLOAT) {
        f(reinterpret_cast<R*>(x.data) + place);
    } else {
        if (x.dtype == BFLOAT16) f(reinterpret_cast<Bf16*>(x.data) + place);
        else if (x.dtype == FLOAT16) f(reinterpret_cast<Fp16*>(x.data) + place);
        else f(reinterpret_cast<float*>(x.data) + place);
    }
}

// Rows n ... n + rows of one head to `to`, each padded with zeros to `width`; rows that `mask` hides are all zeros.
inline void read(
    const Tensor& x, int64_t b, int64_t h, int64_t n, long rows, long size, R* to, long width, const uint8_t* mask) {
    as_stored(x, b, h, n, [&](auto* from) {
        for (long i = 0; i < rows; i++, from += x.token, to += width) {
            const long shown = mask != nullptr && mask[i] ? 0 : size;
            for (long d = 0; d < shown; d++) to[d] = number(from[d]);
            for (long d = shown; d < width; d++) to[d] = 0;
        }
    });
}

inline void write(
    const Tensor& x, int64_t b, int64_t h, int64_t n, long rows, long size, const R* from, long width, bool saturates) {
    as_stored(x, b, h, n, [&](auto* to) {
        using S = std::remove_reference_t<decltype(*to)>;
        for (long i = 0; i < rows; i++, to += x.token, from += width)
            for (long d = 0; d < size; d++) put(to[d], saturates ? bounded<S>(from[d]) : from[d]);
    });
}
