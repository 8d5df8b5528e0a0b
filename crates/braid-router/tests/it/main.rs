//! The router against plain definitions of what it must answer.

mod allocation;
mod generator;
mod groups;
mod retained;
mod routing;
mod subscriptions;
mod walk;
