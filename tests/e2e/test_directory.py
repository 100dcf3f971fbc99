"""A Hugging Face directory as the model: config.json, safetensors, tokenizer.json and a chat template."""

import json
import random
import struct

import pytest

from servers import request

CONTEXT, WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 512, 64, 96, 2, 4, 2
END = "<|im_end|>"
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_letters():
    """The letters by which byte-level BPE writes the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]


def write_directory(folder, shards=2):
    """A tiny Llama with random weights, in shards with an index."""
    folder.mkdir()
    vocab = {letter: i for i, letter in enumerate(byte_letters())}
    special = ["<|im_start|>", END]
    size = len(vocab) + len(special)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0",
        "added_tokens": [{"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
         "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
         "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "vocab_size": size, "hidden_act": "silu",
         "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": len(vocab) + 1,
         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}))
    kv = WIDTH // HEADS * KV_HEADS
    tensors = {"model.embed_tokens.weight": (size, WIDTH), "lm_head.weight": (size, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        for name, shape in {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (kv, WIDTH), "self_attn.v_proj": (kv, WIDTH),
                            "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
                            "mlp.down_proj": (WIDTH, INNER), "input_layernorm": (WIDTH,),
                            "post_attention_layernorm": (WIDTH,)}.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = shape
    chosen = random.Random(11)
    places = {}
    for shard in range(shards):
        header, data = {}, b""
        for name in sorted(tensors)[shard::shards]:
            shape = tensors[name]
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            values = [1.0] * count if len(shape) == 1 else [chosen.gauss(0, 0.2) for _ in range(count)]
            packed = struct.pack(f"<{count}f", *values)
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(packed)]}
            data += packed
            places[name] = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        (folder / f"model-{shard + 1:05}-of-{shards:05}.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.quick
def test_a_directory_is_served_by_a_pair_as_by_one_worker(launch, tmp_path):
    folder = write_directory(tmp_path / "tiny-0.1M")
    question = "The clock on the customs house was late by eleven minutes. " * 4
    replies = []
    for name, workers in (("pair", []), ("unified", ["--unified", "1"])):
        server = launch(name, "up", str(folder) + "/", *workers, "--port", "0", "--kv-memory", "16M").wait_ready()
        assert [entry["id"] for entry in request(server.url, "GET", "/v1/models").json()["data"]] == ["tiny-0.1M"]
        chat = request(server.url, "POST", "/v1/chat/completions",
                       {"model": "tiny-0.1M", "messages": [{"role": "user", "content": question}], "max_tokens": 20,
                        "temperature": 0})
        plain = request(server.url, "POST", "/v1/completions",
                        {"model": "tiny-0.1M", "prompt": question, "max_tokens": 20, "temperature": 0})
        assert chat.status == 200 and plain.status == 200, (chat.body, plain.body)
        # One token for each byte and each special token, as the template writes them.
        assert plain.json()["usage"]["prompt_tokens"] == len(question)
        written = len("user\n") + len(question) + len("\n") + len("assistant\n") + 3
        assert chat.json()["usage"]["prompt_tokens"] == written
        assert chat.json()["usage"]["completion_tokens"] > 1
        replies.append((chat.json()["choices"][0]["message"]["content"], plain.json()["choices"][0]["text"]))
    assert replies[0] == replies[1]
    assert replies[0][0] != replies[0][1]
