"""A network as an immutable DAG of operations."""
