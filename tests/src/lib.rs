//! Everything that needs more than one file of the product.
pub mod crash;
