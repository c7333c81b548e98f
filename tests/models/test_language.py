"""The language model: pieces, padding, beams, files."""

import subprocess
import sys

import pytest
import torch

from nala_platform.errors import UserError
from nala_platform.models.language import NaLaConfig, NaLaForCausalLM

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
QUIET = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(params=["nala", "softmax", "linear"])
def model(request):
    torch.manual_seed(0)
    return NaLaForCausalLM(NaLaConfig.from_size("nano", attention=request.param, **SMALL)).eval()


def tokens(batch, length):
    return torch.randint(1, 50, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("piece", [1, 7, 64])
def test_prefill_in_pieces_is_one_pass(model, piece):
    whole, cache, parts = model(tokens(2, 70)).logits, None, []
    for part in tokens(2, 70).split(piece, dim=1):
        out = model(part, cache=cache, use_cache=True)
        cache = out.cache
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logit(model, batch, side):
    real, pad = tokens(batch, 13), torch.full((batch, 5), 7)
    pair = (pad, real) if side == "left" else (real, pad)
    mask = torch.cat([torch.full_like(part, int(part is real)) for part in pair], 1)
    padded = model(torch.cat(pair, 1), attention_mask=mask).logits
    found = padded[:, 5:] if side == "left" else padded[:, :13]
    torch.testing.assert_close(found, model(real).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_left_padded_prompts_are_continued_as_when_alone(model):
    prompts = [tokens(1, 4), tokens(1, 9)]
    alone = [model.generate(prompt, max_new_tokens=6, **QUIET)[0, -6:] for prompt in prompts]
    batch = torch.cat([torch.nn.functional.pad(prompt, (9 - prompt.shape[1], 0)) for prompt in prompts])
    together = model.generate(batch, attention_mask=(batch > 0).long(), max_new_tokens=6, **QUIET)[:, -6:]
    assert torch.equal(together, torch.stack(alone))


@torch.no_grad()
def test_beams_are_reordered_as_scoring_by_full_forward(model):
    options = {"max_new_tokens": 8, "num_beams": 3, "return_dict_in_generate": True, "output_scores": True, **QUIET}
    found = model.generate(tokens(2, 6), num_return_sequences=3, **options)
    logits = model(found.sequences[:, :-1]).logits.log_softmax(-1)
    score = logits.gather(2, found.sequences[:, 1:, None])[:, 5:, 0].sum(1) / 8  # length penalty 1: over new tokens
    torch.testing.assert_close(found.sequences_scores, score, atol=1e-4, rtol=1e-4)
    slow = model.generate(tokens(2, 6), num_return_sequences=3, use_cache=False, **options)
    assert torch.equal(found.sequences, slow.sequences)


@torch.no_grad()
def test_the_state_is_float32_and_does_not_grow():
    model = NaLaForCausalLM(NaLaConfig.from_size("nano", **SMALL)).bfloat16().eval()
    sizes = []
    for length in (3, 300):
        state = model(tokens(1, length), use_cache=True).cache.layers[0].state
        assert {part.dtype for part in state} == {torch.float32}
        sizes.append([part.shape for part in state])
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("tied", [True, False])
def test_saved_and_read_again_bit_equal(tmp_path, tied):
    model = NaLaForCausalLM(NaLaConfig.from_size("nano", tie_word_embeddings=tied, **SMALL))
    model.save_pretrained(tmp_path)
    code = (
        "import sys, torch, transformers, nala_platform;"
        "torch.save(transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).state_dict(), sys.argv[1] + '/s.pt')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
    read = torch.load(tmp_path / "s.pt")
    assert (tmp_path / "model.safetensors").is_file()
    assert all(torch.equal(value, read[name]) for name, value in model.state_dict().items())
    again = NaLaForCausalLM.from_pretrained(tmp_path)
    assert (again.lm_head.weight is again.embed.weight) is tied


def test_gradient_checkpointing_changes_no_gradient():
    model = NaLaForCausalLM(NaLaConfig.from_size("nano", **SMALL)).train()
    grads = []
    for _ in range(2):
        model.zero_grad()
        model(tokens(2, 11), labels=tokens(2, 11)).loss.backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
        model.gradient_checkpointing_enable()
    torch.testing.assert_close(grads[0], grads[1])


def test_the_sizes_have_their_parameters():
    with torch.device("meta"):
        count = sum(p.numel() for p in NaLaForCausalLM(NaLaConfig.from_size("340m", vocab_size=32000)).parameters())
    assert abs(count / 340e6 - 1) < 0.03


def test_what_cannot_be_built_is_refused():
    with pytest.raises(UserError, match="did you mean 'nano'"):
        NaLaConfig.from_size("nan")
    with pytest.raises(UserError, match="multiple of"):
        NaLaForCausalLM(NaLaConfig(hidden_size=30, num_attention_heads=4))
