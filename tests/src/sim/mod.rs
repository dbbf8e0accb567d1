//! The simulator: the third reactor, with a seeded drive, network and clock.
//!
//! The code of the broker is the very code that ships; everything around it follows from one number, so that a run that
//! fails can be repeated. Read in this order: [`random`], [`trace`] and [`clock`], then [`disk`] (what survives), [`blocking`]
//! (the same drive for recovery), [`net`], [`reactor`] (the loop).

pub mod blocking;
pub mod clock;
pub mod disk;
pub mod net;
pub mod random;
pub mod reactor;
pub mod trace;
