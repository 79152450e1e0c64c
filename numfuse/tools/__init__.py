"""Looking inside: what a fused function compiles to."""
