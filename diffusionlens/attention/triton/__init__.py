"""Exact entmax-1.5 attention on a CUDA device, forward and backward, as Triton kernels.

Import it only where it is used: without Triton (macOS, Windows, CPU wheels of PyTorch) the import is an ImportError. Nothing
here has been timed: the kernels are checked in Triton's interpreter and by compiling them for sm_90, no device at hand.
"""

from diffusionlens.attention.triton.launch import attention_backward, attention_forward

__all__ = ["attention_backward", "attention_forward"]
