"""Is it right? The judge: it shares no code with the engines or the lowering that it judges."""
