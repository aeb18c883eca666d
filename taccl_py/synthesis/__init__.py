"""How to move it: engines that turn a problem into a schedule."""
