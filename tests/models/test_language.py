"""The language model: pieces, padding, beams, files."""

import copy
import json
import math
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, StaticCache
from transformers import pipeline as make_pipeline

from nala_platform.errors import UserError
from nala_platform.models import language
from nala_platform.models.language import NaLaConfig, NaLaForCausalLM, NaLaModel
from nala_platform.models.language_cache import StateLayer
from nala_platform.models.language_positions import rotary_tables

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
QUIET = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(params=["nala", "softmax", "linear"])
def model(request):
    torch.manual_seed(0)
    return NaLaForCausalLM(NaLaConfig.from_size("nano", attention=request.param, **SMALL)).eval()


@pytest.fixture(params=["nala", "softmax", "linear", "relu"])
def any_model(request):
    return made(request.param)


def tokens(batch, length):
    return torch.randint(1, 50, (batch, length), generator=torch.Generator().manual_seed(1))


def pieces(model, ids, widths):
    """Logits of tokens given to the model in pieces, each with the cache of the ones before."""
    cache, parts = None, []
    for part in ids.split(widths, dim=1):
        out = model(part, cache=cache, use_cache=True)
        cache = out.cache
        parts.append(out.logits)
    return torch.cat(parts, 1)


PIECES = pytest.mark.parametrize("widths", [1, 7, 64, [30, 100], [64, 65, 1]], ids=str)


@torch.no_grad()
@PIECES
def test_prefill_in_pieces_is_one_pass(model, widths):
    ids = tokens(2, 130)
    torch.testing.assert_close(pieces(model, ids, widths), model(ids).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@PIECES
def test_prefill_in_pieces_is_one_pass_in_half_precision(model, widths):
    # The logits spread by 0.11. A recurrent state is float32, so one unit in the last place of a bfloat16 remains;
    # of softmax the kernels for many queries and for one round differently.
    bound = 0.015 if model.config.attention == "softmax" else 0.002
    ids = tokens(2, 130)
    exact = copy.deepcopy(model).bfloat16().double()(ids).logits
    whole, found = model.bfloat16()(ids).logits.double(), pieces(model, ids, widths).double()
    assert float((found - whole).abs().max()) <= bound
    assert float((found - exact).abs().max()) <= 1.1 * float((whole - exact).abs().max())


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
@pytest.mark.parametrize("lengths", [(4,), (9, 4, 1)], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("beams", [1, 3])
def test_padded_prompts_are_continued_as_when_alone(model, lengths, side, beams):
    prompts = [tokens(1, length) for length in lengths]
    options = {"max_new_tokens": 6, "num_beams": beams, **QUIET}
    alone = [model.generate(prompt, **options)[0, -6:] for prompt in prompts]

    def padded(row, value):
        room = max(lengths) + 2 - row.shape[1]
        return torch.nn.functional.pad(row, (room, 0) if side == "left" else (0, room), value=value)

    # padding is what the mask says, not what the token is
    batch = torch.cat([padded(prompt, 7) for prompt in prompts])
    mask = torch.cat([padded(torch.ones_like(prompt), 0) for prompt in prompts])
    assert torch.equal(model.generate(batch, attention_mask=mask, **options)[:, -6:], torch.stack(alone))
    named = model.generate(input_ids=batch, attention_mask=mask, **options)
    assert torch.equal(named[:, -6:], torch.stack(alone))


@torch.no_grad()
def test_beams_are_reordered_as_scoring_by_full_forward(model, monkeypatch):
    reordered = []
    reorder = StateLayer.reorder_cache
    monkeypatch.setattr(
        StateLayer, "reorder_cache", lambda layer, beams: (reordered.append(beams.tolist()), reorder(layer, beams))
    )
    options = {"max_new_tokens": 12, "num_beams": 3, "return_dict_in_generate": True, "output_scores": True, **QUIET}
    prompt = tokens(2, 6)
    found = model.generate(prompt, num_return_sequences=3, **options)
    # else the test would say nothing
    assert model.config.attention != "nala" or any(beams != list(range(6)) for beams in reordered)
    logits = model(found.sequences[:, :-1]).logits.log_softmax(-1)
    score = logits.gather(2, found.sequences[:, 1:, None])[:, 5:, 0].sum(1) / 12  # length penalty 1: over new tokens
    torch.testing.assert_close(found.sequences_scores, score, atol=1e-5, rtol=1e-5)
    for row, ids in enumerate(prompt):
        expected = beam_search(model, ids.tolist(), beams=3, new_tokens=12)
        assert found.sequences[3 * row : 3 * row + 3].tolist() == expected


def beam_search(model, prompt, *, beams, new_tokens):
    """The best continuations, best first, each step scored by a full forward of each beam alone."""
    best = [(0.0, prompt)]
    for _ in range(new_tokens):
        longer = []
        for score, ids in best:
            step = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            longer += [(score + float(step[token]), [*ids, token]) for token in range(len(step))]
        best = sorted(longer, reverse=True)[:beams]
    return [ids for _, ids in best]


@torch.no_grad()
def test_the_state_is_float32_and_does_not_grow():
    model = NaLaForCausalLM(NaLaConfig.from_size("nano", **SMALL)).bfloat16().eval()
    sizes = []
    for length in (3, 300):
        state = model(tokens(1, length), use_cache=True).cache.layers[0].state
        assert {part.dtype for part in state} == {torch.float32}
        sizes.append([part.shape for part in state])
    assert sizes[0] == sizes[1]


def test_saved_and_read_again_bit_equal(tmp_path):
    """By a process that has not made it, tied and not."""
    models = {
        tied: NaLaForCausalLM(NaLaConfig.from_size("nano", tie_word_embeddings=tied, **SMALL)) for tied in (True, False)
    }
    for tied, model in models.items():
        model.save_pretrained(tmp_path / str(tied))
    code = (
        "import sys, torch, transformers, nala_platform\n"
        "for path in sys.argv[1:]:\n"
        "    read = transformers.AutoModelForCausalLM.from_pretrained(path)\n"
        "    torch.save(read.state_dict(), path + '/s.pt')"
    )
    folders = [str(tmp_path / str(tied)) for tied in models]
    subprocess.run([sys.executable, "-c", code, *folders], check=True, capture_output=True)
    for tied, model in models.items():
        folder = tmp_path / str(tied)
        read = torch.load(folder / "s.pt")
        with safe_open(folder / "model.safetensors", "pt") as file:
            assert {"embed.weight", "lm_head.weight"} - set(file.keys()) == ({"lm_head.weight"} if tied else set())
        assert all(torch.equal(value, read[name]) for name, value in model.state_dict().items())
        again = NaLaForCausalLM.from_pretrained(folder)
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


def made(attention="nala", **options):
    torch.manual_seed(0)
    return NaLaForCausalLM(NaLaConfig.from_size("nano", attention=attention, **(SMALL | options))).eval()


@torch.no_grad()
def test_an_earlier_cache_is_taken_by_its_old_and_its_new_name(any_model):
    ids = tokens(2, 20)
    expected = any_model(ids).logits[:, 12:]
    found = any_model(ids[:, 12:], cache=any_model(ids[:, :12]).cache).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache`"):
        old = any_model(ids[:, 12:], past_key_values=any_model(ids[:, :12]).cache).logits
    assert torch.equal(old, found)


@pytest.mark.parametrize(
    "name", ["position_idz", "cache_position", "past_key_value", "token_type_ids", "cu_seq_lens_q"]
)
def test_an_unknown_keyword_is_a_type_error(name):
    model = made()
    for network in (model, model.model):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            network(tokens(1, 3), **{name: None})
    with pytest.raises(TypeError, match="did you mean 'position_ids'"):
        model(tokens(1, 3), position_idz=None)


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask of ones"])
def test_packed_documents_are_what_they_are_alone(any_model, masked):
    """Documents restart where positions do: neither state nor rotation crosses the border."""
    ids, widths = tokens(2, 40), ((13, 1, 26), (40,))
    positions = torch.stack([torch.cat([torch.arange(width) for width in row]) for row in widths])
    mask = torch.ones_like(ids) if masked else None
    packed = any_model(ids, attention_mask=mask, position_ids=positions)
    assert packed.cache is None
    for row, lengths in enumerate(widths):
        alone = [any_model(part).logits for part in ids[row : row + 1].split(lengths, dim=1)]
        torch.testing.assert_close(packed.logits[row : row + 1], torch.cat(alone, 1), atol=1e-5, rtol=1e-5)
    mixed = any_model(ids).logits
    assert (mixed[0, 14:] - packed.logits[0, 14:]).abs().max() > 1e-3, "else the test would say nothing"


@pytest.mark.parametrize("attention", ["nala", "softmax"])
def test_packed_documents_have_the_gradients_that_they_have_alone(attention):
    model, ids = made(attention).train(), tokens(1, 30)
    positions = torch.cat([torch.arange(11), torch.arange(19)])[None]
    grads = []
    for parts in ([model(ids, position_ids=positions).logits], [model(part).logits for part in ids.split((11, 19), 1)]):
        model.zero_grad()
        torch.cat(parts, 1).square().mean().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*grads, atol=1e-6, rtol=1e-4)


@torch.no_grad()
def test_positions_of_padded_rows_are_honoured_with_and_without_a_cache(any_model):
    """As trainers give them: each row's own count of its real tokens, whatever stands at padding."""
    ids = tokens(2, 12)
    padded = torch.cat([torch.full((2, 3), 7), ids], 1)
    mask = torch.ones_like(padded)
    mask[0, :3] = 0
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    expected = [any_model(ids[:1]).logits[0, -4:], any_model(padded[1:]).logits[0, -4:]]
    whole = any_model(padded, attention_mask=mask, position_ids=positions, use_cache=False).logits
    cache = any_model(padded[:, :-4], attention_mask=mask[:, :-4], position_ids=positions[:, :-4]).cache
    rest = any_model(padded[:, -4:], attention_mask=mask, position_ids=positions[:, -4:], cache=cache).logits
    for row in (0, 1):
        torch.testing.assert_close(whole[row, -4:], expected[row], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(rest[row], expected[row], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_gap_between_positions_is_a_longer_distance():
    """A token at position 25 after tokens up to 9 is rotated as if 15 tokens stood between."""
    model, ids = made("softmax"), tokens(1, 11)
    gap = torch.cat([torch.arange(10), torch.tensor([25])])[None]
    hidden = torch.cat([ids[:, :10], torch.full((1, 15), 3), ids[:, 10:]], 1)
    mask = torch.ones_like(hidden)
    mask[:, 10:25] = 0
    expected = model(hidden, attention_mask=mask).logits[:, -1]
    cache = model(ids[:, :10]).cache
    found = model(ids[:, 10:], position_ids=gap[:, 10:], cache=cache).logits[:, -1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_positions_and_masks_that_cannot_be_honoured_are_refused():
    model, ids = made(), tokens(2, 6)
    restart = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(UserError, match=r"packed documents.*use_cache=False"):
        model(ids, position_ids=restart, use_cache=True)
    with pytest.raises(UserError, match=r"position_ids must be \(batch, tokens\) = \(2, 6\), got \(1, 5\)"):
        model(ids, position_ids=restart[:, 1:])
    with pytest.raises(UserError, match="must be integers"):
        model(ids, position_ids=restart.float())
    with pytest.raises(UserError, match="attention_mask must be two-dimensional"):
        model(ids, attention_mask=torch.ones(2, 1, 6, 6))
    with pytest.raises(UserError, match=r"tokens with those in the cache\) = \(2, 12\)"):
        model(ids, attention_mask=torch.ones(2, 6), cache=model(ids).cache)
    with pytest.raises(UserError, match="position_ids restart after the 6 tokens in the cache"):
        model(ids[:, :3], position_ids=restart[:, :3], cache=model(ids).cache)
    with pytest.raises(UserError, match="either input_ids or inputs_embeds"):
        model()


@torch.no_grad()
def test_hidden_states_are_the_embedding_and_each_layer_s_the_last_normalised(any_model):
    ids = tokens(2, 5)
    out = any_model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    assert torch.equal(out.hidden_states[0], any_model.get_input_embeddings()(ids))
    assert torch.equal(out.hidden_states[-1], any_model.model(ids).last_hidden_state)
    assert torch.equal(any_model.lm_head(out.hidden_states[-1]), out.logits)
    cut = made(any_model.config.attention, num_hidden_layers=1)
    cut.load_state_dict({name: value for name, value in any_model.state_dict().items() if "blocks.1" not in name})
    assert torch.equal(any_model.model.norm(out.hidden_states[1]), cut.model(ids).last_hidden_state)
    any_model.config.output_hidden_states = True
    assert len(any_model(ids).hidden_states) == 3
    assert any_model(ids, output_hidden_states=False).hidden_states is None


@torch.no_grad()
def test_flags_by_argument_and_by_configuration():
    model, ids = made(), tokens(2, 5)
    out = model(ids)
    assert isinstance(out.cache, DynamicCache) and out.cache.get_seq_length() == 5
    as_tuple = model(ids, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], out.logits) and len(as_tuple) == 2
    assert model(ids, use_cache=False).cache is None and len(model(ids, use_cache=False, return_dict=False)) == 1
    assert model.train()(ids).cache is None, "nothing follows a training step"
    assert model(ids, use_cache=True).cache is not None
    model.eval().config.use_cache = False
    assert model(ids).cache is None and model(ids, use_cache=True).cache is not None
    model.config.return_dict = False
    assert isinstance(model(ids), tuple)
    with pytest.raises(UserError, match="never computes a matrix of attention weights"):
        model(ids, output_attentions=True)


@torch.no_grad()
def test_logits_of_some_places_only():
    model, ids = made(), tokens(2, 9)
    every = model(ids).logits
    keep = torch.tensor([0, 4, 8])
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, every[:, -3:])
    torch.testing.assert_close(model(ids, logits_to_keep=0).logits, every)
    torch.testing.assert_close(model(ids, logits_to_keep=keep).logits, every[:, keep])
    torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, every)


@torch.no_grad()
def test_the_loss_is_that_of_the_next_token():
    model, ids = made(), tokens(2, 9)
    labels = ids.masked_fill(ids % 5 == 0, -100)
    logs = model(ids).logits[:, :-1].log_softmax(-1)
    target = labels[:, 1:]
    nats = -logs.gather(2, target.clamp_min(0)[..., None])[..., 0][target >= 0]
    torch.testing.assert_close(model(ids, labels=labels).loss, nats.mean())
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=10).loss, nats.sum() / 10)
    shifted = torch.nn.functional.pad(target, (0, 1), value=-100)
    torch.testing.assert_close(model(ids, labels=labels, shift_labels=shifted).loss, nats.mean())


def test_gradient_checkpointing_keeps_no_cache():
    model = made().train()
    model.gradient_checkpointing_enable()
    out = model(tokens(1, 5), labels=tokens(1, 5), use_cache=True)
    out.loss.backward()
    assert out.cache is None


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_embedded_prompts_padded_on_either_side_are_continued_as_when_alone(any_model, side):
    prompts, options = [tokens(1, 7), tokens(1, 4)], {"max_new_tokens": 5, **QUIET}
    alone = torch.cat([any_model.generate(prompt, **options)[:, -5:] for prompt in prompts])
    room = (3, 0) if side == "left" else (0, 3)
    ids = torch.cat([prompts[0], torch.nn.functional.pad(prompts[1], room, value=9)])
    mask = torch.cat([torch.ones_like(prompts[0]), torch.nn.functional.pad(torch.ones_like(prompts[1]), room)])
    embeds = any_model.get_input_embeddings()(ids)
    assert torch.equal(any_model.generate(inputs_embeds=embeds, attention_mask=mask, **options), alone)
    # with the positions that trainers give
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    found = any_model.generate(ids, attention_mask=mask, position_ids=positions, **options)
    assert torch.equal(found[:, -5:], alone)
    # and by the pad token alone
    ids = ids.masked_fill(mask == 0, 0)
    assert torch.equal(any_model.generate(ids, **options)[:, -5:], alone)


@torch.no_grad()
def test_decoding_that_a_state_does_not_allow_is_refused_with_the_reason(any_model):
    prompt, options = tokens(1, 6), {"max_new_tokens": 6, **QUIET}
    with pytest.raises(UserError, match=r"StaticLayer does not fit.*leave cache_implementation out"):
        any_model.generate(prompt, cache_implementation="static", **options)
    with pytest.raises(UserError, match="StaticLayer does not fit"):
        any_model(prompt, cache=StaticCache(config=any_model.config, max_cache_len=20))
    expected = any_model.generate(prompt, **options)
    other = made(any_model.config.attention)
    if any_model.config.attention == "softmax":
        assert torch.equal(any_model.generate(prompt, prompt_lookup_num_tokens=2, **options), expected)
        assert torch.equal(any_model.generate(prompt, assistant_model=other, **options), expected)
    else:
        for assisted in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": other}):
            with pytest.raises(ValueError, match="not supported with stateful models"):
                any_model.generate(prompt, **assisted, **options)


@torch.no_grad()
def test_a_cache_of_another_mechanism_is_refused():
    nala, softmax, ids = made(), made("softmax"), tokens(1, 4)
    with pytest.raises(UserError, match="keys and values of another model"):
        nala(ids, cache=softmax(ids).cache)
    with pytest.raises(UserError, match="recurrent state of another model"):
        softmax(ids, cache=nala(ids).cache)


@torch.no_grad()
def test_generation_goes_on_from_a_returned_cache(any_model):
    options = {"return_dict_in_generate": True, **QUIET}
    whole = any_model.generate(tokens(2, 5), max_new_tokens=8, **options)
    half = any_model.generate(tokens(2, 5), max_new_tokens=4, **options)
    rest = any_model.generate(half.sequences, cache=half.cache, max_new_tokens=4, **options)
    assert torch.equal(rest.sequences, whole.sequences)
    chunked = any_model.generate(tokens(2, 5), max_new_tokens=8, prefill_chunk_size=2, **options)
    assert torch.equal(chunked.sequences, whole.sequences)


OLD_NAMES = ("embed.", "blocks.", "norm.")


def old_state(model):
    """The state under the names of the time when the base model had no module of its own."""
    return {name.removeprefix("model."): value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("tied", [True, False])
def test_weights_under_their_old_names_load(tied, tmp_path):
    """As state dict, within another module as a run's checkpoint has them, and as a Hugging Face folder."""
    model = made(tie_word_embeddings=tied)
    state = old_state(model)
    assert all(name.startswith((*OLD_NAMES, "lm_head.")) for name in state)
    task = torch.nn.ModuleDict({"network": NaLaForCausalLM(model.config)})
    task.load_state_dict({f"network.{name}": value for name, value in state.items()})
    model.config.save_pretrained(tmp_path)
    if tied:
        del state["lm_head.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    read, found = NaLaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    for other in (task["network"], read):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("tied", [True, False])
def test_folders_keep_the_old_names_whoever_saved_them(tied, tmp_path):
    made(tie_word_embeddings=tied).save_pretrained(tmp_path / "a")
    NaLaForCausalLM.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    for folder in "ab":
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            assert all(name.startswith((*OLD_NAMES, "lm_head.")) for name in file.keys())


def test_the_base_model_and_the_heads_are_what_the_entry_points_give(tmp_path):
    model = made(pad_token_id=0, num_labels=3)
    assert type(model.base_model) is NaLaModel and model.get_decoder() is model.model
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    ids = tokens(2, 6)
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True).hidden_states[-1]
        torch.testing.assert_close(base(ids).last_hidden_state, expected)
        for entry, shape in (
            ("AutoModelForSequenceClassification", (2, 3)),
            ("AutoModelForTokenClassification", (2, 6, 3)),
        ):
            network = getattr(transformers, entry).from_pretrained(tmp_path).eval()
            assert type(network) is getattr(language, entry.replace("AutoModel", "NaLa"))
            torch.testing.assert_close(network.model(ids).last_hidden_state, expected)
            assert network(ids).logits.shape == shape
        answers = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
        assert answers(ids).start_logits.shape == (2, 6)
        assert answers.get_input_embeddings() is answers.model.embed
    network.save_pretrained(tmp_path / "head")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "head")
    assert torch.equal(again.model.embed.weight, model.model.embed.weight)


def test_features_by_pipeline():
    from nala_platform.data.language.tokens import train_bpe

    tokenizer = train_bpe(["the cat sat on the mat"] * 5, 300)
    model = made(vocab_size=len(tokenizer))
    extract = make_pipeline("feature-extraction", model=model.model, tokenizer=tokenizer, device="cpu")
    [found] = extract("the cat")
    with torch.no_grad():
        expected = model.model(torch.tensor([tokenizer("the cat")["input_ids"]])).last_hidden_state[0]
    torch.testing.assert_close(torch.tensor(found), expected)


REMOTE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoModel, AutoConfig
assert "nala_platform" not in sys.modules
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
assert config.model_type == "nala"
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
base = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = torch.arange(1, 9)[None]
model.save_pretrained(sys.argv[1] + "/again")
again = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/again", trust_remote_code=True)
torch.save((model(ids).logits, base(ids).last_hidden_state, again(ids).logits), sys.argv[1] + "/out.pt")
"""


def test_a_saved_folder_loads_in_a_process_that_knows_nothing_of_us(tmp_path):
    """With trust_remote_code=True, and what is saved there does so too."""
    model = made(vocab_size=50)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"]["AutoModelForCausalLM"].endswith("CausalLM")
    subprocess.run([sys.executable, "-c", REMOTE, str(tmp_path)], check=True, capture_output=True)
    logits, hidden, again = torch.load(tmp_path / "out.pt")
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        torch.testing.assert_close(logits, model(ids).logits)
        torch.testing.assert_close(hidden, model.model(ids).last_hidden_state)
    assert torch.equal(again, logits)


ABSENT = """
import sys
class Absent:
    def find_spec(name, path=None, target=None):
        if name == "nala_platform":
            raise ModuleNotFoundError("No module named 'nala_platform'", name=name)
sys.meta_path.insert(0, Absent)
exec(open(sys.argv[1]).read())
"""


def test_the_file_of_a_folder_says_what_is_missing(tmp_path):
    """Where the package is not installed."""
    made().save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ABSENT, str(tmp_path / "modeling_nala.py")], capture_output=True, text=True
    )
    assert done.returncode and "pip install nala-platform" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("position", [0, 1, 255, 65_537, 262_144, 1_000_003])
def test_rotation_is_exact_at_any_position(position):
    """Against Python's own sine of an angle that is reduced exactly."""
    from fractions import Fraction

    cos, sin = rotary_tables(torch.tensor([position]), 32, base=10000.0)
    for pair in range(16):
        frequency = Fraction(10000.0 ** (-2 * pair / 32))
        turns = Fraction(position) * frequency / Fraction(math.tau)
        angle = float((turns - round(turns)) * Fraction(math.tau))
        assert abs(float(cos[0, 2 * pair]) - math.cos(angle)) < 1e-7
        assert abs(float(sin[0, 2 * pair + 1]) - math.sin(angle)) < 1e-7


@torch.no_grad()
def test_the_work_for_one_token_does_not_depend_on_the_tokens_before():
    """Counted in the operators of PyTorch and the numbers that each of them makes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            work.append(
                (str(func), [x.numel() for x in (out if isinstance(out, tuple) else (out,)) if hasattr(x, "numel")])
            )
            return out

    model, seen = made(), []
    for length in (3, 700):
        cache = model(tokens(1, length)).cache
        work: list = []
        with Counted():
            model(tokens(1, 1), cache=cache)
        seen.append(work)
    assert seen[0] == seen[1] and len(seen[0]) > 20


def test_traces_and_exports(any_model):
    """Without a cache, which is no tensor; both times that ``torch.jit.trace`` records it alike."""
    any_model.config.use_cache = any_model.config.return_dict = False
    ids = tokens(2, 20)
    expected = any_model(ids)[0]
    torch.testing.assert_close(torch.jit.trace(any_model, ids)(ids)[0], expected, atol=1e-5, rtol=1e-5)
    exported = torch.export.export(any_model, (ids,), strict=False).module()
    torch.testing.assert_close(exported(ids)[0], expected, atol=1e-5, rtol=1e-5)
