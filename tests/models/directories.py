"""Changes of saved model directories, each a function of the directory."""

import json

from safetensors.torch import load_file, save_file


def config(**changes):
    """Change config.json; None removes a field."""

    def change(folder):
        path = folder / "config.json"
        fields = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: value for name, value in fields.items() if changes.get(name, 0) is not None}))

    return change


def tensors(function):
    """Change the tensors of model.safetensors, a dictionary, or replace them by those that ``function`` returns."""

    def change(folder):
        path = folder / "model.safetensors"
        stored = load_file(path)
        save_file(function(stored) or stored, path, metadata={"format": "pt"})

    return change
