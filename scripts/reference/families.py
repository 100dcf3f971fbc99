"""Golden logits of tiny models of every architecture, by transformers in float32.

    python families.py OUT_DIR [NAME ...]

For each case writes OUT_DIR/NAME.json: config.json as transformers saves it, every tensor's name and shape with the
numbers that make its values, the prompt, and per position a sample of the logits. No weights are stored: values come
from a counter-based generator that src/model/tiny_checkpoint.h has too. The prompts are longer than every window.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

SAMPLES = 6
MASK = 0xFFFFFFFFFFFFFFFF
STEP = 0x9E3779B97F4A7C15

COMMON = dict(vocab_size=131, hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=512, attn_implementation="eager", bos_token_id=1, eos_token_id=2,
              pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)


def long_factors(pairs):
    return dict(rope_type="longrope", short_factor=[1.0 + 0.05 * i for i in range(pairs)],
                long_factor=[1.5 + 0.7 * i for i in range(pairs)], original_max_position_embeddings=64)


# name: (class prefix, config, served context or None, positions)
CASES = {
    "llama2": ("Llama", dict(num_hidden_layers=2, num_key_value_heads=4, rms_norm_eps=1e-5), None, 80),
    "llama3": ("Llama", dict(num_hidden_layers=2, rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True,
                             attention_bias=True, mlp_bias=True), None, 150),
    "mistral": ("Mistral", dict(num_hidden_layers=2, sliding_window=40, head_dim=16), None, 150),
    "qwen2": ("Qwen2", dict(num_hidden_layers=3, rope_scaling=YARN), None, 150),
    "qwen2-window": ("Qwen2", dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=24,
                                   max_window_layers=1), None, 100),
    "qwen3": ("Qwen3", dict(num_hidden_layers=2, head_dim=32, tie_word_embeddings=True), None, 100),
    "gemma2": ("Gemma2", dict(num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=20, sliding_window=32,
                              attn_logit_softcapping=5.0, final_logit_softcapping=8.0), None, 150),
    "gemma3": ("Gemma3", dict(num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=24, sliding_window=32,
                              sliding_window_pattern=3), None, 150),
    "gemma3-linear": ("Gemma3", dict(num_hidden_layers=7, head_dim=16, query_pre_attn_scalar=16, sliding_window=20,
                                     rope_scaling=dict(rope_type="linear", factor=8.0)), None, 100),
    "phi3": ("Phi3", dict(num_hidden_layers=2, sliding_window=50), None, 100),
    "phi3-short": ("Phi3", dict(num_hidden_layers=2, hidden_size=64, rope_scaling=long_factors(6),
                                partial_rotary_factor=0.75, original_max_position_embeddings=64), 64, 60),
    "phi3-long": ("Phi3", dict(num_hidden_layers=2, hidden_size=64, rope_scaling=long_factors(6),
                               partial_rotary_factor=0.75, original_max_position_embeddings=64,
                               tie_word_embeddings=True), None, 150),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=5, tie_word_embeddings=True), None, 100),
    "olmo2": ("Olmo2", dict(num_hidden_layers=2), None, 100),
}


def uniform(name, count):
    """`count` values in [-1, 1): a 64-bit mixing function of a counter, seeded by the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & MASK
    with np.errstate(over="ignore"):
        z = np.uint64((seed * STEP) & MASK) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def spread(name, shape, one_plus):
    """Scale and offset of a tensor's values, chosen so that scores, gates and logits are neither flat nor saturated."""
    if name.endswith("norm.weight"):
        return 0.3, 0.0 if one_plus else 1.0
    if name.endswith(".bias"):
        return 0.4, 0.0
    gain = {"embed_tokens": 1.5 if one_plus else 4.0, "lm_head": 3.0, "q_proj": 2.0, "k_proj": 2.0, "qkv_proj": 1.7,
            "gate_proj": 1.5, "gate_up_proj": 1.2}.get(name.split(".")[-2], 1.0)
    return float(np.float32(gain * (3.0 / shape[-1]) ** 0.5)), 0.0


def build(prefix, extra):
    options = {**COMMON, **extra}
    text = "Text" if prefix == "Gemma3" else ""
    config = getattr(transformers, f"{prefix}{text}Config")(**options)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).float().eval()
    return config, model


def fill(model, one_plus):
    tensors = []
    state = model.state_dict()
    tied = model.config.tie_word_embeddings
    for name, value in state.items():
        if tied and name == "lm_head.weight":
            continue
        shape = list(value.shape)
        scale, offset = spread(name, shape, one_plus)
        numbers = np.float32(offset) + uniform(name, value.numel()) * np.float32(scale)
        value.copy_(torch.from_numpy(numbers.reshape(shape)))
        tensors.append([name, shape, scale, offset])
    model.tie_weights()
    return tensors


def write_case(out, name):
    prefix, extra, served, positions = CASES[name]
    torch.manual_seed(0)
    config, model = build(prefix, extra)
    with torch.no_grad():
        tensors = fill(model, prefix.startswith("Gemma"))
        ids = ((uniform("prompt " + name, positions) + 1) * 0.5 * config.vocab_size).astype(np.int64)
        logits = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    rng = np.random.Generator(np.random.PCG64(3))
    rows = []
    for position, row in enumerate(logits):
        wide = row.astype(np.float64)
        top = int(row.argmax())
        picks = sorted({top, *(int(i) for i in rng.integers(0, config.vocab_size, SAMPLES if position % 4 == 3 else 1))})
        rows.append([brief(np.abs(row).max()), brief(wide.max() + np.log(np.exp(wide - wide.max()).sum())),
                     {str(i): brief(row[i]) for i in picks}])
    saved = json.loads(config.to_json_string(use_diff=True))
    saved["architectures"] = [f"{prefix}ForCausalLM"]
    document = {"made_by": "scripts/reference/families.py", "transformers": transformers.__version__,
                "torch": torch.__version__, "served_context": served or 0, "config": saved, "tensors": tensors,
                "prompt": ids.tolist(), "logits": rows}
    (out / f"{name}.json").write_text(dump(document))
    print(f"{name}: {positions} positions, largest |logit| {np.abs(logits).max():.3f}")


def brief(value):
    return float(f"{value:.7g}")


def dump(document):
    """One line for each key, numbers as short as float32 needs."""
    def short(value):
        if isinstance(value, float):
            return float(f"{value:.9g}")
        if isinstance(value, list):
            return [short(item) for item in value]
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        return value
    lines = [f"{json.dumps(key)}: {json.dumps(short(value), separators=(',', ':'))}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for case in sys.argv[2:] or CASES:
        write_case(folder, case)
