"""What stays with a node's ranks, starts them again and ends them together: no controller need be there.

`python -m trainer.agent … -- torchrun …` is the first process of a training container. Nothing here imports torch.
"""
