"""Write adapter folders in PEFT's format."""

import json

from safetensors.torch import save_file

RANK = 3


def write_adapter(folder, base, tensors, **settings):
    """Write an adapter folder as PEFT does."""
    folder.mkdir()
    values = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "base_model_name_or_path": str(base), **settings}
    (folder / "adapter_config.json").write_text(json.dumps(values), encoding="utf-8")
    save_file(
        {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
