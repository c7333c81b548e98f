// Vectors of the machine's width, with the logarithm and the exponential that the feature maps are made of.
//
// A vector is GCC's and Clang's `vector_size`, so one source serves SSE, AVX2, AVX-512 and NEON; the compiler is told
// `-march=native`. The buffers of the kernels are aligned to vectors, their rows padded with zeros to whole ones.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX512F__)
constexpr int BYTES = 64;
constexpr int REGISTERS = 32;
#elif defined(__AVX__)
constexpr int BYTES = 32;
constexpr int REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int BYTES = 16;
constexpr int REGISTERS = 32;
#else
constexpr int BYTES = 16;
constexpr int REGISTERS = 16;
#endif

// The type of sums and the feature map's direction: `library.py` builds one library for each pair.
#ifndef SUMS
#define SUMS float
#endif
#ifndef COSINE
#define COSINE 0
#endif
using R = SUMS;
constexpr bool IS_FLOAT = sizeof(R) == 4, IS_COSINE = COSINE;
using Bits = std::conditional_t<IS_FLOAT, int32_t, int64_t>;

typedef R Vec __attribute__((vector_size(BYTES)));
typedef Bits Int __attribute__((vector_size(BYTES)));

constexpr long W = BYTES / sizeof(R);                  // numbers of a vector
constexpr int MANTISSA = IS_FLOAT ? 23 : 52;           // stored bits
constexpr int EXP_TERMS = IS_FLOAT ? 8 : 15;           // of the series of 2^f, |f| <= 1/2, to its last bit
constexpr int TRIG_TERMS = IS_FLOAT ? 5 : 10;          // of those of cos x and sin x, |x| <= pi/4
constexpr Bits HALF_ROOT = IS_FLOAT ? Bits(0x3f3504f3) : Bits(0x3fe6a09e667f3bcd);  // the bits of sqrt(1/2)
constexpr R TINY = std::numeric_limits<R>::min();
constexpr R LEAST = IS_FLOAT ? -126 : -1022, MOST = R(IS_FLOAT ? 127.99 : 1023.99);  // of the exponential

constexpr double LN2 = 0.693147180559945309417232121458176568;

inline Vec load(const R* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(R* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
inline Vec all(R x) { return Vec{} + x; }

inline Vec magnitude(Vec x) {
    const Int sign = Int{} + std::numeric_limits<Bits>::min();
    return (Vec)((Int)x & ~sign);
}

inline R total(Vec x) {
    R sum = 0;
    for (long lane = 0; lane < W; lane++) sum += x[lane];
    return sum;
}

// log2(x) of a normal x > 0. x = 2^e m with m in [sqrt(1/2), sqrt(2)), r = m - 1, log2 m = r P(r): P interpolates
// log2(1 + r) / r in ten Chebyshev nodes (relative error 2e-8). In double, 2 atanh(r / (2 + r)) / ln 2 by its series.
inline Vec log2_of(Vec x) {
    const Int bits = (Int)x;
    const Int exponent = (bits - HALF_ROOT) >> MANTISSA;
    const Vec r = (Vec)(bits - (exponent << MANTISSA)) - R(1);
    const Vec whole = __builtin_convertvector(exponent, Vec);
    if constexpr (IS_FLOAT) {
        constexpr float P[] = {1.44269502f,  -0.721347332f, 0.480898529f,  -0.360696554f, 0.288552552f,
                               -0.239608124f, 0.204857647f, -0.191388384f, 0.184760332f,  -0.107497893f};
        const Vec r2 = r * r, r4 = r2 * r2;
        const Vec low = (P[0] + P[1] * r) + (P[2] + P[3] * r) * r2;
        const Vec high = (P[4] + P[5] * r) + (P[6] + P[7] * r) * r2;
        return whole + r * (low + r4 * (high + r4 * (P[8] + P[9] * r)));
    } else {
        const Vec s = r / (R(2) + r), s2 = s * s;
        Vec sum = all(R(1) / 25);
        for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + R(1) / k;
        return whole + s * sum * R(2 / LN2);
    }
}

constexpr std::array<R, EXP_TERMS> powers_of_ln2() {
    std::array<R, EXP_TERMS> terms{};
    double term = 1;
    for (int k = 0; k < EXP_TERMS; k++, term *= LN2 / k) terms[k] = static_cast<R>(term);
    return terms;
}

// 2^y, held between the least normal number and the largest finite one. NaN stays NaN.
inline Vec exp2_of(Vec y) {
    constexpr auto TERMS = powers_of_ln2();
    y = y < LEAST ? all(LEAST) : y;
    y = y > MOST ? all(MOST) : y;
    // added and taken away again, a number whose last bit is 1 rounds to a whole one, and has that in its last bits
    constexpr R magic = R(3) * R(uint64_t(1) << (MANTISSA - 1));
    const Vec shifted = y + magic;
    const Vec f = y - (shifted - magic);
    Vec sum = all(TERMS[EXP_TERMS - 1]);
    for (int k = EXP_TERMS - 2; k >= 0; k--) sum = sum * f + TERMS[k];
    return y == y ? (Vec)((Int)sum + ((Int)shifted << MANTISSA)) : y;
}

// 1 - tanh x = 2 / (exp(2x) + 1): for large x, where tanh x rounds to 1, it still has all its digits.
inline Vec beside_tanh(Vec x) { return R(2) / (exp2_of(x * R(2 / LN2)) + R(1)); }

// Near 0 off by a rounding of 1, which is a rounding of what it is added to.
inline Vec tanh_of(Vec x) { return R(1) - beside_tanh(x); }

// (cos x, sin x) for |x| <= pi/4, by their series.
struct Angle {
    Vec cos, sin;
};
inline Angle angle_of(Vec x) {
    constexpr int N = TRIG_TERMS;
    const Vec x2 = x * x;
    Vec c = all(1), s = all(1);
    for (int k = N; k >= 1; k--) {
        c = R(1) - x2 * c * (R(1) / R((2 * k - 1) * (2 * k)));
        s = R(1) - x2 * s * (R(1) / R((2 * k) * (2 * k + 1)));
    }
    return {c, s * x};
}

// (x1, x0), (x3, x2), ...: the other entry of each pair.
inline Vec partners(Vec x) {
    if constexpr (IS_FLOAT) {
        typedef uint64_t Pairs __attribute__((vector_size(BYTES)));
        const Pairs pairs = (Pairs)x;
        return (Vec)((pairs >> 32) | (pairs << 32));
    } else {
        Vec y;
        for (long lane = 0; lane < W; lane++) y[lane] = x[lane ^ 1];
        return y;
    }
}
