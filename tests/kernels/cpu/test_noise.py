import pytest
import torch

from paceline.core.noise import Key, Philox, Stream
from paceline.kernels.cpu.noise import KernelNoise

COUNTS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 4097)


def keys():
    """Keys of every stream and shape that rules use; large seeds and positions beyond 32 bits among them."""
    seed = torch.tensor([0, 7, 2**63 - 1, 2**40 + 3])[:, None]
    position = torch.arange(12).reshape(4, 3) * 1_000_000_007
    yield Key(seed=seed, position=position, stream=Stream.TARGET)
    step = torch.tensor([0, 1, 5, 2**33])[:, None]
    yield Key(seed=seed, position=position, stream=Stream.DRAFT, step=step, node=torch.tensor([1, 2, 2**20 - 1]))
    yield Key(seed=seed[:, 0], position=position[:, 1], stream=Stream.RESIDUAL, step=step[:, 0], node=3, stage=255)
    yield Key(seed=seed, position=position.T.contiguous().T, stream=Stream.ACCEPT, step=9, node=torch.tensor(4))


@pytest.mark.parametrize("count", COUNTS)
def test_philox_words_match_torch(count):
    ours, plain = Philox(KernelNoise()), Philox()
    for key in keys():
        assert torch.equal(ours.bits(key, count), plain.bits(key, count))
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            assert torch.equal(ours.uniforms(key, count, dtype), plain.uniforms(key, count, dtype))


def test_exponential_race_does_not_depend_on_threads():
    scores = torch.randn(4, 3, 20_000, generator=torch.Generator().manual_seed(1))
    for key in list(keys())[:2]:
        wanted = Philox().choose(scores, key)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                assert torch.equal(Philox(KernelNoise()).choose(scores, key), wanted)
                assert torch.equal(Philox(KernelNoise()).order(scores, key, 5), Philox().order(scores, key, 5))
                assert torch.equal(Philox(KernelNoise()).draw(scores.exp(), key), Philox().draw(scores.exp(), key))
            finally:
                torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_exponential_race_matches_torch(dtype):
    """Keys and scores broadcast against each other; scores may be excluded, equal, or no numbers."""
    generator = torch.Generator().manual_seed(2)
    for key in keys():
        shape = (4, 3) if key.position.dim() == 2 else (4,)
        scores = (4 * torch.randn(*shape, 333, generator=generator, dtype=torch.float64)).to(dtype)
        scores[..., ::3] = -torch.inf
        scores[1, ..., 5:] = -torch.inf
        scores[2] = 0.0
        for given in (scores, scores[..., :1], scores[:1], torch.full_like(scores, -torch.inf), scores.sqrt()):
            assert torch.equal(Philox(KernelNoise()).choose(given, key), Philox().choose(given, key))
        lone = (
            Key(seed=key.seed[:, :1], position=key.position[:, :1], stream=Stream.TARGET) if key.seed.dim() > 1 else key
        )
        assert torch.equal(Philox(KernelNoise()).choose(scores, lone), Philox().choose(scores, lone))
