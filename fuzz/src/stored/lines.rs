use super::device::Devices;
use super::{check_sound, offline};

/// Whatever is imported is refused on one line, and nothing of it stays, or it is a sound store.
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
