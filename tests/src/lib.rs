//! Everything that needs more than one file of the product.
pub mod abuse;
pub mod card;
pub mod contract;
pub mod corrupt;
pub mod crash;
pub mod faults;
pub mod fuzz;
pub mod kill;
pub mod ledger;
pub mod live;
pub mod operator;
pub mod partitions;
pub mod process;
pub mod result;
pub mod scenario;
pub mod sim;
pub mod soak;
