"""Feed mutated and generated text to every reader of text from other machines: a reader may raise only the errors that
it declares, within bounds of time and memory."""
