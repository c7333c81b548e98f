// NaLa attention on a CPU: the entry points that `library.py` calls.
//
// Each returns 0, or 1 where memory ran out. Nothing is kept between calls but a thread's own scratch memory.
#include "both_ways.h"
#include "causal.h"

template <class Form> int computed(const Call& call, void (Form::*pass)()) {
    try {
        (Form(call).*pass)();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

extern "C" {
int nala_forward(const Call* call) {
    return call->is_causal ? computed(*call, &Causal::forward) : computed(*call, &BothWays::forward);
}

int nala_backward(const Call* call) {
    return call->is_causal ? computed(*call, &Causal::backward) : computed(*call, &BothWays::backward);
}

// Numbers in `Call.states`.
int64_t nala_states(const Call* call) {
    const int64_t state = call->batch * call->heads * Widths(*call).state;
    return call->is_causal ? state * (Spans(*call, call->keys).count - 1) : state;
}
}
