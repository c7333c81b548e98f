// NaLa attention on a CPU: the entry points that `library.py` calls.
//
// A pass returns 0, 1 where memory ran out, or 2 where the states are not as many as they must be. Nothing is kept
// between calls but a thread's own scratch memory.
#include "both_ways.h"
#include "causal.h"

inline int64_t state_numbers(const Call& call) {
    const int64_t of_span = call.batch * call.heads * Widths(call).state;
    return call.is_causal ? of_span * (Spans(call, call.keys).count - 1) : of_span;
}

template <class Form> int computed(const Call& call, void (Form::*pass)()) {
    if (call.state_numbers != state_numbers(call)) return 2;
    try {
        (Form(call).*pass)();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

#define ENTRY __attribute__((visibility("default")))

extern "C" {
ENTRY int nala_forward(const Call* call) {
    return call->is_causal ? computed(*call, &Causal::forward) : computed(*call, &BothWays::forward);
}

ENTRY int nala_backward(const Call* call) {
    return call->is_causal ? computed(*call, &Causal::backward) : computed(*call, &BothWays::backward);
}

ENTRY int nala_lanes() { return W; }
}
