import torch

# Reduced rows are too small to share: on a busy machine, threads that wait for each other cost more than they bring.
torch.set_num_threads(1)
