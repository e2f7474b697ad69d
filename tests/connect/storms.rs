//! Many connections over bad networks.
