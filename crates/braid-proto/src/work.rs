//! Counts the steps of work, so that tests see what a call costs: never a time, always the same number.
//!
//! A step is one stream, lane or exchange looked at. Outside unit tests nothing is counted.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One step.
#[cfg(test)]
pub(crate) fn step() {
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// One step.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn step() {}

/// How many steps `work` takes.
#[cfg(test)]
pub(crate) fn steps(work: impl FnOnce()) -> u64 {
    let before = STEPS.with(std::cell::Cell::get);
    work();
    STEPS.with(std::cell::Cell::get) - before
}
