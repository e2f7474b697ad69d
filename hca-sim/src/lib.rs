//! A software HCA.
