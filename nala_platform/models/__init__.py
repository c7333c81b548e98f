"""Whole networks, without any training code."""

# timm first, for the reason given in nala_platform/nn/__init__.py.
import timm  # noqa: F401
