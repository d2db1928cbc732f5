"""Agent of a node and coordinator of a run: they start, restart and end the ranks without the controller.

`python -m trainer.agent … -- torchrun …` is the first process of a training container. Nothing here imports torch.
"""
