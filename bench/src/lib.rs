//! Measuring: what the drive can do, and what a broker makes of it.
//!
//! Reading order: [`limits`] (the drive alone), [`latency`] (histograms), [`produce`] and [`consume`] (workloads against
//! a running broker), [`wire`] (produce without the SDK).

pub mod consume;
pub mod latency;
pub mod limits;
pub mod produce;
pub mod wire;
