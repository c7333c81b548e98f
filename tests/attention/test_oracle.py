"""Every mechanism against loops in numpy that share no code with the package."""

import itertools

import numpy as np
import pytest
import torch

from nala_platform.attention import ATTENTION

CASES = list(itertools.product([False, True], repeat=3))
LOW, HIGH, POWER, EPS = np.array([0.5, 1.5, 2.0]), np.array([2.0, 4.5, 2.5]), 2.5, 1e-3


def nala_features(gate, direction):
    def theta(x):
        length = np.sqrt(np.sum(x * x))
        return np.pi / 4 * np.tanh(20 * x / length)

    def features(size, x):
        if direction == "cosine":
            return np.concatenate([size * np.cos(theta(x)), size * np.sin(theta(x))])
        return np.concatenate([np.where(x > 0, size, 0), np.where(x < 0, size, 0)])

    def query(q, head):
        n = np.sqrt(np.sum(q * q))
        g = np.tanh(n) if gate == "tanh" else 2 / (1 + np.exp(-n)) - 1
        return features(np.abs(q / n) ** (LOW[head] + (HIGH[head] - LOW[head]) * g), q)

    def key(k, head):
        return features(np.abs(k) ** POWER, k)

    return query, key


def elu_plus_one(x, head):
    return np.where(x > 0, x + 1, np.exp(x))


def relu(x, head):
    return np.maximum(x, 0)


def rotated(x, cos, sin):
    out = np.empty_like(x)
    for pair in range(len(x) // 2):
        a, b = x[2 * pair], x[2 * pair + 1]
        column = 2 * pair % len(cos)
        out[2 * pair] = a * cos[column] - b * sin[column]
        out[2 * pair + 1] = b * cos[column] + a * sin[column]
    return out


def linear_oracle(phi_q, phi_k, query, key, value, cos, sin, mask, causal):
    out = np.zeros((*query.shape[:3], value.shape[3]))
    for b, h, i in np.ndindex(*query.shape[:3]):
        seen = [j for j in range(key.shape[2]) if not mask[b, j] and (j <= i or not causal)]
        top, bottom = np.zeros(value.shape[3]), 0.0
        q = phi_q(query[b, h, i], h)
        for j in seen:
            k = phi_k(key[b, h, j], h)
            top += rotated(q, cos[i], sin[i]) @ rotated(k, cos[j], sin[j]) * value[b, h, j] / len(seen)
            bottom += q @ k / len(seen)
        out[b, h, i] = top / (bottom + EPS)
    return out


def softmax_oracle(query, key, value, cos, sin, mask, causal):
    out = np.zeros((*query.shape[:3], value.shape[3]))
    for b, h, i in np.ndindex(*query.shape[:3]):
        seen = [j for j in range(key.shape[2]) if not mask[b, j] and (j <= i or not causal)]
        q = rotated(query[b, h, i], cos[i], sin[i])
        weight = [np.exp(q @ rotated(key[b, h, j], cos[j], sin[j]) / np.sqrt(len(q))) for j in seen]
        for w, j in zip(weight, seen, strict=True):
            out[b, h, i] += w / sum(weight) * value[b, h, j]
    return out


def arrays(inputs, *, use_rope, use_mask):
    cos, sin = (table.numpy() for table in inputs.rope)
    if not use_rope:
        cos, sin = np.ones_like(cos), np.zeros_like(sin)
    mask = inputs.mask.numpy() if use_mask else np.zeros(inputs.mask.shape, dtype=bool)
    return inputs.query.numpy(), inputs.key.numpy(), inputs.value.numpy(), cos, sin, mask


def compute(name, inputs, use_rope, causal, use_mask, **options):
    return ATTENTION[name](
        inputs.query,
        inputs.key,
        inputs.value,
        rope=inputs.rope if use_rope else None,
        is_causal=causal,
        key_padding_mask=inputs.mask if use_mask else None,
        eps=EPS,
        **options,
    ).numpy()


@pytest.fixture
def inputs(make_inputs):
    """Six tokens; the mask leaves the first query of a causal row without any key."""
    made = make_inputs(6, D=4)
    made.mask[0, 0] = True
    return made


@pytest.mark.parametrize("backend", ["reference", "plain"])
@pytest.mark.parametrize(("use_rope", "causal", "use_mask"), CASES)
@pytest.mark.parametrize("direction", ["split", "cosine"])
@pytest.mark.parametrize("gate", ["tanh", "sigmoid"])
def test_nala(inputs, gate, direction, use_rope, causal, use_mask, backend):
    ours = compute(
        "nala",
        inputs,
        use_rope,
        causal,
        use_mask,
        alpha_range=(torch.tensor(LOW), torch.tensor(HIGH)),
        alpha_gate=gate,
        direction=direction,
        key_power=POWER,
        backend=backend,
    )
    features = nala_features(gate, direction)
    expected = linear_oracle(*features, *arrays(inputs, use_rope=use_rope, use_mask=use_mask), causal)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("backend", ["reference", "plain"])
@pytest.mark.parametrize(("use_rope", "causal", "use_mask"), CASES)
@pytest.mark.parametrize(("name", "phi"), [("linear", elu_plus_one), ("relu", relu)])
def test_linear_and_relu(inputs, name, phi, use_rope, causal, use_mask, backend):
    ours = compute(name, inputs, use_rope, causal, use_mask, backend=backend)
    expected = linear_oracle(phi, phi, *arrays(inputs, use_rope=use_rope, use_mask=use_mask), causal)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("backend", ["reference", "plain"])
@pytest.mark.parametrize(("use_rope", "causal", "use_mask"), CASES)
def test_softmax(inputs, use_rope, causal, use_mask, backend):
    ours = compute("softmax", inputs, use_rope, causal, use_mask, backend=backend)
    expected = softmax_oracle(*arrays(inputs, use_rope=use_rope, use_mask=use_mask), causal)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
