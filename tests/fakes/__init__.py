"""Stand-ins for the world outside, for tests that must steer it to the instruction."""
