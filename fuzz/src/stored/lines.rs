//! Import of any lines.

use super::device::Devices;
use super::{check_sound, offline};

/// An import is refused with one line and leaves nothing behind, or gives a sound store.
pub fn imported_lines(data: &[u8]) {
    let device = Devices::default();
    match offline(&device).import(&mut &*data) {
        Ok(_) => {
            assert_eq!(offline(&device).check().expect("memory does not fail").problems, []);
            check_sound(&device);
        }
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            assert_eq!(offline(&device).check().expect("memory does not fail").rows, 0, "{error}");
        }
    }
}
