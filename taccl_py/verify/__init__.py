"""Is it right? The verifier: it shares no code with the engines or the lowering that it verifiers."""
