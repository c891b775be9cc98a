"""``load``: a model with its tokenizer, end-of-text tokens and config, from a directory, the Hub or memory."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paceline.core.context import has_other_vocab
from paceline.core.ops import Ops, TensorOps
from paceline.engine.runner import ops_for
from paceline.hardware.processor import check_threads
from paceline.kernels.cpu.instruction_set import check_environment
from paceline.models import from_transformers, hub, lazy_adapter, loading
from paceline.models.backend import fastest, pack_weights
from paceline.models.base import LM
from paceline.models.batch_invariance import find_batch_dependence
from paceline.models.directory import ModelError, is_hub_id
from paceline.models.draft_vocab import read_draft_vocab
from paceline.models.families import FAMILIES
from paceline.models.families.base import InvalidConfig
from paceline.models.from_transformers import TransformersModel
from paceline.models.native.quantization import check_quantization, quantise_modules
from paceline.text.special_tokens import read_eos, read_start
from paceline.text.tokenizer import Tokenizer, load_tokenizer

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
BACKENDS = ("auto", "native", "hf")
EXACT_ROWS, EXACT_NODES = 4, 9  # batch and draft sizes that ``exact`` is tested with


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A loaded model.

    ``tokenizer`` is None if there is none: prompts are then token ids. ``source_tokenizer`` is of texts that an encoder
    reads, where its tokens are not those of the output (None: ``tokenizer`` is). ``name`` is the directory, the Hub id
    or the class, ``config`` the content of config.json. ``start`` are the tokens that the output of an encoder-decoder
    begins with. ``enforce_eager`` turns off faster implementations of the forward;
    ``exact`` refuses verifiers whose tokens may differ from plain decoding. ``draft_ids`` [D] (None: all) are those
    that it drafts where it is a draft model (models/draft_vocab).
    """

    lm: LM
    tokenizer: Tokenizer | None
    eos: tuple[int, ...]
    name: str
    dtype: torch.dtype
    config: dict[str, object]
    enforce_eager: bool = False
    exact: bool = False
    start: tuple[int, ...] = ()
    source_tokenizer: Tokenizer | None = None
    draft_ids: torch.Tensor | None = None

    def with_tokenizer(self, tokenizer: Tokenizer | None) -> "Loaded":
        """The same model with ``tokenizer`` for what it reads, and says if that has the same tokens."""
        if has_other_vocab(self.lm.context_inputs):
            return replace(self, tokenizer=None, source_tokenizer=tokenizer)
        return replace(self, tokenizer=tokenizer)


def load(
    model: str | Path | TransformersModel,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    backend: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    threads: int | None = None,
    enforce_eager: bool = False,
    exact: bool = False,
    quantization: str | None = None,
) -> Loaded:
    """Load a model from a Hugging Face directory, a Hub id, or a loaded transformers model.

    A transformers model is used without a second copy of its weights, and keeps working; its tokenizer is that of the
    local directory it was loaded from.

    - ``dtype`` (None): a torch dtype, its name or "auto"; None and "auto" keep the precision of the weights.
    - ``device`` (None): None is CUDA if available, else the CPU.
    - ``backend`` ("auto"): "native" runs the model with Paceline's own code, "hf" with that of transformers; "auto" is
      native if the architecture is supported and the weights are not quantized, else "hf".
    - ``revision`` (None): branch, tag or commit of a Hub id.
    - ``trust_remote_code`` (False): run a checkpoint's own code, for its tokenizer and with "hf"; never with "native".
    - ``threads`` (None): torch's number of threads for the whole process, at most one for each core.
    - ``enforce_eager`` (False): decode with plain torch operations only, for debugging.
    - ``exact`` (False): require the tokens of plain decoding bit for bit. The model is tested, and refused if a token's
      logits depend on the other rows or nodes of a batch.
    - ``quantization`` (None): "int8" or "int4" stores the matrices of a directory or Hub id as integers. The output,
      drafted or not, is that of the quantized model.

    Raises ValueError, with the reason and the way out, for an option that is unknown or not supported, and for a
    model that is missing, of an unsupported architecture, unreadable, or larger than the device's free memory.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: known are {', '.join(BACKENDS)}")
    if threads is not None:
        check_threads(threads, f"threads={threads}")
    check_quantization(quantization)
    check_environment()
    precision = find_dtype(dtype)
    place = None if device is None else find_device(device)
    if from_transformers.is_transformers_model(model):
        if quantization is not None:
            raise ModelError(
                f"quantization={quantization!r}: {type(model).__name__} is loaded already, and its weights are its "
                "own; give its directory, or quantize it with torchao and give backend='hf'"
            )
        loaded = _from_memory(model, precision, place, backend, revision, trust_remote_code)
    elif isinstance(model, str | Path):
        loaded = _from_files(
            model, precision, place or find_device(None), backend, revision, trust_remote_code, quantization
        )
    else:
        raise ModelError(
            f"a model of type {type(model).__name__}: give a directory, a Hub id or a loaded transformers model "
            "(adapters merged into it, for example by merge_and_unload())"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = replace(loaded, enforce_eager=enforce_eager, exact=exact)
    if isinstance(model, str | Path) and not enforce_eager:
        pack_weights(loaded.lm)
    if exact:
        _check_exact(loaded)
    return loaded


def ops_of(loaded: Loaded) -> Ops:
    """What surrounds the model in a step: the fastest there is, unless ``enforce_eager`` keeps from it."""
    return TensorOps() if loaded.enforce_eager else ops_for(loaded.lm.device)


def runnable(loaded: Loaded) -> LM:
    """The fastest implementation of the model; the eager one with ``enforce_eager``."""
    return loaded.lm if loaded.enforce_eager else fastest(loaded.lm)


def _check_exact(loaded: Loaded) -> None:
    """Raise ModelError unless the model is batch-invariant, bit for bit."""
    found = find_batch_dependence(runnable(loaded), rows=EXACT_ROWS, num_nodes=EXACT_NODES)
    if found is not None:
        raise ModelError(
            f"exact=True: with {loaded.name} a token's logits depend, in their last bits, on {found}; load it natively "
            "on a CPU with a C++ compiler at hand, or leave exact out"
        )


def placement(model: TransformersModel, *, backend: str = "auto") -> tuple[torch.dtype, torch.device]:
    """Precision and device of a transformers model. Raises ModelError for a model that ``load`` refuses at once."""
    if is_native(backend, model.config.to_dict()):
        return from_transformers.placement(model)
    lazy_adapter.support.check_model(model)
    return lazy_adapter.support.placement(model)


def find_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The torch dtype of a name; None for "auto". Raises ValueError with the known names."""
    if dtype is None or dtype == "auto":
        return None
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in DTYPES.values():
        raise ValueError(f"unknown dtype {str(dtype)!r}; known: auto, {', '.join(DTYPES)}")
    return found


def find_device(device: torch.device | str | None) -> torch.device:
    """The torch device of a name; None is CUDA where it is available, else the CPU.

    Raises ValueError for one that is unknown or not available.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}; known: cpu, cuda, cuda:0 and so on") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device {str(found)!r} is not supported; known: cpu, cuda, cuda:0 and so on")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ValueError(f"device {str(found)!r} is not available: this machine has {count} CUDA devices; give 'cpu'")
    return found


def is_native(backend: str, config: dict[str, object]) -> bool:
    """Whether the native decoder runs the model; by default not if its weights are quantized."""
    if backend == "auto":
        return config.get("model_type") in FAMILIES and not config.get("quantization_config")
    return backend == "native"


def check_native(config: dict[str, object], path: Path, backend: str) -> None:
    """Raise ModelError unless the native decoder supports ``config``."""
    try:
        loading.configure(config, path)
    except ModelError as error:
        refused = error.__cause__
        if backend == "auto" and isinstance(refused, ValueError) and not isinstance(refused, InvalidConfig):
            raise ModelError(f"{error}; or give backend='hf', where transformers' own code runs the model") from error
        raise


def _from_files(
    model: str | Path,
    dtype: torch.dtype | None,
    device: torch.device,
    backend: str,
    revision: str | None,
    trust_remote_code: bool,
    quantization: str | None,
) -> Loaded:
    if is_hub_id(model):
        path = hub.fetch(str(model), revision, code=trust_remote_code)
    elif revision is not None:
        raise ModelError(f"revision={revision!r}: {model} is a local directory; only models of the Hub have revisions")
    else:
        path = Path(model)
    config = loading.read_config(path)
    if quantization is not None and config.get("quantization_config"):
        raise ModelError(
            f"quantization={quantization!r}: {model} is quantized already (quantization_config); leave it out, or give "
            "unquantized weights"
        )
    # A model that cannot be used is refused before its tokenizer is loaded.
    if is_native(backend, config):
        check_native(config, path, backend)
        tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
        lm = loading.load(path, dtype=dtype, device=device, quantization=quantization)
    else:
        module = lazy_adapter.files.load(path, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        if quantization is not None:
            quantise_modules(module, quantization)
        lm = lazy_adapter.adapt.adapt(module)
        tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    found = Loaded(
        lm=lm,
        tokenizer=None,
        eos=read_eos(path),
        name=str(model),
        dtype=lm.dtype,
        config=config,
        start=read_start(path) if lm.context_inputs else (),
        draft_ids=read_draft_vocab(path, lm.vocab_size),
    )
    return found.with_tokenizer(tokenizer)


def _from_memory(
    model: TransformersModel,
    dtype: torch.dtype | None,
    device: torch.device | None,
    backend: str,
    revision: str | None,
    trust_remote_code: bool,
) -> Loaded:
    name = type(model).__name__
    config: dict[str, object] = model.config.to_dict()
    if revision is not None:
        raise ModelError(f"revision={revision!r}: {name} is loaded already; load the revision by its id")
    own_dtype, own_device = placement(model, backend=backend)
    differs = dtype not in (None, own_dtype)
    if device is not None:
        differs |= device.type != own_device.type or device.index not in (None, own_device.index)
    if differs:
        wanted = ", ".join(str(option).removeprefix("torch.") for option in (dtype, device) if option is not None)
        raise ModelError(
            f"{wanted}: {name} is already loaded as {loading.dtype_name(own_dtype)} on {own_device}; convert it "
            "yourself with model.to(...), or load its directory"
        )
    lm = from_transformers.from_transformers(model) if is_native(backend, config) else lazy_adapter.adapt.adapt(model)
    source = model.config._name_or_path
    known = source != "" and Path(source).is_dir()
    found = Loaded(
        lm=lm,
        tokenizer=None,
        eos=from_transformers.read_eos(model),
        name=name,
        dtype=own_dtype,
        config=config,
        start=from_transformers.read_start(model) if lm.context_inputs else (),
    )
    return found.with_tokenizer(load_tokenizer(source, trust_remote_code=trust_remote_code) if known else None)
