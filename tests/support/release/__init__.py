"""What a release is made of, and how it is tried."""
