"""The linear form in fused kernels for a GPU. Nothing of it is imported before it is called: triton may be missing."""
