//! Tests of the access control list against plain models, and of its file format.

mod examples;
mod format;
mod generator;
mod model;
