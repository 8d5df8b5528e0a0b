use std::cell::Cell;
use std::sync::Once;

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Starts counting the panics of each thread: a panic in a task of the broker ends only that task, which a test could
/// miss.
pub(super) fn count() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = PANICS.try_with(|panics| panics.set(panics.get() + 1));
            before(panic);
        }));
    });
}

/// Panics on this thread since it began.
pub(super) fn counted() -> usize {
    PANICS.get()
}

/// Prints the seed when a test fails while it holds this.
pub(crate) struct Seed(pub(crate) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}
