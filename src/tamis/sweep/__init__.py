"""Sweeps: many small networks of one model, made on as many machines as one likes, compared, and the best certified."""
