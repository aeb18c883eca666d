"""The answer: who sends which chunks over which link when."""
