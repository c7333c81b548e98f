"""Modules with weights: the parts that the networks are built from."""

# timm first: importing it registers our models (see nala_platform/__init__.py), which imports modules of this package.
# Were one of these to import timm itself before that, the registration would find it half made.
import timm  # noqa: F401
