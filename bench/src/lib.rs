//! Measuring: what a machine can do, and what a broker makes of it.
//!
//! Reading order: [`workload`] (what a run does, and when its sends are due), [`series`] and [`latency`] (what is
//! recorded), [`load`] (what makes load), [`engine`] (one run), [`search`] (the highest rate within a bound); [`limits`]
//! and [`flush_loop`] (the same machine without a broker), [`machine`] (what it is, and what was stolen from it), [`stages`]
//! (where the broker says that its time went);
//! [`report`] (JSON, percentile log, HTML, comparison), [`suite`] (the rows that are promised).

pub mod engine;
pub mod flush_loop;
pub mod latency;
pub mod limits;
pub mod load;
pub mod machine;
mod payload;
pub mod report;
pub mod search;
pub mod series;
pub mod stages;
pub mod suite;
pub mod workload;
