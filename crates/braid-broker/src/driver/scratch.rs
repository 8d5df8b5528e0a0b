use std::cell::RefCell;

/// Bytes of one read. Many packets fit, and the next connection finds the buffer in the cache.
const SIZE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; SIZE]);
}

/// Lends this thread's read buffer: a connection which has nothing to read owns none.
pub(super) fn with<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => read(&mut buffer),
        // Only if a read led to another read on the same thread.
        Err(_) => read(&mut vec![0; SIZE]),
    })
}
