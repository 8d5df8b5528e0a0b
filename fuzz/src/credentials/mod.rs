//! Bodies of the fuzz targets for password files and SCRAM. Each panics on a failure.

mod password_file;
mod scram;

pub use password_file::password_file;
pub use scram::scram;
