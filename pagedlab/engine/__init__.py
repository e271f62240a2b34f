"""Serving many requests at once: who runs in which step (scheduler), and the model that runs them (engine)."""
