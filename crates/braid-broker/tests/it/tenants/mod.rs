//! Mountpoints: name spaces of tenants.

mod rules;
mod separate;
