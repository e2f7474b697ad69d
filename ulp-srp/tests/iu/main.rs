//! Information units: golden values, Linux' own units, properties, and the stored corpus of the fuzz targets.

mod captures;
mod corpus;
mod golden;
mod properties;
