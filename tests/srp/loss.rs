//! SRP over networks that lose packets.
