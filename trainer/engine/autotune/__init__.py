"""What is found by trying before the first step: sizes, workers, learning rate, speeds and links."""
