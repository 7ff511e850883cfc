"""Triton kernels of matching with prices; nothing here imports Triton before they are chosen."""
