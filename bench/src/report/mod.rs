//! What is told of a run: [`json`] (everything, which the others are made from), [`mod@line`] (one line for people), [`hgrm`]
//! (percentile log), [`html`] (a page with charts), [`compare`] (two runs, with confidence).

pub mod chart;
pub mod compare;
pub mod hgrm;
pub mod html;
pub mod json;
pub mod line;
