"""export_model.py FILE.gguf DIRECTORY: the model in Hugging Face's layout and bfloat16, for engines that read no GGUF."""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
    model.config.save_pretrained(target)
    # The file said how it was quantized; what was saved is not.
    path = target / "config.json"
    config = json.loads(path.read_text())
    for key in ("quantization_config", "dtype"):
        config.pop(key, None)
    path.write_text(json.dumps({**config, "torch_dtype": "bfloat16"}, indent=1))


main()
