"""The path-lifting Φ of a network, and what can be known of it without ever enumerating paths."""
