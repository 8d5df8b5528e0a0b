//! Tests of the router against plain models.

mod allocation;
mod generator;
mod groups;
mod retained;
mod routing;
mod subscriptions;
mod walk;
