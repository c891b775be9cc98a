"""Speech to text with Whisper checkpoints: files and arrays of sound in, transcripts out."""

from paceline.speech.options import SpeechOptions
from paceline.speech.transcript import Segment, Transcript
from paceline.speech.transcription import Transcriber, TranscriptionInterrupted, transcribe

__all__ = ["Segment", "SpeechOptions", "Transcriber", "Transcript", "TranscriptionInterrupted", "transcribe"]
