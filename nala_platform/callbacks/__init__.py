"""What watches a run: its log, checkpoints, average of the weights, pictures and report; Lightning callbacks."""
