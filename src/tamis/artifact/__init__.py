"""What compression leaves behind: the `Compressed` network, its masks, and the `.tamis` file."""
