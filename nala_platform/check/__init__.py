"""A look at every sample of every split, before training does it."""
