"""Operations on many nodes at once, callable from Python; they never print."""
