"""What people look at rather than read."""
