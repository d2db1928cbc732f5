"""Text of other machines, mutated and made up, through every reader of it: nothing but what a reader declares may come
of it, in little time and memory."""
