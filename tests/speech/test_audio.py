"""Reading sound: formats, channels, rates, and what is refused."""

import subprocess
from shutil import which

import av
import numpy as np
import pytest
import soundfile
import torch

from paceline.speech.audio import AudioError, read_sound, resampled
from tests.speech.checkpoints import RATE, sound

TONE = 440.0


def tone(seconds=0.5, rate=RATE):
    return (0.5 * np.sin(2 * np.pi * TONE * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encoded(path, samples, rate=RATE, codec="pcm_s16le", video=False):
    """Writes samples [channels, n] by ffmpeg's libraries, with a picture if asked."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("mpeg4", rate=10) if video else None
        stream = container.add_stream(codec, rate=rate, layout="mono") if samples is not None else None
        if picture is not None:
            picture.width = picture.height = 32
            for _ in range(3):
                image = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
                container.mux(picture.encode(image))
            container.mux(picture.encode())
        if stream is not None:
            frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
            frame.sample_rate = rate
            to_codec = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size)
            for part in (*to_codec.resample(frame), *to_codec.resample(None)):
                container.mux(stream.encode(part))
            container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("name", "subtype"), [("a.wav", "FLOAT"), ("a.flac", "PCM_24"), ("a.ogg", "VORBIS"), ("A.WAV", "PCM_16")]
)
def test_what_soundfile_writes_is_read(tmp_path, name, subtype):
    samples = sound(0.5)
    soundfile.write(tmp_path / name, samples, RATE, subtype=subtype)
    found = read_sound(tmp_path / name, RATE)
    assert found.samples.dtype == np.float32 and 0 <= found.seconds - 0.5 < (0.02 if subtype == "VORBIS" else 1e-9)
    assert np.abs(found.samples[: len(samples)] - samples).max() < {"FLOAT": 1e-9, "PCM_24": 1e-6, "PCM_16": 1e-4}.get(
        subtype, 0.5
    )


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mka", "pcm_s16le"), ("a.m4a", "aac"), ("a.mp2", "mp2"), ("a.wav", "adpcm_ima_wav")]
)
def test_other_formats_are_read_by_ffmpegs_libraries(tmp_path, name, codec):
    found = read_sound(encoded(tmp_path / name, tone(1.0), codec=codec), RATE)
    assert abs(found.seconds - 1.0) < 0.2 and frequency(found.samples) == pytest.approx(TONE, abs=5)


def test_the_sound_of_a_video_is_read(tmp_path):
    found = read_sound(encoded(tmp_path / "a.mkv", tone(), video=True), RATE)
    assert np.abs(found.samples - tone()).max() < 1e-4


def test_stereo_files_are_mixed_as_ffmpeg_mixes_them_and_channels_of_arrays_are_averaged(tmp_path):
    left, right = tone(), sound(0.5)
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], axis=1), RATE, subtype="FLOAT")
    assert np.allclose(read_sound(tmp_path / "a.wav", RATE).samples, (left + right) / 2**0.5, atol=1e-6)
    for pair in (
        np.stack([left, right]),
        torch.tensor(np.stack([left, right])),
        np.stack([left, right]).astype(np.float64),
    ):
        assert np.allclose(read_sound(pair, RATE).samples, (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["FLOAT", "PCM_16"])
def test_soundfile_reads_what_ffmpegs_libraries_read(tmp_path, monkeypatch, channels, subtype):
    samples = np.stack([sound(9.0, seed) for seed in range(channels)], axis=1)  # several blocks
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype=subtype)
    wanted = read_sound(tmp_path / "a.wav", RATE).samples
    without_av(monkeypatch)
    assert np.abs(read_sound(tmp_path / "a.wav", RATE).samples - wanted).max() < 1e-6


def without_av(monkeypatch):
    monkeypatch.setattr("paceline.speech.audio.find_spec", lambda name: None if name == "av" else name)


def test_damaged_packets_are_left_out_as_ffmpeg_leaves_them_out(tmp_path, caplog):
    path = encoded(tmp_path / "a.m4a", tone(2.0), codec="aac")
    content = bytearray(path.read_bytes())
    content[7000:7200] = np.random.default_rng(0).bytes(200)
    path.write_bytes(content)
    found = read_sound(path, RATE)
    assert 1.5 < found.seconds < 2.1 and frequency(found.samples) == pytest.approx(TONE, abs=5)
    assert f"{path}: some of it is damaged" in caplog.text


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_other_rates_are_resampled(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", tone(1.0, rate), rate)
    for source in (tmp_path / "a.wav", {"array": tone(1.0, rate), "sampling_rate": rate}):
        found = read_sound(source, RATE)
        assert abs(len(found.samples) - RATE) < 20 and frequency(found.samples) == pytest.approx(TONE, abs=2)


def test_long_sounds_are_resampled_without_seams():
    whole = read_sound({"array": tone(12.0, 48000), "sampling_rate": 48000}, RATE).samples  # several blocks
    assert np.abs(whole[100:-100] - tone(12.0)[: len(whole)][100:-100]).max() < 1e-2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_bytes(b"no sound at all" * 99), "not a sound that ffmpeg's libraries read"),
        (lambda path: soundfile.write(path, np.zeros(0, np.float32), RATE), "no samples in it"),
        (lambda path: soundfile.write(path, np.array([0.0, np.nan]), RATE, subtype="FLOAT"), "NaN or infinite"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, make, message):
    path = tmp_path / "a.wav"
    make(path)
    with pytest.raises(AudioError, match=message) as caught:
        read_sound(path, RATE)
    assert str(path) in str(caught.value)


def test_a_file_without_an_audio_stream_says_what_it_has(tmp_path):
    with pytest.raises(AudioError, match=r"no audio stream in it \(streams: video\)"):
        read_sound(encoded(tmp_path / "a.mkv", None, video=True), RATE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(9, np.int16), "samples of int16"),
        (np.zeros((99, 2), np.float32), "transpose"),
        (np.zeros(0, np.float32), "no samples"),
        ({"array": np.zeros(9, np.float32)}, "give 'array' and 'sampling_rate'"),
        ({"array": np.zeros(9, np.float32), "sampling_rate": 0}, "sampling_rate=0"),
        (3, "a int is no sound"),
    ],
)
def test_arrays_that_are_no_sound(given, message):
    with pytest.raises(AudioError, match=message):
        read_sound(given, RATE)


@pytest.mark.parametrize(("name", "missing"), [("a.wav", "soundfile or av"), ("a.mp4", "av")])
def test_without_the_libraries_the_extra_is_named(tmp_path, monkeypatch, name, missing):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setattr("paceline.speech.audio.find_spec", lambda _: None)
    with pytest.raises(AudioError, match=rf"needs {missing}; pip install 'paceline\[speech\]'"):
        read_sound(tmp_path / name, RATE)
    with pytest.raises(AudioError, match=r"resampling needs av"):
        list(resampled([tone()], 8000, RATE))


@pytest.mark.skipif(which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_speech_of_espeak_is_read(tmp_path):
    path = tmp_path / "a.wav"
    subprocess.run(["espeak-ng", "-w", str(path), "One two three."], check=True)
    assert soundfile.info(path).samplerate != RATE
    assert 0.5 < read_sound(path, RATE).seconds < 5 and read_sound(path, RATE).samples.std() > 0.01


def frequency(samples):
    """The strongest, in hertz."""
    return np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples)
