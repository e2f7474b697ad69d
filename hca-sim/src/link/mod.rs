//! Links: what carries packets, and what can be wrapped around it.

pub mod pcap;
