import torch

# Small tensors gain nothing from a second thread, and on a busy machine two threads that wait for each other at every
# operation are thirty times slower.
torch.set_num_threads(1)
