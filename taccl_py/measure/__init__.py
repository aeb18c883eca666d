"""From measured times to a topology: samples, fits of alpha and beta, and the ports that links share."""
