"""What the machine is: ranks, links between them, and ports that links share."""
