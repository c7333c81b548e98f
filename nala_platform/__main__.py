"""``python -m nala_platform`` is ``nala``."""

from nala_platform.cli import main

main()
