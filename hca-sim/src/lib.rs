//! A software HCA.

#![deny(unsafe_code)]
