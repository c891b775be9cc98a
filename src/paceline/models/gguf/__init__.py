"""Models in llama.cpp's file format GGUF: what their metadata says, and their tensors as Hugging Face names them."""
