//! Operations: copies that take time, from their start to the last byte of them.
//!
//! [`machine`] is the life of one of them, alike on all ranks. `table` names them; `local` is what
//! this rank knows of its own copies, which changes nothing before all ranks agree.

#[cfg(test)]
mod drawing;
mod ending;
mod local;
pub mod machine;
#[cfg(test)]
mod model;
mod table;

pub use ending::Ending;
pub(crate) use local::{Deadlines, Local};
pub use table::Kind;
pub(crate) use table::{Operation, Operations};
