//! What targets, networks and devices do wrong.
