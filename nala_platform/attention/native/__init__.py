"""NaLa on a CPU in C++, built by the machine's own compiler at its first use."""
