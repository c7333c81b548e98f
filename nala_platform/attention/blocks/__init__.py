"""The linear form block by block, eager and compiled."""
