"""Data of language: text and ready tokens, how they are cut into blocks, and where tokens are kept."""
